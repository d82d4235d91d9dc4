"""Fill the cache: the thread that downloads a shard into the folder.

The bytes are appended to a file, whose length is the progress: another process can continue what a
killed one has downloaded. The file gets its final name only when it is complete and on disk.
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
from penstock.storage.cache.cache_dir import CLAIMS, CacheFolder, EntryMeta
from penstock.storage.client.checksums import Damaged
from penstock.storage.local.file_locks import flock, same_file
from penstock.storage.local.files import _sync_folder

CHUNK_BYTES = 1 << 20
STEP_BYTES = 64 << 20
"""Space is reserved in steps of this size for a shard of unknown size."""
FINISH_BYTES = 1 << 20
"""If no more than this is missing when the last reader closes, it is fetched: tars end with
padding."""
FINISH_S = 1.5
"""Maximum time that closing a shard waits for that."""


class NotCached(Exception):
    """The shard cannot be cached (no space left): read it from its source."""


class FetchThread:
    """The thread that downloads a shard into the folder. Its creator holds the download lock."""

    def __init__(
        self, folder: CacheFolder, name: str, note: EntryMeta, claim: int, source: Any, part: int
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

    def start(self) -> FetchThread:
        self.thread.start()
        return self

    @property
    def mine(self) -> bool:
        """Whether the thread runs in this process, not in its parent."""
        return self.process == os.getpid()

    def wait(self, position: int, limit_s: float = float("inf")) -> None:
        """Wait until more than ``position`` bytes have arrived, the thread ends, or time is up."""
        end = time.monotonic() + limit_s
        with self._news:
            while self.arrived <= position and not self.ended:
                left_s = end - time.monotonic()
                if left_s <= 0:
                    return
                self._news.wait(min(left_s, 1.0))

    def leave(self) -> None:
        """Remove a reader. After the last one, the rest is fetched only if it is small."""
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
        """Run the thread. It ends with the process; what has arrived so far can be used later."""
        digest = None
        try:
            digest = self._copy()
            if digest is not None:
                # Not a daemon: the process waits for it at exit, but readers do not.
                last = threading.Thread(target=self._complete, args=(digest,), daemon=False)
                last.name = self.thread.name
                last.start()
        except _WriteFailed as failed:
            self.full = failed.reason
            self._discard()
        except Damaged as exn:
            self._discard()  # before readers see the error: nobody may continue this file
            self.error = exn
        except Exception as exn:  # noqa: BLE001 - it is raised where the shard is read
            self.error = exn
        finally:
            if digest is None:
                self._release()
            self._notify_ended()

    def _release(self) -> None:
        with contextlib.suppress(Exception):
            self.source.close()
        self.folder.release(self.name, self.claim)
        CLAIMS.discard(self.part)
        os.close(self.part)

    def _notify_ended(self) -> None:
        with self._news:
            self.ended = True
            self._news.notify_all()

    def _copy(self) -> str | None:
        """Append the rest and return the SHA-256 of the shard, or None if it was stopped."""
        digest = hashlib.sha256()
        self._resume(digest)
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while not self._stop:
            count = self.source.readinto(buffer)
            if not count:
                self._check_size()
                return digest.hexdigest()
            self._reserve(self.arrived + count)
            with _catch_write_errors():
                self._check_alone()
                _write_all(self.part, buffer[:count])
            digest.update(buffer[:count])
            with self._news:
                self.arrived += count
                self._news.notify_all()
        return None

    def _resume(self, digest: Any) -> None:
        """Advance digest and source to the end of the file."""
        offset = 0
        have = getattr(self.source, "have", None)
        while offset < self.arrived and (data := os.pread(self.part, CHUNK_BYTES, offset)):
            digest.update(data)
            offset += len(data)
            if have is not None:
                have(data)
        if not offset or have is not None:
            return
        if self.source.seekable():
            self.source.seek(offset)
            return
        skipped = hashlib.sha256()
        while offset > 0 and (data := self.source.read(min(offset, CHUNK_BYTES))):
            skipped.update(data)
            offset -= len(data)
        if skipped.digest() != digest.digest():
            self._discard()
            raise StorageError(
                "the source returned other bytes than before: read it again", origin=self._origin()
            )

    def _reserve(self, wanted: int) -> None:
        """Check the size; for a shard of unknown size, reserve space before bytes are written."""
        if self.note.size_bytes is not None:
            if wanted > self.note.size_bytes:
                raise StorageError(
                    f"the source sends more than the {self.note.size_bytes} bytes it announced",
                    origin=self._origin(),
                )
            return
        if wanted > self.note.reserved:
            with _catch_write_errors():
                note = dataclasses.replace(self.note, reserved=wanted + STEP_BYTES)
                with self.folder.lock_folder():
                    if not self.folder.make_room(self.name, note.reserved):
                        raise OSError(0, "the cache is full of shards in use")
                    self.folder.write_note(self.name, note)
                self.note = note

    def _check_alone(self) -> None:
        """Raise if the file does not end where this thread stopped: another one writes to it."""
        if os.fstat(self.part).st_size != self.arrived:
            raise OSError(errno.EBUSY, "another process has written to an arriving shard")

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
            with self.folder.lock_folder():
                self._check_alone()
                if not same_file(self.part, path):
                    raise OSError(errno.ENOENT, "another process has moved an arriving shard")
                self.folder.write_note(self.name, note)
                os.rename(path, self.folder.file(self.name))
            _sync_folder(self.folder.path)
        except OSError as exn:
            self.full = exn
            self._discard()
        finally:
            self._release()

    def _discard(self) -> None:
        """Delete the file; readers continue from the source."""
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
def _catch_write_errors() -> Iterator[None]:
    try:
        yield
    except OSError as exn:
        raise _WriteFailed(exn) from exn


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]


def begin_part(folder: CacheFolder, name: str, note: EntryMeta) -> int | None:
    """Open the part file for appending, with space reserved; None if the shard is complete.

    The caller holds the download lock. Raise :class:`NotCached` if there is no space.
    """
    with folder.lock_folder():
        if os.path.exists(folder.file(name)):
            return None
        path = folder.file(name, ".part")
        known = folder.note(name)
        if known is None or known.boot != note.boot or note.version is None:
            # From before the last boot: its end may never have reached the disk. And without a
            # version, the rest may belong to another version of the object.
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
                # Readers take the last byte as the sign that all were verified: fetch it again.
                os.ftruncate(part, note.size_bytes - 1)
        except BaseException:
            os.close(part)
            if os.path.getsize(path) == 0:
                for suffix in (".part", ".json"):
                    os.unlink(folder.file(name, suffix))
            raise
        return part
