"""Trainers that take a batch from a loader before they train on the one before it.

Lightning does so if a loader has no length, to know which batch is the last, and so do the loaders
that Accelerate's ``prepare`` makes. They do not say so, and are found by looking at the callers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

LIGHTNING = ("lightning.", "pytorch_lightning.")
BETWEEN = ("penstock.", "torch.utils.data.", "accelerate.data_loader", *LIGHTNING)
PREPARED = ("DataLoaderShard", "DataLoaderDispatcher")
"""Accelerate's loaders that take a batch ahead."""


def find_lightning_fetcher() -> Any:
    """Return Lightning's data fetcher that is starting an iteration; None if there is none."""
    if sys.modules.keys().isdisjoint(("lightning.pytorch", "pytorch_lightning")):
        return None
    return next((one for one in _callers() if hasattr(one, "prefetch_batches")), None)


def is_read_by_accelerate() -> bool:
    """Return whether a loader that Accelerate's ``prepare`` made is starting an iteration."""
    if "accelerate" not in sys.modules:
        return False
    return any(type(one).__name__ in PREPARED for one in _callers())


def _callers() -> Iterator[Any]:
    """Yield ``self`` of the functions of trainers and loaders that called the pipeline."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(BETWEEN):
        yield frame.f_locals.get("self")
        frame = frame.f_back
