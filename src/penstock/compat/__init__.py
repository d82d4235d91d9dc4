"""Names of older WebDataset versions and of its submodules. Loaded on demand; nothing imports it."""
