"""objects: see ARCHITECTURE.md."""
