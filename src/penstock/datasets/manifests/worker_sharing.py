"""Shares the columns of a manifest between spawned loader workers.

A forked worker shares the parent's memory pages. A spawned one receives its data set as a pickle,
which at ten million rows would be a gigabyte for each. So while a process is being spawned, the
large buffers are written once to an unnamed file, which every worker maps instead of copying it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
from multiprocessing import context, reduction
from typing import Any

from penstock.context import open_unnamed_file

SMALL = 1 << 16  # a manifest with fewer bytes is pickled
_ALIGN = 64


class SharedFile:
    """A pickle whose buffers are in an unnamed file."""

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self.pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
        self.spans: list[tuple[int, int]] = []
        self.size = 0
        self._file = open_unnamed_file("penstock-manifest")
        for buffer in buffers:
            with buffer.raw() as data:
                self._file.seek(self.size)
                self._file.write(data)
                self.spans.append((self.size, self.size + data.nbytes))
                self.size += -(-data.nbytes // _ALIGN) * _ALIGN
        self._file.truncate(max(self.size, 1))
        self._file.flush()

    def reduce_for_child(self) -> Any:
        """Return the file descriptor for a process that is being spawned."""
        return reduction.DupFd(self._file.fileno())


def reduce_for_child(owner: Any, value: Any) -> Any:
    """Return a ``__reduce__`` value for ``type(owner)(*value)`` in a process being spawned.

    Return None if no process is being spawned, or if sharing is not worth it or not possible. The
    owner keeps the file for the next worker.
    """
    if context.get_spawning_popen() is None or os.name != "posix":
        return None
    if owner._shared is None:
        shared = SharedFile(value)
        owner._shared = shared if shared.size >= SMALL else False
    if not owner._shared:
        return None
    return _open_shared, (
        type(owner),
        owner._shared.pickled,
        owner._shared.spans,
        owner._shared.reduce_for_child(),
    )


def _open_shared(kind: Any, pickled: bytes, spans: list[tuple[int, int]], passed: Any) -> Any:
    descriptor = passed.detach()
    with contextlib.closing(os.fdopen(descriptor, "rb")) as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    return kind(*pickle.loads(pickled, buffers=[view[start:stop] for start, stop in spans]))
