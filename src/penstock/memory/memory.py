"""Memory of the system's, outside of the C library's heap."""

from __future__ import annotations

import mmap


def private_memory(size_bytes: int) -> mmap.mmap:
    """Memory that goes back to the system as soon as nobody holds it.

    Private: the usual anonymous map is shared by all forked processes, which would then write
    their bytes over each other's.

    >>> len(private_memory(1000))
    1000
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows, where nothing forks
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
