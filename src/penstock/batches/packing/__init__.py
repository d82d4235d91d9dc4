"""packing: see ARCHITECTURE.md."""
