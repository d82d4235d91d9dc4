"""Scratch memory: a thread's buffers for the duration of a call, reused by the next call.

They are not taken from the C library's heap, which keeps more of what was freed the larger the
freed blocks were, for each thread: one large photograph would cost megabytes for good.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

KEPT_BYTES = 2 << 20
"""Larger buffers are returned to the system after the call: next to it they are cheap to get."""
STEP_BYTES = 128 << 10
HUGE_BYTES = 4 << 20
"""From this size on, large pages pay: fewer pages have to be faulted in."""
_thread = threading.local()


def scratch_memory(name: str, size_bytes: int) -> Array:
    """Return a scratch buffer of at least ``size_bytes``, with arbitrary content.

    The next call with the same name on this thread may return the same buffer.

    >>> first = scratch_memory("example", 1000)
    >>> len(first) >= 1000, scratch_memory("example", 2000) is first
    (True, True)
    """
    found: Array | None = getattr(_thread, name, None)
    if found is None or len(found) < size_bytes:
        import numpy as np

        size = max(-(-size_bytes // STEP_BYTES), 1) * STEP_BYTES
        found = np.frombuffer(system_memory(size), np.uint8)
        if size <= KEPT_BYTES:
            setattr(_thread, name, found)
    return found


def system_memory(size_bytes: int) -> mmap.mmap:
    """Return :func:`private_memory`, with large pages if it is large.

    >>> len(system_memory(1000))
    1000
    """
    memory = private_memory(size_bytes)
    if size_bytes >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # not every kernel has them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def private_memory(size_bytes: int) -> mmap.mmap:
    """Return memory that goes back to the system when the last reference is gone.

    Private: forked processes share the usual anonymous map and would overwrite each other's bytes.

    >>> len(private_memory(1000))
    1000
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows, where nothing forks
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
