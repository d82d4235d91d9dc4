"""sources: see ARCHITECTURE.md."""
