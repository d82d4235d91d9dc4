"""An HTTP response whose body is read as it arrives, and the errors that a retry may cure.

A body that ends early, stalls or trickles raises a :class:`TransientError`; it is never taken for
a complete one.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import io
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
)

from penstock.storage.client.retry_policy import RetryPolicy, ThroughputMonitor

PAGE_BYTES = 64 << 10
"""The part of an error page that is read."""


class TransientError(Exception):
    """A failure that a retry may cure."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unreachable(TransientError):
    """No connection to the server. ``first``: it has never responded to this process."""

    first = False


class UnknownHost(Unreachable):
    """The server's name cannot be resolved: more often a typing error than a failure."""


def to_transient(
    exn: Exception, patience: RetryPolicy, server: str = "the server"
) -> TransientError:
    """Convert an exception of urllib3 to one that names the server, but not the URL."""
    if isinstance(exn, NameResolutionError):
        return UnknownHost(f"the name of {server} is not known: check its spelling and the network")
    if isinstance(exn, NewConnectionError):
        return Unreachable(f"no connection to {server}: {str(exn).rpartition(': ')[2]}")
    if isinstance(exn, ConnectTimeoutError):
        return Unreachable(f"no connection to {server} within {patience.connect_timeout_s:g} s")
    if isinstance(exn, (ReadTimeoutError, TimeoutError)):
        return TransientError(f"not a byte for {patience.read_timeout_s:g} s")
    inner = exn.args[1] if len(exn.args) > 1 and isinstance(exn.args[1], Exception) else exn
    return TransientError(f"the connection broke: {getattr(inner, 'strerror', None) or inner}")


class Response:
    """A server's response: status, headers, and a body that is read as it arrives.

    End it with ``close()``. If the body was read to its end, the connection is reused.
    """

    def __init__(
        self,
        raw: urllib3.BaseHTTPResponse,
        patience: RetryPolicy,
        *,
        bodyless: bool = False,
        latency_s: float = math.inf,
    ) -> None:
        self._raw, self._patience = raw, patience
        self.latency_s = latency_s
        """The shortest time in which the server has begun a response."""
        self.moved_to: str | None = None
        """The address to which the request was redirected, if it was."""
        self.received, self.waited_s = 0, 0.0
        """The bytes of the body so far, and the seconds spent waiting for them."""
        self._throughput = ThroughputMonitor(patience)
        self.status = raw.status
        self.headers: Mapping[str, str] = raw.headers
        self.length = _read_length(raw)
        """The announced number of bytes in the body; None if the server reports none."""
        self._left = 0 if bodyless or raw.status in (204, 304) else self.length
        # urllib3 copies every byte once more; reading its inner file avoids that. Chunked bodies
        # have no length and are read through urllib3.
        inner = getattr(raw, "_fp", None)
        file = getattr(inner, "fp", None)
        usable = hasattr(file, "readinto1") and hasattr(inner, "length")
        self._inner: Any = inner if usable and self.length is not None else None
        self._buffered = True  # the first bytes may have arrived with the header

    @property
    def socket(self) -> Any:
        """The socket of the body, if it is known."""
        return getattr(getattr(self._raw, "_fp", None), "socket", None)

    def readinto(self, view: memoryview) -> int:
        """Read what has arrived, at most one receive; return 0 only at the announced end.

        A body that ends earlier or continues after it, a stall and a trickle raise TransientError.
        """
        if self._left == 0 or not len(view):
            return 0
        begin = time.monotonic()
        try:
            count = self._receive(view)
        except (HTTPError, OSError, http.client.HTTPException) as exn:
            self.close()
            raise to_transient(exn, self._patience) from None
        self._check(count, time.monotonic() - begin)
        return count

    def read(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, b"" only at the end; without a further copy if possible."""
        inner = self._get_inner()
        if inner is None or self._left is None or self._left <= 1 or size < 1:
            view = memoryview(bytearray(max(size, 0)))
            return bytes(view[: self.readinto(view)])
        begin = time.monotonic()
        try:
            data: bytes = inner.fp.read1(min(size, self._left - 1))
            inner.length -= len(data)
        except (HTTPError, OSError, http.client.HTTPException) as exn:
            self.close()
            raise to_transient(exn, self._patience) from None
        self._check(len(data), time.monotonic() - begin)
        return data

    def _check(self, count: int, seconds: float) -> None:
        """Record the bytes of one receive, and raise if they are too few or too slow."""
        self.received += count
        self.waited_s += seconds
        if count == 0 and self._left is None:
            self._left = 0
            return
        if count == 0:
            self.close()
            raise TransientError(f"the body ended {self._left} bytes before its announced end")
        if self._left is not None:
            self._left -= count
        if self._left != 0 and not self._throughput.record(count, seconds):
            self.close()
            rate, window = self._patience.lowest_rate, self._patience.rate_window_s
            raise TransientError(f"fewer than {rate:g} bytes per second for {window:g} s")

    def _get_inner(self) -> Any:
        """Return the inner response of urllib3, while it can be read directly."""
        return self._inner if self._inner is not None and self._inner.fp is not None else None

    def _receive(self, view: memoryview) -> int:
        wanted = len(view) if self._left is None else min(len(view), self._left)
        inner = self._get_inner()
        if inner is not None and self._left is not None and self._left > 1:
            # The last byte is read through urllib3, so that it keeps the connection.
            wanted = min(wanted, self._left - 1)
            if self._buffered or wanted <= io.DEFAULT_BUFFER_SIZE:
                # Return buffered bytes at once: with a large view the file would wait for more.
                buffered = len(inner.fp.peek(1))
                wanted = min(wanted, buffered) or 1
                self._buffered = buffered > wanted
            count: int = inner.fp.readinto1(view[:wanted])
            inner.length -= count
            return count
        if inner is not None and len(inner.fp.peek(2)) > 1:
            raise OSError("more bytes arrived than the server had announced")
        data = self._raw.read1(wanted) if inner is None else self._raw.read(1)
        view[: len(data)] = data
        return len(data)

    def read_page(self, most: int = PAGE_BYTES) -> bytes:
        """Return the body, cut after ``most`` bytes or where it breaks off; close the response."""
        pieces, buffer = [], bytearray(min(most, 1 << 16))
        got = 0
        with contextlib.suppress(TransientError):
            while got < most and (count := self.readinto(memoryview(buffer)[: most - got])):
                pieces.append(bytes(buffer[:count]))
                got += count
        self.close()
        return b"".join(pieces)

    def read_body(self, most: int) -> bytes | None:
        """Return the whole body, or None if it is longer than ``most``; close the response."""
        pieces, view, got = [], memoryview(bytearray(1 << 16)), 0
        while got <= most and (count := self.readinto(view)):
            pieces.append(bytes(view[:count]))
            got += count
        self.close()
        return b"".join(pieces) if got <= most else None

    def close(self) -> None:
        """Return the connection to its pool, or close it if part of the body is unread."""
        with contextlib.suppress(OSError, HTTPError):
            if self._left == 0:
                self._raw.drain_conn()  # nothing is left, but urllib3 has not noticed
                self._raw.release_conn()
            else:
                self._raw.close()

    def retry_after(self) -> float | None:
        """Return the delay that the server asks for, in seconds, if it does."""
        value = self.headers.get("Retry-After", "").strip()
        if value.isascii() and value.isdigit():
            return float(value)
        try:
            moment = email.utils.parsedate_tz(value)
            return None if moment is None else max(email.utils.mktime_tz(moment) - time.time(), 0.0)
        except (ValueError, OverflowError, IndexError, TypeError):
            return None  # not a date


def _read_length(raw: urllib3.BaseHTTPResponse) -> int | None:
    if "chunked" in raw.headers.get("Transfer-Encoding", "").lower():
        return None
    value = raw.headers.get("Content-Length", "")
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None
