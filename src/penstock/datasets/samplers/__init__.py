"""samplers: see ARCHITECTURE.md."""
