"""readers: see ARCHITECTURE.md."""
