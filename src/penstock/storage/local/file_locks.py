"""Locks on open files, by which processes of a machine meet without a server.

The kernel takes back what a process held that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import os

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None


def flock(descriptor: int, *, shared: bool, wait: bool) -> bool:
    """Lock an open file; False where others hold it and we do not wait.

    An ``OSError`` where the system or the file system has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "this system has no flock")
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Close an open file that was locked by this process.

    A process forked since then has a copy, which would keep the lock as long as it lives: so it is
    taken off by name.
    """
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
