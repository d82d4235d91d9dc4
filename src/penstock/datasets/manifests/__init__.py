"""manifests: see ARCHITECTURE.md."""
