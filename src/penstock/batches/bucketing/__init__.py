"""bucketing: see ARCHITECTURE.md."""
