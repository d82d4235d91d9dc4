"""One memory for the columns of a manifest in all spawned loader workers.

A forked worker has the parent's pages. A spawned one gets its data set as a pickle, which at ten
million rows would be a gigabyte for each. So while a process is being spawned, the large buffers
are written once into a file without a name, which every worker maps instead of copying it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import tempfile
from multiprocessing import context, reduction
from typing import Any, BinaryIO

SMALL = 1 << 16  # a manifest of fewer bytes is sent as it is
_ALIGN = 64


class SharedFile:
    """A pickle whose buffers lie in a file without a name."""

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self.pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
        self.spans: list[tuple[int, int]] = []
        self.size = 0
        self._file = _nameless()
        for buffer in buffers:
            with buffer.raw() as data:
                self._file.seek(self.size)
                self._file.write(data)
                self.spans.append((self.size, self.size + data.nbytes))
                self.size += -(-data.nbytes // _ALIGN) * _ALIGN
        self._file.truncate(max(self.size, 1))
        self._file.flush()

    def for_child(self) -> Any:
        """What a process that is being spawned needs to open it."""
        return reduction.DupFd(self._file.fileno())


def _nameless() -> BinaryIO:
    if hasattr(os, "memfd_create"):  # unlike /dev/shm, no container sets a small limit on it
        return open(os.memfd_create("penstock-manifest"), "w+b")
    return tempfile.TemporaryFile()


def for_child(owner: Any, value: Any) -> Any:
    """How to rebuild ``type(owner)(*value)`` in a process that is being spawned.

    None when no process is being spawned, or where sharing is not worth it or not possible. The
    file is kept by the owner, for the next worker.
    """
    if context.get_spawning_popen() is None or os.name != "posix":
        return None
    if owner._shared is None:
        shared = SharedFile(value)
        owner._shared = shared if shared.size >= SMALL else False
    if not owner._shared:
        return None
    return _opened, (
        type(owner),
        owner._shared.pickled,
        owner._shared.spans,
        owner._shared.for_child(),
    )


def _opened(kind: Any, pickled: bytes, spans: list[tuple[int, int]], passed: Any) -> Any:
    descriptor = passed.detach()
    with contextlib.closing(os.fdopen(descriptor, "rb")) as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    return kind(*pickle.loads(pickled, buffers=[view[start:stop] for start, stop in spans]))
