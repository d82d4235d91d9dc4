"""Temporary folders for files that a user's code writes, in the system's temporary folder.

A process locks its folder. The kernel releases the lock when the process ends, so the next process
on the same machine that makes one knows which folders are abandoned, and deletes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile

from penstock.storage.local.file_locks import HAS_LOCKS, flock, same_file
from penstock.storage.local.files import machine_mark

PREFIX = "penstock-job-"
_MARKED = re.compile(f"{PREFIX}([0-9a-f]{{8}})-.*", re.DOTALL)


class ScratchFolder:
    """An empty temporary folder at ``path``; ``remove`` deletes it with what is in it.

    Where folders cannot be locked, its name has no mark, and only its process deletes it.
    """

    def __init__(self) -> None:
        sweep_scratch()
        self._lock: int | None = None
        self.path = ""
        mark = f"{machine_mark()}-" if HAS_LOCKS else ""
        while not self.path:
            path = tempfile.mkdtemp(prefix=PREFIX + mark)
            if not mark:
                self.path = path
                return
            try:
                self._lock = _lock(path)
            except OSError:  # a file system without locks
                mark = ""
                shutil.rmtree(path, ignore_errors=True)
            else:
                # Before it was locked, another process may have deleted it as abandoned.
                self.path = path if self._lock is not None else ""

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)  # last: an unlocked folder would look abandoned
            self._lock = None


def sweep_scratch() -> None:
    """Delete the folders of dead processes of this machine."""
    if not HAS_LOCKS:
        return
    mark = machine_mark()
    with contextlib.suppress(OSError):  # the temporary folder may not be listable
        for item in os.scandir(tempfile.gettempdir()):
            found = _MARKED.fullmatch(item.name)
            if found is None or found[1] != mark:
                continue
            with contextlib.suppress(OSError):  # it may be another user's
                descriptor = _lock(item.path)
                if descriptor is not None:
                    shutil.rmtree(item.path, ignore_errors=True)
                    os.close(descriptor)


def _lock(path: str) -> int | None:
    """Lock a folder; return None if another process has it, or has deleted it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if flock(descriptor, shared=False, wait=False) and same_file(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
