"""Reading from servers that know no ranges: the whole body, from the first byte on.

When it breaks off, all there is to do is to ask for the whole again and skip what was read. Those
bytes are summed both times, since such servers often have no version to compare either.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from penstock.storage.client.response import Answer
from penstock.storage.client.retrying import Changed, Source

SKIP_BYTES = 256 << 10
MOST_BYTES = 1 << 20
"""The most that one read gives."""


class PlainStream:
    """The object's bytes in order; ``position`` is the next one."""

    def __init__(self, source: Source, answer: Answer | None = None) -> None:
        self._source, self._answer = source, answer
        self._sum = 0
        self._tries = source.patience.tries()
        self.position = 0

    def holds(self, position: int) -> bool:
        """Whether the bytes there are still to come."""
        return self.position <= position

    def start(self) -> None:
        """Nothing: what the server has sent waits in the connection."""

    def read(self, position: int, size: int) -> bytes:
        """Some bytes at ``position``; b"" only at the end of the object."""
        buffer = bytearray(min(size, MOST_BYTES))
        count = self.readinto(position, memoryview(buffer))
        return bytes(memoryview(buffer)[:count])

    def readinto(self, position: int, view: memoryview) -> int:
        """The same, into the reader's memory."""
        self._skip_to(position)
        return self._next(view)

    def _next(self, view: memoryview) -> int:
        if self.position >= (self._source.size or 0) or not len(view):
            return 0
        return self._source.persist(
            lambda: self._once(view), offset=self.position, tries=self._tries
        )

    def _skip_to(self, position: int) -> None:
        """Read on until there, and throw away."""
        view = memoryview(bytearray(SKIP_BYTES)) if position > self.position else memoryview(b"")
        while self.position < position and self._next(view[: position - self.position]):
            pass

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> list[bytearray]:
        """The bytes of spans (begin, end), in order and ahead of the position, in one pass."""
        data = [bytearray(end - begin) for begin, end in spans]
        for (begin, end), buffer in zip(spans, data):
            view, at = memoryview(buffer), begin
            while at < end and (count := self.readinto(at, view[at - begin :])):
                at += count
        self.close()
        return data

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def _once(self, view: memoryview) -> int:
        if self._answer is None:
            self._answer = self._again()
        answer, self._answer = self._answer, None  # dropped, unless this try succeeds
        count = answer.readinto(view)
        self._answer = answer
        self._tries.came(count)
        self._sum = zlib.crc32(view[:count], self._sum)
        self.position += count
        if self.position == self._source.size:
            self.close()
        return count

    def _again(self) -> Answer:
        """A new answer, at the byte reached."""
        answer, _ = self._source.ask_whole()
        view, left, total = memoryview(bytearray(SKIP_BYTES)), self.position, 0
        while left:
            count = answer.readinto(view[:left])
            total = zlib.crc32(view[:count], total)
            left -= count
        if total != self._sum:
            answer.close()
            raise Changed(
                "the object was replaced while it was read: it begins with other bytes now",
                origin=self._source.origin(self.position),
            )
        return answer
