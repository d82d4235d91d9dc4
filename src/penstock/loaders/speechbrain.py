"""Lets SpeechBrain's ``Checkpointer`` and ``Brain`` use a loader, if that package is loaded.

The checkpointer looks up in a table of classes how to save an object. ``Brain.fit`` iterates only
torch's loaders and SpeechBrain's. Nothing here imports SpeechBrain.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def register_hooks(cls: type, save: str, load: str) -> None:
    """Register the methods of a class that save and load it with SpeechBrain's ``Checkpointer``."""
    checkpoints = sys.modules.get("speechbrain.utils.checkpoints")
    if checkpoints is not None and cls not in checkpoints.DEFAULT_SAVE_HOOKS:
        checkpoints.mark_as_saver(vars(cls)[save])
        checkpoints.mark_as_loader(vars(cls)[load])
        checkpoints.register_checkpoint_hooks(cls)


def as_speechbrain_class(cls: type, name: str) -> type:
    """Return a subclass of ``cls`` and of SpeechBrain's ``name``; ``cls`` if that is not loaded."""
    theirs = getattr(sys.modules.get("speechbrain.dataio.dataloader"), name, None)
    return cls if theirs is None or issubclass(cls, theirs) else _combine_classes(cls, theirs)


@functools.cache
def _combine_classes(ours: type, theirs: type) -> Any:
    return type(ours.__name__, (ours, theirs), {"__module__": ours.__module__})
