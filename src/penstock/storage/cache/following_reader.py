"""Read a shard while it is downloaded into the cache by one thread of one process.

The length of the file is the progress. So readers in any process need no messages from the one that
downloads: they read what is there and wait for more. If that process is killed, one of them
continues the download.
"""

from __future__ import annotations

import io
import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import Origin, ShardWarning, StorageError
from penstock.redact import redact
from penstock.storage.cache.cache_dir import CacheFolder, EntryMeta
from penstock.storage.cache.download import CHUNK_BYTES, FetchThread, NotCached, begin_part
from penstock.storage.client.checksums import Damaged
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.local.file_locks import same_file
from penstock.storage.schemes import open_url
from penstock.storage.streams import Buffer
from penstock.storage.urls import rewrite_url, scheme_of

LOOK_AGAIN_S = 0.02
STALLED_S = 60.0
"""After this time without progress in another process, read from the source instead."""


class Download:
    """One version of one shard, to be downloaded under one name into one folder."""

    def __init__(
        self,
        folder: CacheFolder,
        name: str,
        note: EntryMeta,
        url: str,
        checksum: str | None = None,
        patience: RetryPolicy | None = None,
    ) -> None:
        self.folder, self.name, self.note, self.url = folder, name, note, url
        self.checksum, self.patience = checksum, patience

    @property
    def unknown(self) -> bool:
        """Whether the source reports nothing with which a cached copy could be compared."""
        piped = scheme_of(rewrite_url(self.url)) == "pipe"  # cached by the command's text
        return self.note.size_bytes is None and self.note.version is None and not piped

    def fetch(self, source: Any = None) -> FetchThread | None:
        """Return a thread that downloads it, not yet started; None if one runs or it is complete.

        ``source`` is the open source, if there is one. Raise :class:`NotCached` if there is no
        space.
        """
        claim = self.folder.claim(self.name)
        if claim is None:
            return None
        part = None
        try:
            part = begin_part(self.folder, self.name, self.note)
            if part is not None:
                source = self.open_source() if source is None else source
                fetch = FetchThread(self.folder, self.name, self.note, claim, source, part)
        except BaseException:
            if part is not None:
                os.close(part)
            self.folder.release(self.name, claim)
            raise
        if part is None:
            self.folder.release(self.name, claim)
            return None
        return fetch

    def open_source(self) -> Any:
        """Open the source. Raise an error if it is no longer the same version."""
        source: Any = open_url(self.url, patience=self.patience)
        if differs(source, self.note):
            source.close()
            raise StorageError(
                "the object was replaced while it was read: read it again", origin=Origin(self.url)
            )
        if hasattr(source, "verify_with"):
            source.verify_with(self.checksum or "declared")
        return source

    def is_abandoned(self) -> bool:
        """Return whether no process downloads it at the moment."""
        claim = self.folder.claim(self.name)
        if claim is None:
            return False
        self.folder.release(self.name, claim)
        return True

    def pause(self) -> None:
        """Wait for a moment, so that others can make progress."""
        _PAUSE.wait(LOOK_AGAIN_S)


_PAUSE = threading.Event()  # never set


def get_version(source: Any) -> str | None:
    """Return the version that an open source reports."""
    version = getattr(source, "version", None) or getattr(source, "etag", None)
    return None if version is None else str(version)


def differs(source: Any, note: EntryMeta) -> bool:
    """Return whether an open source reports another size or version than the metadata."""
    size, version = getattr(source, "size_bytes", None), get_version(source)
    pairs = ((size, note.size_bytes), (version, note.version))
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


_WARNED: set[str] = set()


def warn_once(folder: CacheFolder, why: Exception) -> None:
    """Warn, once per process, that shards are read without the cache."""
    if folder.path in _WARNED:
        return
    _WARNED.add(folder.path)
    reason = getattr(why, "strerror", None) or str(why)
    warnings.warn(
        f"shards are read without the cache {folder.path}: {reason}; free some space, or give "
        "cache_size= or another cache_dir=",
        ShardWarning,
        stacklevel=4,
    )


class FollowingReader(io.RawIOBase):
    """Reads a shard while it is downloaded; the result is exactly the shard's bytes.

    ``read`` waits for bytes that have not arrived. ``read_range`` reads them from the source.
    """

    def __init__(self, download: Download, descriptor: int, fetch: FetchThread | None) -> None:
        super().__init__()
        self.name, self.size_bytes = download.url, download.note.size_bytes
        self.version = download.note.version
        self._download, self._file, self._fetch = download, descriptor, fetch
        self.path = download.folder.file(download.name)
        self._source: Any = None  # for reading without the cache, and for ranges ahead of it
        self._direct = False
        self._position = 0

    @property
    def etag(self) -> str | None:
        return self.version

    @property
    def arrived(self) -> bool:
        """Whether the shard is complete, under its final name in the cache."""
        return not self.closed and same_file(self._file, self.path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            while self.size_bytes is None and self._wait_for(1 << 62):
                pass
            offset += self.size_bytes or os.fstat(self._file).st_size
        self._position = max(offset, 0)
        if self._direct:
            self._switch_to_source()
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        if self.closed:
            raise ValueError(f"the stream is closed and cannot be read ({redact(self.name)})")
        if size == 0:
            return b""
        data = b""
        if not self._direct and self._wait_for(self._position):
            data = os.pread(self._file, size, self._position)
        elif self._direct:
            data = self._source.read(size)
        self._position += len(data)
        return data

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read_range(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on, fewer only at the end; keep the position."""
        self._check_damage()
        if offset + length <= os.fstat(self._file).st_size:
            return os.pread(self._file, length, offset)
        source = self._get_source()
        if hasattr(source, "read_range"):
            data: bytes = source.read_range(offset, length)
            return data
        before, pieces = self._position, []
        self._position = offset
        while length > 0 and (piece := self.read(length)):
            pieces.append(piece)
            length -= len(piece)
        self._position = before
        return b"".join(pieces)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of many ranges ``(offset, length)``."""
        self._check_damage()
        there = os.fstat(self._file).st_size
        if all(offset + length <= there for offset, length in ranges):
            return [os.pread(self._file, length, offset) for offset, length in ranges]
        several = getattr(self._get_source(), "read_ranges", None)
        if several is None:
            return [self.read_range(offset, length) for offset, length in ranges]
        data: list[bytes] = several(ranges)
        return data

    def _check_damage(self) -> None:
        if self._fetch is not None and isinstance(self._fetch.error, Damaged):
            raise self._fetch.error

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._fetch is not None:
            self._fetch.leave()
        if self._source is not None:
            self._source.close()
        os.close(self._file)

    def _wait_for(self, position: int) -> bool:
        """Wait for the byte at ``position``; return False if the shard ends before it.

        If it will never be in the cache, switch to the source and return False.
        """
        seen, since = -1, time.monotonic()
        while True:
            arrived = os.fstat(self._file).st_size
            if arrived > position:
                return True
            if self.size_bytes is not None and position >= self.size_bytes:
                return False
            if same_file(self._file, self.path):
                self.size_bytes = os.fstat(self._file).st_size
                continue
            if arrived != seen:
                seen, since = arrived, time.monotonic()
            if not self._await_more(position) or time.monotonic() - since > STALLED_S:
                self._switch_to_source()
                return False

    def _await_more(self, position: int) -> bool:
        """Wait a while for the download; return False if it will not be completed here."""
        fetch = self._fetch
        if fetch is not None and fetch.mine:
            fetch.wait(position)
            if fetch.arrived > position or not fetch.ended:
                return True
            if fetch.error is not None:
                raise fetch.error
            if fetch.full is not None:
                warn_once(self._download.folder, fetch.full)
                return False
        if os.fstat(self._file).st_nlink == 0:
            return False  # the download was discarded
        if self.version is None and self._download.is_abandoned():
            return False  # without a version, another download may return other bytes
        try:
            taken = None if self.version is None else self._download.fetch()
        except NotCached as exn:
            warn_once(self._download.folder, exn)
            return False
        if taken is not None:
            # If the file has just been deleted, this is a new one with the same bytes.
            os.dup2(taken.part, self._file, inheritable=False)
            self._fetch = taken.start()
        else:
            self._download.pause()
        return True

    def _switch_to_source(self) -> None:
        """Read from the source, from the position on."""
        source = self._get_source()
        if source.seekable() and (self.version is not None or self._direct):
            if hasattr(source, "have") and not self._direct:
                self._feed(source.have)
            source.seek(self._position)
        else:
            self._skip(source)
        self._direct = True

    def _feed(self, have: Callable[[bytes], None]) -> None:
        """Pass the bytes before the position to the source, which checks the whole shard."""
        offset = 0
        while data := os.pread(self._file, min(CHUNK_BYTES, self._position - offset), offset):
            have(data)
            offset += len(data)

    def _skip(self, source: Any) -> None:
        """Read up to the position: a source without a version must return the same bytes."""
        offset, cached = 0, min(self._position, os.fstat(self._file).st_size)
        while offset < self._position:
            data = source.read(min(self._position - offset, CHUNK_BYTES))
            if not data:
                break
            if data[: max(cached - offset, 0)] != os.pread(
                self._file, max(min(len(data), cached - offset), 0), offset
            ):
                raise StorageError(
                    "the source returned other bytes than before: read it again",
                    origin=Origin(self._download.note.url, offset=offset),
                )
            offset += len(data)

    def _get_source(self) -> Any:
        if self._source is None:
            self._source = self._download.open_source()
        return self._source
