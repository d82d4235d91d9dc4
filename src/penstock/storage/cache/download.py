"""Filling the cache: the thread that brings a shard into the folder, byte by byte from its source.

The bytes are appended to a file, and its length is how far it has come: what a killed process has
fetched, another one can use. Only when all of it is there, and on the disk, does it get its name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from penstock.errors import Origin, StorageError

from penstock.storage.cache.cache_dir import CLAIMS, CacheFolder, Note, same_file
from penstock.storage.client.checksums import Damaged
from penstock.storage.local.files import _sync_folder
from penstock.storage.local.file_locks import flock

CHUNK_BYTES = 1 << 20
STEP_BYTES = 64 << 20
"""Room is taken in such steps for a shard whose size nobody knows."""
FINISH_BYTES = 1 << 20
"""If no more is missing when the last reader leaves, it is fetched: tars end with padding."""
FINISH_S = 1.5
"""But who closes a shard waits no longer than this for it."""


class NotCached(Exception):
    """The shard cannot be kept (no space left): it is to be read from its source."""


class Fetch:
    """The thread that brings a shard into the folder. Made by who holds the claim."""

    def __init__(
        self, folder: CacheFolder, name: str, note: Note, claim: int, source: Any, part: int
    ) -> None:
        self.folder, self.name, self.note, self.claim = folder, name, note, claim
        self.source, self.part, self.process = source, part, os.getpid()
        self.error: Exception | None = None
        self.full: OSError | None = None
        self.ended = False  # no more data will come from here
        self.arrived = os.fstat(part).st_size
        CLAIMS.add(part)
        self._news = threading.Condition()
        self._readers = 1
        self._stop = False
        self.thread = threading.Thread(target=self._run, name="penstock-cache", daemon=True)

    def start(self) -> Fetch:
        self.thread.start()
        return self

    @property
    def mine(self) -> bool:
        """Whether its thread is in this process, not in the one that forked it."""
        return self.process == os.getpid()

    def wait(self, position: int, limit_s: float = float("inf")) -> None:
        """Until there is more than ``position`` bytes, or no more will come, or time is up."""
        end = time.monotonic() + limit_s
        with self._news:
            while self.arrived <= position and not self.ended:
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return
                self._news.wait(min(left_s, 1.0))

    def leave(self) -> None:
        """One reader less. Without any, the rest is fetched only if it is little."""
        if not self.mine:
            return
        with self._news:
            self._readers -= 1
            if self._readers > 0:
                return
            size = self.note.size_bytes
            if size is None or size - self.arrived > FINISH_BYTES:
                self._stop = True
                return
        self.wait(size, FINISH_S)
        self._stop = True

    def _run(self) -> None:
        """The thread. It ends with the process: what has come so far can be used later."""
        digest = None
        try:
            digest = self._copy()
            if digest is not None:
                # This one the process waits for at its end, and the readers need not.
                last = threading.Thread(target=self._complete, args=(digest,), daemon=False)
                last.name = self.thread.name
                last.start()
        except _WriteFailed as failed:
            self.full = failed.reason
            self._discard()
        except Damaged as exn:
            self.error = exn
            self._discard()  # nobody may go on behind it
        except Exception as exn:  # noqa: BLE001 - it is raised where the shard is read
            self.error = exn
        finally:
            if digest is None:
                self._let_go()
            self._end()

    def _let_go(self) -> None:
        with contextlib.suppress(Exception):
            self.source.close()
        self.folder.release(self.name, self.claim)
        CLAIMS.discard(self.part)
        os.close(self.part)

    def _end(self) -> None:
        with self._news:
            self.ended = True
            self._news.notify_all()

    def _copy(self) -> str | None:
        """Append the rest; its digest comes back, or None when it was stopped."""
        digest = hashlib.sha256()
        self._go_on(digest)
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while not self._stop:
            count = self.source.readinto(buffer)
            if not count:
                self._check_size()
                return digest.hexdigest()
            self._have_room(self.arrived + count)
            with _writing():
                self._check_alone()
                _write_all(self.part, buffer[:count])
            digest.update(buffer[:count])
            with self._news:
                self.arrived += count
                self._news.notify_all()
        return None

    def _go_on(self, digest: Any) -> None:
        """Bring digest and source to where the file ends."""
        place = 0
        have = getattr(self.source, "have", None)
        while place < self.arrived and (data := os.pread(self.part, CHUNK_BYTES, place)):
            digest.update(data)
            place += len(data)
            if have is not None:
                have(data)
        if not place or have is not None:
            return
        if self.source.seekable():
            self.source.seek(place)
            return
        skipped = hashlib.sha256()
        while place > 0 and (data := self.source.read(min(place, CHUNK_BYTES))):
            skipped.update(data)
            place -= len(data)
        if skipped.digest() != digest.digest():
            self._discard()
            raise StorageError(
                "the source gave other bytes than before: read it again", origin=self._origin()
            )

    def _have_room(self, wanted: int) -> None:
        """For a shard of unknown size: take room before the bytes are written."""
        if self.note.size_bytes is not None:
            if wanted > self.note.size_bytes:
                raise StorageError(
                    f"the source gives more than the {self.note.size_bytes} bytes it announced",
                    origin=self._origin(),
                )
            return
        if wanted > self.note.reserved:
            with _writing():
                note = dataclasses.replace(self.note, reserved=wanted + STEP_BYTES)
                with self.folder.guarded():
                    if not self.folder.make_room(self.name, note.reserved):
                        raise OSError(0, "the cache is full of shards in use")
                    self.folder.write_note(self.name, note)
                self.note = note

    def _check_alone(self) -> None:
        """The file must end where we have brought it: else somebody else writes to it."""
        if os.fstat(self.part).st_size != self.arrived:
            raise OSError(errno.EBUSY, "somebody else has written to an arriving shard")

    def _check_size(self) -> None:
        size = self.note.size_bytes
        if size is not None and size != self.arrived:
            raise StorageError(
                f"the source ended after {self.arrived} of {size} bytes", origin=self._origin()
            )

    def _complete(self, digest: str) -> None:
        note = dataclasses.replace(self.note, size_bytes=self.arrived, sha256=digest, reserved=0)
        try:
            os.fsync(self.part)
            path = self.folder.file(self.name, ".part")
            with self.folder.guarded():
                self._check_alone()
                if not same_file(self.part, path):
                    raise OSError(errno.ENOENT, "somebody else has moved an arriving shard")
                self.folder.write_note(self.name, note)
                os.rename(path, self.folder.file(self.name))
            _sync_folder(self.folder.path)
        except OSError as exn:
            self.full = exn
            self._discard()
        finally:
            self._let_go()

    def _discard(self) -> None:
        """Give the space back; readers go on from the source."""
        for suffix in (".part", ".json"):
            with contextlib.suppress(OSError):
                os.unlink(self.folder.file(self.name, suffix))

    def _origin(self) -> Origin:
        return Origin(self.note.url, offset=self.arrived)


class _WriteFailed(Exception):
    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as exn:
        raise _WriteFailed(exn) from exn


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]


def begin_part(folder: CacheFolder, name: str, note: Note) -> int | None:
    """The part file, open for appending, with room for all of it; None where it is complete.

    Who calls holds the claim. Raises :class:`NotCached` where there is no room.
    """
    with folder.guarded():
        if os.path.exists(folder.file(name)):
            return None
        path = folder.file(name, ".part")
        known = folder.note(name)
        if known is None or known.boot != note.boot or note.version is None:
            # Of an earlier start of the machine: its end may never have reached the disk. And
            # without a version nobody can say whether the rest belongs to it.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        wanted = note.size_bytes if note.size_bytes is not None else STEP_BYTES
        if not folder.make_room(name, wanted):
            raise NotCached("all other shards are in use, or it is larger than the cache")
        folder.write_note(name, dataclasses.replace(note, reserved=wanted))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        part = os.open(path, flags, 0o666)
        try:
            missing = wanted - os.fstat(part).st_size
            space = os.fstatvfs(part)
            if note.size_bytes is not None and space.f_bavail * space.f_frsize < missing:
                raise NotCached("the disk is full")
            flock(part, shared=True, wait=True)
            if note.size_bytes and missing <= 0:
                # Its last byte is what tells readers that all were found right: it comes again.
                os.ftruncate(part, note.size_bytes - 1)
        except BaseException:
            os.close(part)
            if os.path.getsize(path) == 0:
                for suffix in (".part", ".json"):
                    os.unlink(folder.file(name, suffix))
            raise
        return part
