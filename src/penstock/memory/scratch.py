"""Rooms: memory of a thread for what is needed only during a call, used again by the next one.

They are not taken from the C library's heap. It keeps more of what is freed the larger the blocks
that were, for each thread: a single large photograph would cost megabytes for good.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from typing import Any

import numpy as np

from penstock.memory.memory import private_memory

Array = np.ndarray[Any, np.dtype[Any]]

KEPT_BYTES = 2 << 20
"""Larger rooms are given back to the system after the call: getting them costs little beside it."""
STEP_BYTES = 128 << 10
HUGE_BYTES = 4 << 20
"""From here on large pages pay: there are fewer to be fetched."""
_thread = threading.local()


def room(name: str, size_bytes: int) -> Array:
    """At least so many bytes, as they were left; the next call of that name may use them again.

    >>> first = room("example", 1000)
    >>> len(first) >= 1000, room("example", 2000) is first
    (True, True)
    """
    found: Array | None = getattr(_thread, name, None)
    if found is None or len(found) < size_bytes:
        size = max(-(-size_bytes // STEP_BYTES), 1) * STEP_BYTES
        found = np.frombuffer(system_memory(size), np.uint8)
        if size <= KEPT_BYTES:
            setattr(_thread, name, found)
    return found


def system_memory(size_bytes: int) -> mmap.mmap:
    """Memory as :func:`~penstock.memory.memory.private_memory` gives it, of large pages if large.

    >>> len(system_memory(1000))
    1000
    """
    memory = private_memory(size_bytes)
    if size_bytes >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # not every kernel has them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
