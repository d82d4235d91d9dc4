"""Read from a fast server nearby: one connection, received directly into the reader's memory.

If responses begin at once and one connection delivers bytes as fast as they are read, fetching
ahead on threads only costs time: every byte is copied twice and passed between threads. If the
connection turns out to be slow, the rest is fetched ahead after all
(:mod:`penstock.storage.readers.read_ahead`).
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TypeVar

from penstock.storage.client.response import Response, TransientError
from penstock.storage.client.retry_policy import PROGRESS_BYTES
from penstock.storage.client.retrying import RemoteObject

T = TypeVar("T", bound=int | Sized)
NEAR_S = 0.008
"""A server that has ever begun a response within this time is near."""
QUICK_RATE = 200e6
"""Bytes per second of waiting. Below it, several connections may be faster than one."""
JUDGED_BYTES = 4 << 20
"""The rate is checked after this many bytes, and at the end of each response."""
FIRST_BYTES = 1 << 20
MOST_BYTES = 64 << 20
"""Ranges grow from FIRST_BYTES to MOST_BYTES: few requests in order, little waste if not."""
SKIP_BYTES = 256 << 10
PIECE_BYTES = 1 << 20
"""The most bytes that one read returns; they are allocated before the size is known."""


class SingleStream:
    """Reads an object's bytes from ``position`` on, in order, on one thread.

    If they stop, the rest is requested again. Needs a server that supports ranges.
    """

    def __init__(
        self,
        source: RemoteObject,
        position: int,
        response: Response | None = None,
        response_bytes: int = 0,
    ) -> None:
        self._source, self.position = source, position
        self._response, self._left = response, response_bytes
        self._range = response_bytes
        self._received, self._waited_s = 0, 0.0  # of the response, when its rate was last checked
        self._state = source.patience.start()

    def holds(self, position: int) -> bool:
        """Return whether to reach ``position`` by reading on from here."""
        return bool(self._source.near) and 0 <= position - self.position <= SKIP_BYTES

    def start(self) -> None:
        """Do nothing: what the server has sent waits in the connection."""

    def read(self, position: int, size: int) -> bytes:
        """Return 1 to ``size`` bytes at ``position``, which must be before the object's end."""
        self._skip_to(position)
        return self._read_some(size)

    def readinto(self, position: int, view: memoryview) -> int:
        """Read at least one byte at ``position`` into the view; return the number of bytes."""
        self._skip_to(position)
        return self._receive(lambda response: response.readinto(view[: self._left]), int)

    def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _skip_to(self, position: int) -> None:
        while self.position < position:
            self._read_some(position - self.position)

    def _read_some(self, size: int) -> bytes:
        size = min(size, PIECE_BYTES)
        return self._receive(lambda response: response.read(min(size, self._left)), len)

    def _receive(self, take: Callable[[Response], T], count: Callable[[T], int]) -> T:
        return self._source.retry(
            lambda: self._receive_once(take, count), offset=self.position, state=self._state
        )

    def _receive_once(self, take: Callable[[Response], T], count: Callable[[T], int]) -> T:
        response = self._response if self._response is not None else self._request()
        self._response = None  # dropped, unless this try succeeds
        data = take(response)
        received = count(data)
        if not received:  # some servers send less than requested
            response.close()
            if self._range - self._left < PROGRESS_BYTES:
                raise TransientError("the body was shorter than the range")
            return self._receive_once(take, count)
        self._state.record_progress(received)
        self.position += received
        self._left -= received
        if response.received - self._received >= JUDGED_BYTES or not self._left:
            self._check_rate(response)
        if self._left:
            self._response = response
        else:
            response.close()
        return data

    def _request(self) -> Response:
        size = self._source.size or 0
        wanted = min(max(8 * self._range, FIRST_BYTES), MOST_BYTES, size - self.position)
        response, self._left = self._source.request_range(self.position, wanted)
        self._range = self._left
        self._received, self._waited_s = 0, 0.0
        return response

    def _check_rate(self, response: Response) -> None:
        received = response.received - self._received
        waited_s = response.waited_s - self._waited_s
        self._received, self._waited_s = response.received, response.waited_s
        if received >= FIRST_BYTES // 2 and received < QUICK_RATE * waited_s:
            self._source.near = False
