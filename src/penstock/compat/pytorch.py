"""``webdataset.pytorch``: three classes of torch; empty ones if torch is not installed."""

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
            """Replaces torch's class if torch is missing."""

        class IterableDataset:
            """Replaces torch's class if torch is missing."""

        class TorchTensor:
            """Replaces torch's class if torch is missing."""


__all__ = ["DataLoader", "IterableDataset", "TorchTensor"]
