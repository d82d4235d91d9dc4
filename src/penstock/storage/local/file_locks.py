"""Locks on open files, by which the processes of a machine coordinate without a server.

The kernel releases the locks of a process that is killed.
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
    """Lock an open file. Return False if another process holds it and ``wait`` is false.

    Raise ``OSError`` if the system or the file system has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "this system has no flock")
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def same_file(descriptor: int, path: str) -> bool:
    """Return whether the path still names the open file."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def boot_id() -> str:
    """Return the id of the current boot: after a power cut the end of a file may be wrong."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def unlock(descriptor: int) -> None:
    """Unlock and close an open file that this process has locked.

    Closing alone is not enough: a process forked since then has a copy that would keep the lock.
    """
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
