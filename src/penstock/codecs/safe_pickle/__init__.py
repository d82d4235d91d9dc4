"""safe_pickle: see ARCHITECTURE.md."""
