"""Reading from servers that know no ranges: the whole body, from the first byte on.

When it breaks off, all there is to do is to ask for the whole again and skip what was read. Those
bytes are summed both times, since such servers often have no version to compare either.
"""

from __future__ import annotations

import zlib

from .fetching import Changed, Source
from .transport import Answer

SKIP_BYTES = 256 << 10


class PlainStream:
    """The object's bytes in order; ``position`` is the next one."""

    def __init__(self, source: Source, answer: Answer | None = None) -> None:
        self._source, self._answer = source, answer
        self._sum = 0
        self.position = 0

    def readinto(self, view: memoryview) -> int:
        """Some bytes; 0 only at the end of the object."""
        if self.position >= (self._source.size or 0) or not len(view):
            return 0
        return self._source.persist(lambda: self._once(view), offset=self.position)

    def skip_to(self, position: int) -> None:
        """Read on until there, and throw away."""
        view = memoryview(bytearray(SKIP_BYTES)) if position > self.position else memoryview(b"")
        while self.position < position and self.readinto(view[: position - self.position]):
            pass

    def read_at(self, offset: int, length: int) -> bytearray:
        """The bytes of a range, ahead of the position; then it is closed."""
        self.skip_to(offset)
        buffer = bytearray(length)
        view, got = memoryview(buffer), 0
        while got < length and (count := self.readinto(view[got:])):
            got += count
        self.close()
        return buffer

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
