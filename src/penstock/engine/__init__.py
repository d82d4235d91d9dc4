"""engine: see ARCHITECTURE.md."""
