"""A remote object as a file: read on with ranges that are fetched ahead, or anywhere by range.

Large sequential reads keep several requests under way before the reader, within a memory bound, so
that one shard fills the line in spite of its latency. The first answer tells the size; an object
that fits into it costs that one request. Every byte handed out has been checked to be of the same
version of the object, and in its place.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

from penstock import env
from penstock.errors import PipelineError

from penstock.storage.client.response import Answer
from penstock.storage.client.checksums import ASKED, Damaged, Digest, check_form, digest_for
from penstock.storage.client.retrying import Changed, MissingObject, Refused, Source, exchange
from penstock.storage.client.retry_policy import Patience
from penstock.storage.readers.rangeless import PlainStream
from penstock.storage.client.store import Store
from penstock.storage.readers.single_stream import FIRST_BYTES, NEAR_S, Straight
from penstock.storage.streams import Buffer
from penstock.storage.readers.read_ahead import Window, fetch_all

__all__ = ["Changed", "Damaged", "MissingObject", "Refused", "RemoteFile", "exchange"]

AHEAD_BYTES = 64 << 20
PART_BYTES = 8 << 20
CONNECTIONS = 8
PROBE_BYTES = 64 << 10
"""The first request asks for so much where only the size is wanted as yet, else FIRST_BYTES."""
GAP_BYTES = 64 << 10
"""Ranges nearer than this to each other are read in one request: cheaper than a round trip."""

_inherited: list[Straight | PlainStream | None] = []


class RemoteFile(io.RawIOBase):
    """An object of a store, open for reading; nothing is asked of the server before the first use.

    ``read(n)`` gives 1 to ``n`` bytes, ``b""`` only at the end. ``ahead_bytes`` bounds the memory
    of what is fetched ahead, ``part_bytes`` is the size of one request, ``connections`` how many
    are under way at a time. Without ``ahead_bytes``, a server that is near and quick is read over
    one connection, straight to the reader, and every other as with 64 MiB. ``checksum``
    (see :mod:`penstock.storage.client.checksums`; else what ``PENSTOCK_CHECKSUM`` says) is verified by a
    read from the first byte to the last.

    What cannot be read is a :class:`~penstock.errors.StorageError`, at once where trying again
    would not help (:class:`Refused`, :class:`MissingObject`), else when ``patience`` has ended.
    An open file may be used after a fork: each process then reads over connections of its own.
    """

    _reader: Window | Straight | PlainStream | None = None  # also where arguments are refused

    def __init__(
        self,
        store: Store,
        url: str,
        *,
        patience: Patience | None = None,
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
        self._source = Source(store, url, patience or Patience())
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
        """The size of the object; the first use asks the server."""
        if self._source.size is None:
            self._begin(PROBE_BYTES)
        return self._source.size or 0

    @property
    def version(self) -> str | None:
        """What tells this version of the object from others, where the server has such a thing."""
        if self._source.size is None:
            self._begin(PROBE_BYTES)
        return self._source.version

    etag = version

    def verify_with(self, checksum: str | None) -> None:
        """Verify this checksum, unless one is told already. What the store tells comes last."""
        if checksum is None:
            return
        check_form(checksum)
        if self._checksum is None or (self._checksum in ASKED and checksum not in ASKED):
            self._checksum = checksum

    def have(self, data: bytes) -> None:
        """Go on behind these bytes at the position, which the caller has from an earlier read."""
        if self._at_data():
            self._moved(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to another byte. It costs a request only when bytes are read there."""
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        if base is None:
            base = self.size_bytes
        if base + offset < 0:
            raise ValueError(f"there is no byte {base + offset} to seek to")
        self._position = base + offset
        if self._position == 0:
            self._damaged = None  # read anew, it may be right
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        if size == 0 or not self._at_data():
            return b""
        data = self._here().read(self._position, size)
        self._moved(data)
        return data

    def readall(self) -> bytes:
        """Everything from here to the end."""
        self._check_open()
        pieces = []
        while piece := self.read(self._part):
            pieces.append(piece)
        return b"".join(pieces)

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        if not self._at_data() or not len(view):
            return 0
        count = self._here().readinto(self._position, view)
        self._moved(view[:count])
        return count

    def start(self) -> None:
        """Ask for the beginning, or the bytes at the position, now; what comes waits in memory."""
        if self._at_data():
            self._here().start()

    def read_range(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on, fewer only at the end; the position stays."""
        return self.read_ranges([(offset, length)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of many ranges ``(offset, length)``, fetched several at a time.

        Neighbouring ranges are read in one request. Safe to call from several threads.
        """
        self._check_open()
        if any(offset < 0 or length < 0 for offset, length in ranges):
            raise ValueError("ranges begin at byte 0 or later and are not negative")
        self._adopt()
        if not any(length for _, length in ranges):
            return [b""] * len(ranges)
        size = self.size_bytes
        spans = _spans(ranges, size)
        if self._source.ranged:
            options = {"part_bytes": self._part, "connections": self._connections}
            data = fetch_all(self._source, spans, **options)
        else:
            data = PlainStream(self._source).read_spans(spans)
        return [_cut(offset, min(offset + length, size), spans, data) for offset, length in ranges]

    def close(self) -> None:
        if not self.closed:
            super().close()  # first, or a thread that reads just now would begin anew
            self._drop()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"the file is closed ({self._source.origin()})")

    def _adopt(self) -> None:
        """In a forked process, forget the parent's threads, locks and connections."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            if not isinstance(self._reader, Window):
                _inherited.append(self._reader)  # its lock may have been held: not even closed
            self._reader = None

    def _drop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and self._owner == os.getpid():
            reader.close()

    def _at_data(self) -> bool:
        """Whether there are bytes at the position."""
        self._check_open()
        self._adopt()
        if self._damaged is not None:
            raise self._damaged
        if self._source.size is None:
            self._begin(FIRST_BYTES)
        if not self._source.size and self._checksum is not None:
            self._verify(b"")  # nothing else would: there are no bytes to read
        return self._position < (self._source.size or 0)

    def _moved(self, data: bytes | memoryview) -> None:
        if self._checksum is not None:
            self._verify(data)
        self._position += len(data)

    def _begin(self, first_bytes: int) -> None:
        """The first answer: it tells the size, and its body is the first part."""
        self._check_open()
        self._adopt()
        source, begin = self._source, self._position
        length = min(first_bytes, self._part)
        answer, count = source.persist(lambda: source.ask(begin, length), offset=begin)
        source.near = self._may_be_near and answer.latency_s <= NEAR_S
        if not source.ranged or begin < (source.size or 0):
            self._reader = self._new_reader(begin, answer, count)
        else:
            answer.close()

    def _new_reader(
        self, begin: int, answer: Answer | None = None, count: int = 0
    ) -> Window | Straight | PlainStream:
        if not self._source.ranged:
            return PlainStream(self._source, answer)
        if self._source.near:
            return Straight(self._source, begin, answer, count)
        return Window(
            self._source,
            begin,
            ahead_bytes=self._ahead,
            part_bytes=self._part,
            connections=self._connections,
            answer=answer,
            answer_bytes=count,
        )

    def _here(self) -> Window | Straight | PlainStream:
        """What brings the bytes at the position."""
        reader = self._reader
        if reader is None or not reader.holds(self._position):
            self._drop()
            reader = self._reader = self._new_reader(self._position)
            if self.closed:  # by another thread, just now
                self._drop()
                self._check_open()
        return reader

    def _verify(self, data: bytes | memoryview) -> None:
        if self._position == 0:
            self._digest, self._digested = None, 0  # from the beginning, perhaps once more
        if self._position != self._digested:
            return  # read with jumps: there is no sum over all of it
        if self._digest is None:
            source = self._source
            etag = None if source.encrypted else source.version
            told = digest_for(self._checksum or "", source.declared, etag)
            self._checksum, self._digest = told
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
    """What to fetch for the ranges: begin and end, in order, neighbours merged.

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
