"""Read from servers without support for ranges: the whole body, from the first byte on.

If the body breaks off, the whole object is requested again and what was read is skipped. The
checksum of those bytes is compared, because such servers often have no version to compare.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from penstock.storage.client.response import Response
from penstock.storage.client.retrying import Changed, RemoteObject

SKIP_BYTES = 256 << 10
MOST_BYTES = 1 << 20
"""The most that one read returns."""


class RangelessReader:
    """Reads an object's bytes in order; ``position`` is the offset of the next one."""

    def __init__(self, source: RemoteObject, response: Response | None = None) -> None:
        self._source, self._response = source, response
        self._crc32 = 0
        self._state = source.patience.start()
        self.position = 0

    def holds(self, position: int) -> bool:
        """Return whether the bytes at ``position`` are still ahead."""
        return self.position <= position

    def start(self) -> None:
        """Do nothing: what the server has sent waits in the connection."""

    def read(self, position: int, size: int) -> bytes:
        """Return some bytes at ``position``; b"" only at the end of the object."""
        buffer = bytearray(min(size, MOST_BYTES))
        count = self.readinto(position, memoryview(buffer))
        return bytes(memoryview(buffer)[:count])

    def readinto(self, position: int, view: memoryview) -> int:
        """Read some bytes at ``position`` into the view; return 0 only at the end."""
        self._skip_to(position)
        return self._read_next(view)

    def _read_next(self, view: memoryview) -> int:
        if self.position >= (self._source.size or 0) or not len(view):
            return 0
        return self._source.retry(
            lambda: self._read_once(view), offset=self.position, state=self._state
        )

    def _skip_to(self, position: int) -> None:
        """Read and discard bytes up to ``position``."""
        view = memoryview(bytearray(SKIP_BYTES)) if position > self.position else memoryview(b"")
        while self.position < position and self._read_next(view[: position - self.position]):
            pass

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> list[bytearray]:
        """Return the bytes of spans (begin, end), sorted and ahead of the position, in one pass."""
        data = [bytearray(end - begin) for begin, end in spans]
        for (begin, end), buffer in zip(spans, data):
            view, at = memoryview(buffer), begin
            while at < end and (count := self.readinto(at, view[at - begin :])):
                at += count
        self.close()
        return data

    def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _read_once(self, view: memoryview) -> int:
        if self._response is None:
            self._response = self._reopen()
        response, self._response = self._response, None  # dropped, unless this try succeeds
        count = response.readinto(view)
        self._response = response
        self._state.record_progress(count)
        self._crc32 = zlib.crc32(view[:count], self._crc32)
        self.position += count
        if self.position == self._source.size:
            self.close()
        return count

    def _reopen(self) -> Response:
        """Return a new response, read up to the position."""
        response, _ = self._source.request_whole()
        view, left, crc32 = memoryview(bytearray(SKIP_BYTES)), self.position, 0
        while left:
            count = response.readinto(view[:left])
            crc32 = zlib.crc32(view[:count], crc32)
            left -= count
        if crc32 != self._crc32:
            response.close()
            raise Changed(
                "the object was replaced while it was read: it begins with other bytes now",
                origin=self._source.origin(self.position),
            )
        return response
