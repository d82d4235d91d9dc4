"""client: see ARCHITECTURE.md."""
