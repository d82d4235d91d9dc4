"""cache: see ARCHITECTURE.md."""
