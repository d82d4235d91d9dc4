"""reading: see ARCHITECTURE.md."""
