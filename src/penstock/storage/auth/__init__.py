"""auth: see ARCHITECTURE.md."""
