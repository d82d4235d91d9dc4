"""Makes classes an ``IterableDataset`` of torch without importing torch.

torch's loaders check ``isinstance(dataset, IterableDataset)``. Importing torch for that would cost
every program seconds, so the classes here pass the check as soon as torch is loaded.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from penstock.stages.accelerate_warnings import find_accelerate_caller

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset as IterableDataset
else:

    class IterableDataset:
        """torch's class for type checkers; at run time, a substitute until torch is loaded.

        ``type(dataset)`` is always the class itself. ``dataset.__class__`` is, with torch loaded,
        a subclass of it and of torch's ``IterableDataset``.
        """

        def __class_getitem__(cls, item: Any) -> Any:
            return cls

        def _notice(self, caller: str, owner: Any) -> None:
            """Called before a function of Accelerate reads the class of this object."""

        @property
        def __class__(self) -> Any:
            if "accelerate" in sys.modules:
                self._notice(*find_accelerate_caller(1))
            torch_class = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
            return type(self) if torch_class is None else _as_torch(type(self), torch_class)


@functools.cache
def _as_torch(cls: Any, torch_class: Any) -> Any:
    torch_class.register(IterableDataset)
    members = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(torch_class)(cls.__name__, (cls, torch_class), members)
