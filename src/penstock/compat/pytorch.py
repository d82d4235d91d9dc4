"""``webdataset.pytorch``: the three classes of torch; empty ones where torch is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    DataLoader = IterableDataset = TorchTensor = Any
else:
    try:
        from torch import Tensor as TorchTensor
        from torch.utils.data import DataLoader, IterableDataset
    except ImportError:

        class DataLoader:
            """Stands in for torch's class."""

        class IterableDataset:
            """Stands in for torch's class."""

        class TorchTensor:
            """Stands in for torch's class."""


__all__ = ["DataLoader", "IterableDataset", "TorchTensor"]
