"""``speechbrain.dataio.dataset``"""

from __future__ import annotations

from penstock.datasets.manifests.dynamic_item_dataset import (
    DynamicItemDataset,
    FilteredSortedDynamicItemDataset,
    add_dynamic_item,
    apply_overfit_test,
    set_output_keys,
)

__all__ = [
    "DynamicItemDataset",
    "FilteredSortedDynamicItemDataset",
    "add_dynamic_item",
    "apply_overfit_test",
    "set_output_keys",
]
