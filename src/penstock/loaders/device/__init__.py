"""device: see ARCHITECTURE.md."""
