"""Bytes in memory that all processes of a machine share, in one copy.

The copy is a file in ``/dev/shm`` whose name identifies its contents. The first process fills it;
the others wait, then map it. All hold a lock on it while they use it, and the last one deletes it.
A copy left by killed processes is used by the next process that needs it, or deleted by the next
that makes a copy.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence

from penstock.errors import Origin, PipelineError, ShardError, StorageError
from penstock.storage.local.file_locks import HAS_LOCKS, flock, same_file

FOLDER = "/dev/shm"
PREFIX = "penstock-ram"
COMPLETE = b"penstock complete"
"""The last bytes of a copy that is complete."""
LEFT_FREE = 0.1
"""The share of the free memory that a copy leaves to others."""


def check_memory(memory: str | None) -> str | None:
    """Return None or "ram"; raise PipelineError for anything else.

    >>> check_memory("ram")
    'ram'
    """
    if memory not in (None, "ram"):
        raise PipelineError(f'memory is None or "ram", not {memory!r}')
    if memory is not None and not HAS_LOCKS:
        raise PipelineError('memory="ram" needs file locks, which this system does not have')
    return memory


class SharedBytes:
    """Pieces of bytes, of these ``sizes``, in memory that all processes of the machine share.

    ``identity`` is a text that differs when the bytes do. ``fill(number)`` returns the bytes of a
    piece, in parts; it is called only if no other process has a copy. If the pieces do not fit into
    free memory, a :class:`~penstock.errors.StorageError` is raised, in which ``what`` names them.

    >>> shared = SharedBytes("example", [5], lambda number: iter([b"hello"]), what="an example")
    >>> shared.read(0)
    b'hello'
    >>> shared.close()
    """

    def __init__(
        self,
        identity: str,
        sizes: Sequence[int],
        fill: Callable[[int], Iterator[bytes]],
        *,
        what: str,
    ) -> None:
        self.what = what
        self.starts = [0, *itertools.accumulate(sizes)]
        self.size_bytes = self.starts[-1]
        folder = FOLDER if os.path.isdir(FOLDER) else tempfile.gettempdir()
        self.path = os.path.join(folder, f"{PREFIX}-{os.getuid()}-{identity}")
        descriptor = self._open_copy(fill)
        try:
            length = self.size_bytes + len(COMPLETE)
            self.memory = mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ)
        except BaseException:
            os.close(descriptor)
            raise
        self._end = weakref.finalize(self, _let_go, descriptor, self.path, os.getpid())

    def read(self, number: int) -> bytes:
        """Return the bytes of a piece."""
        return self.memory[self.starts[number] : self.starts[number + 1]]

    def close(self) -> None:
        """Release the copy; the last process of the machine that does so deletes it."""
        self._end()

    def _open_copy(self, fill: Callable[[int], Iterator[bytes]]) -> int:
        """Open the complete copy, with a lock that keeps others from deleting it."""
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags, 0o600)
            try:
                flock(descriptor, shared=True, wait=True)
                if same_file(descriptor, self.path):
                    if self._is_complete(descriptor):
                        return descriptor
                    # The process that filled it was killed, or none has begun.
                    if flock(descriptor, shared=False, wait=True) and self._fill(descriptor, fill):
                        flock(descriptor, shared=True, wait=True)
                        if same_file(descriptor, self.path) and self._is_complete(descriptor):
                            return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_complete(self, descriptor: int) -> bool:
        if os.fstat(descriptor).st_size != self.size_bytes + len(COMPLETE):
            return False
        return os.pread(descriptor, len(COMPLETE), self.size_bytes) == COMPLETE

    def _fill(self, descriptor: int, fill: Callable[[int], Iterator[bytes]]) -> bool:
        """Make the copy. Return False if another process has deleted the file."""
        if not same_file(descriptor, self.path):
            return False
        if self._is_complete(descriptor):
            return True
        try:
            delete_unused(os.path.dirname(self.path))
            self._reserve(descriptor)
            for number in range(len(self.starts) - 1):
                at, end = self.starts[number : number + 2]
                for part in fill(number):
                    if at + len(part) > end:
                        raise self._changed(number)
                    at = _write(descriptor, part, at)
                if at != end:
                    raise self._changed(number)
            os.pwrite(descriptor, COMPLETE, self.size_bytes)
        except BaseException:
            os.unlink(self.path)
            raise
        return True

    def _reserve(self, descriptor: int) -> None:
        needed = self.size_bytes + len(COMPLETE)
        free = free_bytes(os.path.dirname(self.path))
        if needed > free:
            raise self._too_large(free)
        try:
            os.ftruncate(descriptor, 0)
            os.posix_fallocate(descriptor, 0, needed)
        except OSError as error:
            raise self._too_large(free) from error

    def _too_large(self, free: int) -> StorageError:
        return StorageError(
            f'{self.what} do not fit into memory: memory="ram" needs {self.size_bytes:,} bytes, '
            f"and {os.path.dirname(self.path)} may take {free:,} now; read them without memory=, "
            "use fewer, or give the machine or container more shared memory (docker --shm-size)"
        )

    def _changed(self, number: int) -> ShardError:
        return ShardError(
            f"piece {number} of {self.what} has another size than before: it was changed while it "
            "was read; try again",
            origin=Origin(self.path),
        )


def _write(descriptor: int, data: bytes, at: int) -> int:
    """Write all of the data and return the offset after it. Linux takes 2 GiB at a time."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], at + done)
    return at + done


def free_bytes(folder: str) -> int:
    """Return how much a copy may take: nearly what the folder, the memory of the machine and the
    limits of the container have free."""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                free = min(free, int(line.split()[1]) * 1024)
    return max(0, int(min(free, *container_limits()) * (1 - LEFT_FREE)))


def container_limits(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> list[int]:
    """Return how many more bytes each control group of this process may take.

    A process that exceeds such a limit is killed, without an error.
    """
    found = [sys.maxsize]
    with contextlib.suppress(OSError, ValueError), open(own, encoding="utf-8") as file:
        for line in file:
            _, kind, path = line.rstrip("\n").split(":", 2)
            if kind and "memory" not in kind.split(","):
                continue
            base = os.path.join(root, "memory") if kind else root
            names = _CGROUP_1 if kind else _CGROUP_2
            folder = os.path.normpath(base + os.path.normpath(f"/{path}"))  # never outside of base
            while folder.startswith(base):  # a limit of any group above holds too
                found += _left_in(folder, *names)
                folder = os.path.dirname(folder)
    return found


_CGROUP_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_CGROUP_2 = ("memory.max", "memory.current")


def _left_in(folder: str, limit: str, used: str) -> list[int]:
    """Return the free bytes of a control group as a list of one; [] if it has no limit."""
    try:
        most, taken = (int(_read_text(os.path.join(folder, name))) for name in (limit, used))
        for line in _read_text(os.path.join(folder, "memory.stat")).splitlines():
            if line.startswith("inactive_file "):  # page cache, which the kernel can free
                taken -= int(line.split()[1])
    except (OSError, ValueError):  # "max" is no number
        return []
    return [most - taken]


def _read_text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def delete_unused(folder: str) -> None:
    """Delete the copies of this user that no process uses any more."""
    for entry in os.scandir(folder):
        if entry.name.startswith(f"{PREFIX}-{os.getuid()}-"):
            with contextlib.suppress(OSError):
                descriptor = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    _delete_if_unused(descriptor, entry.path)
                finally:
                    os.close(descriptor)


def _delete_if_unused(descriptor: int, path: str) -> None:
    if flock(descriptor, shared=False, wait=False) and same_file(descriptor, path):
        os.unlink(path)


def _let_go(descriptor: int, path: str, process: int) -> None:
    # A forked process shares the lock with its parent, so only the parent may delete the file.
    with contextlib.suppress(OSError):
        if os.getpid() == process:
            _delete_if_unused(descriptor, path)
    with contextlib.suppress(OSError):
        os.close(descriptor)
