"""padding: see ARCHITECTURE.md."""
