"""A folder as a queue of shards: producers add them, any number of processes take them."""

from __future__ import annotations

import glob
import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from penstock.context import Context, current_context
from penstock.errors import Origin, PipelineError, StorageError
from penstock.stages.run import Run, Ticket
from penstock.stages.sources.shard_list import Shard
from penstock.stages.stage import Source
from penstock.storage.local.file_locks import flock
from penstock.storage.urls import expand_braces

_CLAIM = re.compile(r"(.+)\._(\d{1,18}|done)_", re.DOTALL)


class DirectoryShardList(Source[Shard]):
    """The shards in a folder, and those added later, each used by one process at a time.

    A shard is claimed by renaming it to ``NAME._PID_``, which is the URL yielded. When the next one
    is requested, it is finished: ``mode="unlink"`` deletes it, ``"keep"`` renames it to
    ``NAME._done_``, ``"resample"`` puts it back. A shard whose reader stopped early or died is put
    back in any mode. ``select`` is ``"random"`` or ``"oldest"``. If there is no shard to claim, the
    folder is searched every ``poll`` seconds, and after ``timeout`` seconds without one the
    list ends; with ``poll=None`` it ends at once.

    Producers must write under a name that does not match and then rename. Every process claims
    separate shards: do not split or shuffle the list, and read each shard before the next.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     open(f"{folder}/a.tar", "wb").close()
    ...     for shard in DirectoryShardList(folder, mode="keep", poll=None):
    ...         shard["url"] == f"{folder}/a.tar._{os.getpid()}_"
    ...     os.listdir(folder)
    True
    ['a.tar._done_']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pattern: str = "*.{tar,tgz,tar.tgz}",
        poll: float | None = 1,
        timeout: float = 1e12,
        mode: str = "resample",
        select: str = "random",
        fate: None = None,
    ) -> None:
        _check_choice("mode", mode, "unlink", "keep", "resample")
        _check_choice("select", select, "random", "oldest")
        if poll is not None and not poll > 0:
            raise PipelineError(f"DirectoryShardList: poll must be above 0 or None, not {poll}")
        if fate is not None:
            raise PipelineError("DirectoryShardList: fate has no effect; use mode")
        self.path, self.patterns = os.fspath(path), expand_braces(pattern)
        self.poll, self.timeout, self.mode, self.select = poll, timeout, mode, select

    def start(self, source: Run[None] | None, context: Context) -> Run[Shard]:
        return DirectoryRun(self, None, context)

    def cleanup_files_without_processes(self) -> None:
        """Put back shards claimed by processes that no longer run. Iterating does it, too."""
        DirectoryRun(self, None, current_context()).recover()


def _check_choice(name: str, value: str, *choices: str) -> None:
    if value not in choices:
        raise PipelineError(f"DirectoryShardList: {name} must be one of {choices}, not {value!r}")


class DirectoryRun(Run[Shard]):
    """Runs a :class:`DirectoryShardList`. The ticket is the number of the shard claimed."""

    stage: DirectoryShardList
    count = -1
    url = ""

    def __init__(self, stage: Any, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.stream_id = (context.rank, context.worker)
        self.rng = context.rng("directory", *self.stream_id)
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[Shard]:
        stage = self.stage
        if not os.path.isdir(stage.path):
            raise StorageError("DirectoryShardList needs a folder", origin=Origin(stage.path))
        waits_until = time.monotonic() + stage.timeout
        while not self._closed.is_set():
            self.recover()
            for name in self._candidates():
                with _claim(name) as claimed:
                    if claimed is not None:
                        self.count, self.url = self.count + 1, claimed
                        yield {"url": claimed}
                        self._finish(claimed, name)
                        waits_until = time.monotonic() + stage.timeout
                        break
            else:
                left = waits_until - time.monotonic()
                if stage.poll is None or left <= 0:
                    return
                # An event, because closing the run in another thread ends the wait at once.
                self._closed.wait(min(stage.poll, left, threading.TIMEOUT_MAX))

    def _names(self, ending: str) -> list[str]:
        stage = self.stage
        found = {n for p in stage.patterns for n in glob.glob(p + ending, root_dir=stage.path)}
        return [os.path.join(stage.path, name) for name in sorted(found)]

    def _candidates(self) -> list[str]:
        """Return the unclaimed shards, in the order to try them."""
        names = [n for n in self._names("") if not _CLAIM.fullmatch(n) and os.path.isfile(n)]
        if self.stage.select == "oldest":
            names.sort(key=_modified)
        else:
            self.rng.shuffle(names)
        return names

    def recover(self) -> None:
        """Put back shards claimed by processes that no longer run."""
        for claimed in self._names("._*_"):
            match = _CLAIM.fullmatch(claimed)
            if match is None or match[2] == "done" or _is_running(int(match[2])):
                continue
            with _lock(claimed) as mine:
                if mine:
                    _put_back(claimed, match[1])

    def _finish(self, claimed: str, name: str) -> None:
        with suppress(FileNotFoundError):
            if self.stage.mode == "keep":
                os.replace(claimed, f"{name}._done_")
            elif self.stage.mode == "resample" and not os.path.exists(name):
                os.rename(claimed, name)
            else:
                os.unlink(claimed)  # in mode "resample": a newer shard has the name by now

    def close(self) -> None:
        """End the wait for shards."""
        self._closed.set()

    @property
    def ticket(self) -> Ticket:
        return self.count

    def origin(self, ticket: Ticket) -> Origin | None:
        return Origin(self.url) if ticket == self.count and self.url else None


@contextmanager
def _claim(name: str) -> Iterator[str | None]:
    """Yield the new name of a shard that is claimed now, or None; put it back on an early stop."""
    owner = os.getpid()
    claimed = f"{name}._{owner}_"
    with _lock(name) as mine:
        # Another thread may have claimed an older shard of that name.
        if not mine or os.path.exists(claimed):
            yield None
            return
        try:
            os.rename(name, claimed)
        except FileNotFoundError:
            yield None
            return
        try:
            yield claimed
        except BaseException:
            if os.getpid() == owner:  # not in a forked child
                _put_back(claimed, name)
            raise


@contextmanager
def _lock(name: str) -> Iterator[bool]:
    """Yield True if the file exists and no other process has locked it.

    A process number cannot distinguish a process of another container or machine from a dead one.
    A lock can, if the file system has locks, and ends with its process.
    """
    try:
        file = os.open(name, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    except OSError as error:
        raise StorageError(f"cannot claim: {error.strerror}", origin=Origin(name)) from error
    try:
        try:
            mine = flock(file, shared=False, wait=False)
        except OSError:
            mine = True  # a system without locks: the name must be enough
        yield mine
    finally:
        os.close(file)


def _put_back(claimed: str, name: str) -> None:
    """Restore the name of an unfinished shard, unless a newer shard has it by now."""
    with suppress(FileNotFoundError):
        if not os.path.exists(name):
            os.rename(claimed, name)


def _modified(name: str) -> float:
    try:
        return os.stat(name).st_mtime
    except FileNotFoundError:  # claimed by another process meanwhile
        return math.inf


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # another user's process, or not a process number: do not touch it
    return True
