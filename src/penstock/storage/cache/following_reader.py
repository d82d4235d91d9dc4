"""A shard on its way into the cache: one thread of one process fetches it, all may read it.

The length of the file says how far it has come. So readers in any process need no word from the
one that fetches: they read what is there, and wait for more. If it was killed, one of them goes
on from the byte reached.
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
from penstock.redact import shown
from penstock.storage.urls import rewrite_url, scheme_of

from penstock.storage.cache.cache_dir import CacheFolder, Note, same_file
from penstock.storage.client.checksums import Damaged
from penstock.storage.cache.download import CHUNK_BYTES, Fetch, NotCached, begin_part
from penstock.storage.schemes import open_url
from penstock.storage.client.retry_policy import Patience
from penstock.storage.streams import Buffer

LOOK_AGAIN_S = 0.02
STALLED_S = 60.0
"""If another process fetches, but nothing comes for so long, we read from the source instead."""


class Arrival:
    """What is to arrive: one version of one shard, under one name in one folder."""

    def __init__(
        self,
        folder: CacheFolder,
        name: str,
        note: Note,
        url: str,
        checksum: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.folder, self.name, self.note, self.url = folder, name, note, url
        self.checksum, self.patience = checksum, patience

    @property
    def unknown(self) -> bool:
        """Whether the source tells nothing by which a kept copy could be compared with it."""
        piped = scheme_of(rewrite_url(self.url)) == "pipe"  # kept under the command's text
        return self.note.size_bytes is None and self.note.version is None and not piped

    def fetch(self, source: Any = None) -> Fetch | None:
        """What fetches it, not yet started; None where somebody does, or it is complete.

        ``source`` is the open source, if there is one. Raises :class:`NotCached` for want of room.
        """
        claim = self.folder.claim(self.name)
        if claim is None:
            return None
        part = None
        try:
            part = begin_part(self.folder, self.name, self.note)
            if part is not None:
                source = self.open_source() if source is None else source
                fetch = Fetch(self.folder, self.name, self.note, claim, source, part)
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
        """The source, which must still be what we began with."""
        source: Any = open_url(self.url, patience=self.patience)
        if is_other(source, self.note):
            source.close()
            raise StorageError(
                "the object was replaced while it was read: read it again", origin=Origin(self.url)
            )
        if hasattr(source, "verify_with"):
            source.verify_with(self.checksum or "declared")
        return source

    def abandoned(self) -> bool:
        """Whether nobody fetches it just now."""
        claim = self.folder.claim(self.name)
        if claim is None:
            return False
        self.folder.release(self.name, claim)
        return True

    def pause(self) -> None:
        """A moment in which others can go on."""
        _PAUSE.wait(LOOK_AGAIN_S)


_PAUSE = threading.Event()  # never set


def version_of(source: Any) -> str | None:
    """What an open source says of its version."""
    version = getattr(source, "version", None) or getattr(source, "etag", None)
    return None if version is None else str(version)


def is_other(source: Any, note: Note) -> bool:
    """Whether an open source tells a size or version that is not the note's."""
    size, version = getattr(source, "size_bytes", None), version_of(source)
    told = ((size, note.size_bytes), (version, note.version))
    return any(None not in pair and pair[0] != pair[1] for pair in told)


_TOLD: set[str] = set()


def warn_once(folder: CacheFolder, why: Exception) -> None:
    """Say, once in a process, that a cache cannot take what is read."""
    if folder.path in _TOLD:
        return
    _TOLD.add(folder.path)
    reason = getattr(why, "strerror", None) or str(why)
    warnings.warn(
        f"shards are read without the cache {folder.path}: {reason}; free some space, or give "
        "cache_size= or another cache_dir=",
        ShardWarning,
        stacklevel=4,
    )


class ArrivingShard(io.RawIOBase):
    """A shard that is read while it arrives; in the end it has read exactly the shard's bytes.

    ``read`` waits for what is not there yet. ``read_range`` does not: it asks the source.
    """

    def __init__(self, arrival: Arrival, descriptor: int, fetch: Fetch | None) -> None:
        super().__init__()
        self.name, self.size_bytes = arrival.url, arrival.note.size_bytes
        self.version = arrival.note.version
        self._arrival, self._file, self._fetch = arrival, descriptor, fetch
        self._final = arrival.folder.file(arrival.name)
        self._source: Any = None  # where we go on without the cache, or read ranges ahead of it
        self._direct = False
        self._position = 0

    @property
    def etag(self) -> str | None:
        return self.version

    @property
    def arrived(self) -> bool:
        """Whether it is complete by now, under its name in the cache."""
        return not self.closed and same_file(self._file, self._final)

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
            while self.size_bytes is None and self._there_is(1 << 62):
                pass
            offset += self.size_bytes or os.fstat(self._file).st_size
        self._position = max(offset, 0)
        if self._direct:
            self._go_direct()
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        if self.closed:
            raise ValueError(f"the stream is closed and cannot be read ({shown(self.name)})")
        if size == 0:
            return b""
        data = b""
        if not self._direct and self._there_is(self._position):
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
        """``length`` bytes from ``offset`` on, fewer only at the end; the position stays."""
        self._check_damage()
        if offset + length <= os.fstat(self._file).st_size:
            return os.pread(self._file, length, offset)
        source = self._opened_source()
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
        """The bytes of many ranges ``(offset, length)``."""
        self._check_damage()
        there = os.fstat(self._file).st_size
        if all(offset + length <= there for offset, length in ranges):
            return [os.pread(self._file, length, offset) for offset, length in ranges]
        several = getattr(self._opened_source(), "read_ranges", None)
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

    def _there_is(self, position: int) -> bool:
        """Wait until there is a byte at ``position``; False where the shard ends before it.

        Where it will never be in the cache, the source is opened, and the answer is False.
        """
        seen, since = -1, time.monotonic()
        while True:
            arrived = os.fstat(self._file).st_size
            if arrived > position:
                return True
            if self.size_bytes is not None and position >= self.size_bytes:
                return False
            if same_file(self._file, self._final):
                self.size_bytes = os.fstat(self._file).st_size
                continue
            if arrived != seen:
                seen, since = arrived, time.monotonic()
            if not self._await_more(position) or time.monotonic() - since > STALLED_S:
                self._go_direct()
                return False

    def _await_more(self, position: int) -> bool:
        """Wait a while for whoever fetches; False where nobody will ever bring it here."""
        fetch = self._fetch
        if fetch is not None and fetch.mine:
            fetch.wait(position)
            if fetch.arrived > position or not fetch.ended:
                return True
            if fetch.error is not None:
                raise fetch.error
            if fetch.full is not None:
                warn_once(self._arrival.folder, fetch.full)
                return False
        if os.fstat(self._file).st_nlink == 0:
            return False  # whoever fetched it has given up
        if self.version is None and self._arrival.abandoned():
            return False  # what we have read may not be continued by another fetch
        try:
            taken = None if self.version is None else self._arrival.fetch()
        except NotCached as exn:
            warn_once(self._arrival.folder, exn)
            return False
        if taken is not None:
            # Where the file was deleted just now, it is another one of the same bytes.
            os.dup2(taken.part, self._file, inheritable=False)
            self._fetch = taken.start()
        else:
            self._arrival.pause()
        return True

    def _go_direct(self) -> None:
        """From here on the bytes come from the source."""
        source = self._opened_source()
        if source.seekable() and (self.version is not None or self._direct):
            if hasattr(source, "have") and not self._direct:
                self._tell(source.have)
            source.seek(self._position)
        else:
            self._skip(source)
        self._direct = True

    def _tell(self, have: Callable[[bytes], None]) -> None:
        """Give the source what has arrived before our position: it sums all of the shard."""
        place = 0
        while data := os.pread(self._file, min(CHUNK_BYTES, self._position - place), place):
            have(data)
            place += len(data)

    def _skip(self, source: Any) -> None:
        """Read up to our position: a source without a version must give the bytes of before."""
        place, there = 0, min(self._position, os.fstat(self._file).st_size)
        while place < self._position:
            data = source.read(min(self._position - place, CHUNK_BYTES))
            if not data:
                break
            if data[: max(there - place, 0)] != os.pread(
                self._file, max(min(len(data), there - place), 0), place
            ):
                raise StorageError(
                    "the source gave other bytes than before: read it again",
                    origin=Origin(self._arrival.note.url, offset=place),
                )
            place += len(data)

    def _opened_source(self) -> Any:
        if self._source is None:
            self._source = self._arrival.open_source()
        return self._source
