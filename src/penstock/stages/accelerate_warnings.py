"""Warnings for the two ways in which Accelerate loses the position or the epoch of our data.

``Accelerator.prepare`` returns a loader of an unknown class unchanged, and ``save_state`` then
does not save it. ``skip_first_batches`` makes another loader over the same data set, and counts its
epochs separately. Neither calls the loader or the data set, but both read its ``__class__``.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

PREPARING, SKIPPING = "_prepare_one", "skip_first_batches"


def find_accelerate_caller(depth: int) -> tuple[str, Any]:
    """Return the name and ``self`` of Accelerate's function that reads ``__class__``; or ""."""
    frame: Any = sys._getframe(depth + 1)
    if frame.f_globals.get("__name__") == "abc":  # isinstance() of an abstract class
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    if not module.startswith("accelerate."):
        return "", None
    return frame.f_code.co_name, frame.f_locals.get("self")


def warn_of_skipping(dataset: Any) -> None:
    """Warn that ``skip_first_batches`` loses the epoch."""
    warnings.warn(
        "skip_first_batches reads the batches again and drops them, in epoch "
        f"{dataset.epoch} of the data set, and Accelerate counts the epochs of its new loader "
        "separately, so the next epoch may repeat this one's order. Call dataset.set_epoch(epoch) "
        "before each epoch, or resume with the state of a WebLoader instead: "
        "accelerator.register_for_checkpointing(loader)",
        stacklevel=6,
    )


def warn_of_preparing(loader: Any, accelerator: Any) -> None:
    """Warn that ``save_state`` will not save a loader, unless it is registered already."""
    registered = getattr(accelerator, "_custom_objects", ())
    if not any(one is loader for one in registered):
        warnings.warn(
            "Accelerator.prepare returns a WebLoader unchanged, and save_state() will not save its "
            "position: call accelerator.register_for_checkpointing(loader), before prepare() or "
            "instead of it",
            stacklevel=7,
        )
