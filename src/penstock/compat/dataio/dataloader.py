"""``speechbrain.dataio.dataloader``"""

from __future__ import annotations

from penstock.compat.left_out import left_out_of
from penstock.datasets.make_dataloader import make_dataloader
from penstock.loaders.looped_loader import LoopedLoader
from penstock.loaders.saveable_dataloader import SaveableDataLoader

__getattr__ = left_out_of("dataio.dataloader")

__all__ = ["LoopedLoader", "SaveableDataLoader", "make_dataloader"]
