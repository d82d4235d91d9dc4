"""local: see ARCHITECTURE.md."""
