"""A remote object as a file: sequential reads are fetched ahead, others are read by range.

During long sequential reads several requests are in flight ahead of the reader, within a memory
limit, so that one shard uses the whole bandwidth in spite of latency. The first response reports
the size; an object that fits into it costs one request. Every returned byte has been checked to
belong to the same version of the object, at the right offset.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from penstock import env
from penstock.errors import PipelineError
from penstock.storage.client.checksums import (
    FROM_STORE,
    Damaged,
    Digest,
    check_checksum,
    make_digest,
)
from penstock.storage.client.response import Response
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.client.retrying import Changed, MissingObject, Refused, RemoteObject, exchange
from penstock.storage.client.store import Store
from penstock.storage.readers.rangeless import RangelessReader
from penstock.storage.readers.read_ahead import ReadAhead, fetch_all
from penstock.storage.readers.single_stream import FIRST_BYTES, NEAR_S, SingleStream
from penstock.storage.streams import Buffer

__all__ = ["Changed", "Damaged", "MissingObject", "Refused", "RemoteFile", "exchange"]

AHEAD_BYTES = 64 << 20
PART_BYTES = 8 << 20
CONNECTIONS = 8
PROBE_BYTES = 64 << 10
"""Length of the first request if only the size is needed so far; else FIRST_BYTES."""
GAP_BYTES = 64 << 10
"""Ranges that are closer than this are read in one request: cheaper than a round trip."""

_inherited: list[SingleStream | RangelessReader | None] = []


class RemoteFile(io.RawIOBase):
    """An object of a store, open for reading. The first use sends the first request.

    ``read(n)`` returns 1 to ``n`` bytes, ``b""`` only at the end. ``ahead_bytes`` limits the memory
    of what is fetched ahead, ``part_bytes`` is the size of one request, ``connections`` the number
    of requests in flight. Without ``ahead_bytes``, a fast server nearby is read over one
    connection, directly into the reader's memory, and every other with 64 MiB. ``checksum`` (see
    :mod:`penstock.storage.client.checksums`; default ``PENSTOCK_CHECKSUM``) is verified by a read
    from the first byte to the last.

    Failures raise a :class:`~penstock.errors.StorageError`: at once if a retry would not help
    (:class:`Refused`, :class:`MissingObject`), else when the retries of ``patience`` are used up.
    An open file may be used after a fork: each process then reads over separate connections.
    """

    _reader: ReadAhead | SingleStream | RangelessReader | None = (
        None  # on the class: close() runs also if __init__ raises
    )

    def __init__(
        self,
        store: Store,
        url: str,
        *,
        patience: RetryPolicy | None = None,
        ahead_bytes: int | None = None,
        part_bytes: int = PART_BYTES,
        connections: int = CONNECTIONS,
        checksum: str | None = None,
    ) -> None:
        super().__init__()
        self._may_be_near = ahead_bytes is None
        ahead_bytes = AHEAD_BYTES if ahead_bytes is None else ahead_bytes
        if min(ahead_bytes, part_bytes, connections) < 1:
            raise PipelineError("ahead_bytes, part_bytes and connections must be at least 1")
        self.name = url
        self._source = RemoteObject(store, url, patience or RetryPolicy())
        self._ahead, self._connections = ahead_bytes, connections
        self._part = min(part_bytes, max(ahead_bytes // 2, 1))
        self._position = 0
        self._digest: Digest | None = None
        self._digested = 0
        self._damaged: Damaged | None = None
        self._checksum: str | None = None
        self.verify_with(checksum or env.text("PENSTOCK_CHECKSUM"))
        self._owner = os.getpid()

    @property
    def size_bytes(self) -> int:
        """The size of the object; the first use sends a request."""
        if self._source.size is None:
            self._begin(PROBE_BYTES)
        return self._source.size or 0

    @property
    def version(self) -> str | None:
        """The version of the object (its ETag or generation), if the server reports one."""
        if self._source.size is None:
            self._begin(PROBE_BYTES)
        return self._source.version

    etag = version

    def verify_with(self, checksum: str | None) -> None:
        """Verify this checksum, unless one is set; a value replaces "declared" and "etag"."""
        if checksum is None:
            return
        check_checksum(checksum)
        if self._checksum is None or (self._checksum in FROM_STORE and checksum not in FROM_STORE):
            self._checksum = checksum

    def have(self, data: bytes) -> None:
        """Skip these bytes at the position, which the caller has from an earlier read."""
        if self._at_data():
            self._advance(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position. It costs a request only when bytes are read there."""
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        if base is None:
            base = self.size_bytes
        if base + offset < 0:
            raise ValueError(f"there is no byte {base + offset} to seek to")
        self._position = base + offset
        if self._position == 0:
            self._damaged = None  # read again, it may be right
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        if size == 0 or not self._at_data():
            return b""
        data = self._find_reader().read(self._position, size)
        self._advance(data)
        return data

    def readall(self) -> bytes:
        """Return all bytes from the position to the end."""
        self._check_open()
        pieces = []
        while piece := self.read(self._part):
            pieces.append(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        if not self._at_data() or not len(view):
            return 0
        count = self._find_reader().readinto(self._position, view)
        self._advance(view[:count])
        return count

    def start(self) -> None:
        """Start to fetch the bytes at the position; they wait in memory."""
        if self._at_data():
            self._find_reader().start()

    def read_range(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on, fewer only at the end; keep the position."""
        return self.read_ranges([(offset, length)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of many ranges ``(offset, length)``, fetched several at a time.

        Neighbouring ranges are read in one request. Safe to call from several threads.
        """
        self._check_open()
        if any(offset < 0 or length < 0 for offset, length in ranges):
            raise ValueError("ranges begin at byte 0 or later and are not negative")
        self._reset_after_fork()
        if not any(length for _, length in ranges):
            return [b""] * len(ranges)
        size = self.size_bytes
        spans = _spans(ranges, size)
        if self._source.ranged:
            options = {"part_bytes": self._part, "connections": self._connections}
            data = fetch_all(self._source, spans, **options)
        else:
            data = RangelessReader(self._source).read_spans(spans)
        return [_cut(offset, min(offset + length, size), spans, data) for offset, length in ranges]

    def close(self) -> None:
        if not self.closed:
            super().close()  # first, or a thread that is reading would start a new reader
            self._drop_reader()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"the file is closed ({self._source.origin()})")

    def _reset_after_fork(self) -> None:
        """In a forked process, drop the parent's threads, locks and connections."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            if not isinstance(self._reader, ReadAhead):
                _inherited.append(self._reader)  # never closed: its lock may have been held
            self._reader = None

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and self._owner == os.getpid():
            reader.close()

    def _at_data(self) -> bool:
        """Return whether the position is before the end."""
        self._check_open()
        self._reset_after_fork()
        if self._damaged is not None:
            raise self._damaged
        if self._source.size is None:
            self._begin(FIRST_BYTES)
        if not self._source.size and self._checksum is not None:
            self._verify(b"")  # nothing else would: there are no bytes to read
        return self._position < (self._source.size or 0)

    def _advance(self, data: bytes | memoryview) -> None:
        if self._checksum is not None:
            self._verify(data)
        self._position += len(data)

    def _begin(self, first_bytes: int) -> None:
        """Send the first request: its response reports the size, and its body is the first part."""
        self._check_open()
        self._reset_after_fork()
        source, begin = self._source, self._position
        length = min(first_bytes, self._part)
        response, count = source.retry(lambda: source.request_range(begin, length), offset=begin)
        source.near = self._may_be_near and response.latency_s <= NEAR_S
        if not source.ranged or begin < (source.size or 0):
            self._reader = self._make_reader(begin, response, count)
        else:
            response.close()

    def _make_reader(
        self, begin: int, response: Response | None = None, count: int = 0
    ) -> ReadAhead | SingleStream | RangelessReader:
        if not self._source.ranged:
            return RangelessReader(self._source, response)
        if self._source.near:
            return SingleStream(self._source, begin, response, count)
        return ReadAhead(
            self._source,
            begin,
            ahead_bytes=self._ahead,
            part_bytes=self._part,
            connections=self._connections,
            response=response,
            response_bytes=count,
        )

    def _find_reader(self) -> ReadAhead | SingleStream | RangelessReader:
        """Return the reader of the bytes at the position; a new one if necessary."""
        reader = self._reader
        if reader is None or not reader.holds(self._position):
            self._drop_reader()
            reader = self._reader = self._make_reader(self._position)
            if self.closed:  # by another thread, meanwhile
                self._drop_reader()
                self._check_open()
        return reader

    def _verify(self, data: bytes | memoryview) -> None:
        if self._position == 0:
            self._digest, self._digested = None, 0  # from the start, perhaps again
        if self._position != self._digested:
            return  # read out of order: no checksum of the whole object
        if self._digest is None:
            source = self._source
            etag = None if source.encrypted else source.version
            expected = make_digest(self._checksum or "", source.declared, etag)
            self._checksum, self._digest = expected
            if self._digest is None:
                return
        self._digest.update(data)
        self._digested += len(data)
        if self._digested == self.size_bytes:
            kind, _, wanted = (self._checksum or "").partition(":")
            found = self._digest.hexdigest()
            if found != wanted.lower():
                self._damaged = Damaged(
                    f"the bytes are damaged: their {kind} is {found}, not {wanted}",
                    origin=self._source.origin(),
                )
                raise self._damaged


def _spans(ranges: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the spans (begin, end) to fetch for the ranges: sorted, neighbours merged.

    >>> _spans([(500, 10), (0, 10), (999_000, 10), (10, 5)], 10**9)
    [(0, 510), (999000, 999010)]
    """
    spans: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        end = min(offset + length, size)
        if offset >= end:
            continue
        if spans and offset <= spans[-1][1] + GAP_BYTES:
            begin = spans[-1][0]
            spans[-1] = (begin, max(end, spans[-1][1]))
        else:
            spans.append((offset, end))
    return spans


def _cut(offset: int, end: int, spans: list[tuple[int, int]], data: list[Any]) -> bytes:
    if offset >= end:
        return b""
    for (begin, stop), piece in zip(spans, data):
        if begin <= offset and end <= stop:
            return bytes(memoryview(piece)[offset - begin : end - begin])
    raise AssertionError("every range lies in a span")
