"""analysis: see ARCHITECTURE.md."""
