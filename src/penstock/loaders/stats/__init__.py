"""stats: see ARCHITECTURE.md."""
