"""Where a transform writes its result: new memory, or a row of the next batch.

A transform calls :func:`empty` for the array it will fill. By default that is ``numpy.empty``; a
loader that builds batches in place sets an allocator for the worker thread first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Allocator = Callable[[tuple[int, ...], Any], "np.ndarray[Any, Any]"]
_thread = threading.local()


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return an uninitialised array: a row of the current batch, or a separate one.

    >>> empty((2, 3), "uint8").shape
    (2, 3)
    """
    allocator: Allocator | None = getattr(_thread, "allocator", None)
    if allocator is not None:
        return allocator(shape, dtype)
    import numpy as np

    return np.empty(shape, dtype)


def give_by(allocator: Allocator | None) -> Allocator | None:
    """Set the allocator of :func:`empty` on this thread (None: numpy). Return the previous one."""
    before: Allocator | None = getattr(_thread, "allocator", None)
    _thread.allocator = allocator
    return before


@contextmanager
def rows_from(allocator: Allocator) -> Iterator[None]:
    """Use an allocator for :func:`empty` on this thread, within a ``with`` block.

    >>> import numpy as np
    >>> block = np.zeros((4, 3), "uint8")
    >>> with rows_from(lambda shape, dtype: block[1]):
    ...     empty((3,), "uint8")[:] = 7
    >>> block[:, 0].tolist()
    [0, 7, 0, 0]
    """
    before = give_by(allocator)
    try:
        yield
    finally:
        give_by(before)
