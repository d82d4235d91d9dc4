"""What comes back from a server: an answer whose body is read as it comes, or a fault.

A body that ends early, stalls or drips is a :class:`Fault`, and never taken for whole.
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

from penstock.storage.client.retry_policy import Patience

PAGE_BYTES = 64 << 10
"""So much of an error page is read."""


class Fault(Exception):
    """A failure that may be gone at the next try."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnknownHost(Fault):
    """The server's name leads nowhere: a typing error more often than a fault."""


def fault_of(exn: Exception, patience: Patience) -> Fault:
    """What happened, in words, without the URL."""
    if isinstance(exn, NameResolutionError):
        return UnknownHost("the server's name is not known: check its spelling and the network")
    if isinstance(exn, NewConnectionError):
        return Fault(f"no connection: {str(exn).rpartition(': ')[2]}")
    if isinstance(exn, ConnectTimeoutError):
        return Fault(f"no connection within {patience.connect_timeout_s:g} s")
    if isinstance(exn, (ReadTimeoutError, TimeoutError)):
        return Fault(f"not a byte for {patience.read_timeout_s:g} s")
    inner = exn.args[1] if len(exn.args) > 1 and isinstance(exn.args[1], Exception) else exn
    return Fault(f"the connection broke: {getattr(inner, 'strerror', None) or inner}")


class Answer:
    """A server's answer: status, headers, and a body that is read as it comes.

    End it with ``close()``; a body read to its end leaves its connection to the next request.
    """

    def __init__(
        self,
        raw: urllib3.BaseHTTPResponse,
        patience: Patience,
        *,
        bodyless: bool = False,
        latency_s: float = math.inf,
    ) -> None:
        self._raw, self._patience = raw, patience
        self.latency_s = latency_s
        """The shortest time in which the server has begun an answer."""
        self.moved_to: str | None = None
        """The address to which the request was sent on, if it was."""
        self.came, self.waited_s = 0, 0.0
        """The bytes of the body so far, and the seconds spent waiting for them."""
        self._rate = patience.rate()
        self.status = raw.status
        self.headers: Mapping[str, str] = raw.headers
        self.length = _length(raw)
        """The announced number of bytes in the body; None where the server tells none."""
        self._left = 0 if bodyless or raw.status in (204, 304) else self.length
        # The client library copies every byte once more; its file has a way around that. Chunked
        # bodies have no length and go the library's way.
        inner = getattr(raw, "_fp", None)
        file = getattr(inner, "fp", None)
        usable = hasattr(file, "readinto1") and hasattr(inner, "length")
        self._inner: Any = inner if usable and self.length is not None else None
        self._held = True  # bytes may have come along with the head

    @property
    def socket(self) -> Any:
        """What the body comes over, where that is known."""
        return getattr(getattr(self._raw, "_fp", None), "socket", None)

    def readinto(self, view: memoryview) -> int:
        """What has come, at most one receive; 0 only at the announced end of the body.

        A body that ends before, one that goes on behind it, a stall and a drip are a fault.
        """
        if self._left == 0 or not len(view):
            return 0
        begin = time.monotonic()
        try:
            count = self._receive(view)
        except (HTTPError, OSError, http.client.HTTPException) as exn:
            self.close()
            raise fault_of(exn, self._patience) from None
        self._check(count, time.monotonic() - begin)
        return count

    def read(self, size: int) -> bytes:
        """The same as ``bytes``, at most ``size`` of them; received into place where possible."""
        inner = self._direct()
        if inner is None or self._left is None or self._left <= 1 or size < 1:
            view = memoryview(bytearray(max(size, 0)))
            return bytes(view[: self.readinto(view)])
        begin = time.monotonic()
        try:
            data: bytes = inner.fp.read1(min(size, self._left - 1))
            inner.length -= len(data)
        except (HTTPError, OSError, http.client.HTTPException) as exn:
            self.close()
            raise fault_of(exn, self._patience) from None
        self._check(len(data), time.monotonic() - begin)
        return data

    def _check(self, count: int, seconds: float) -> None:
        """Note what one receive brought, and raise where that is wrong."""
        self.came += count
        self.waited_s += seconds
        if count == 0 and self._left is None:
            self._left = 0
            return
        if count == 0:
            self.close()
            raise Fault(f"the body ended {self._left} bytes before its announced end")
        if self._left is not None:
            self._left -= count
        if self._left != 0 and not self._rate.add(count, seconds):
            self.close()
            rate, window = self._patience.lowest_rate, self._patience.rate_window_s
            raise Fault(f"fewer than {rate:g} bytes per second for {window:g} s")

    def _direct(self) -> Any:
        """The library's inner response, while it can be read around the library."""
        return self._inner if self._inner is not None and self._inner.fp is not None else None

    def _receive(self, view: memoryview) -> int:
        wanted = len(view) if self._left is None else min(len(view), self._left)
        inner = self._direct()
        if inner is not None and self._left is not None and self._left > 1:
            # The last byte goes the library's way, so that it keeps the connection.
            wanted = min(wanted, self._left - 1)
            if self._held or wanted <= io.DEFAULT_BUFFER_SIZE:
                # Bytes of the file's buffer at once: a large view would make it wait for more.
                held = len(inner.fp.peek(1))
                wanted = min(wanted, held) or 1
                self._held = held > wanted
            count: int = inner.fp.readinto1(view[:wanted])
            inner.length -= count
            return count
        if inner is not None and len(inner.fp.peek(2)) > 1:
            raise OSError("more bytes came than the server had announced")
        data = self._raw.read1(wanted) if inner is None else self._raw.read(1)
        view[: len(data)] = data
        return len(data)

    def page(self, most: int = PAGE_BYTES) -> bytes:
        """The body, or the beginning of one that is longer than ``most``; then it is closed."""
        pieces, buffer = [], bytearray(min(most, 1 << 16))
        got = 0
        with contextlib.suppress(Fault):
            while got < most and (count := self.readinto(memoryview(buffer)[: most - got])):
                pieces.append(bytes(buffer[:count]))
                got += count
        self.close()
        return b"".join(pieces)

    def body(self) -> bytes:
        """The whole body; one that ends early is a fault."""
        pieces, view = [], memoryview(bytearray(1 << 16))
        while count := self.readinto(view):
            pieces.append(bytes(view[:count]))
        self.close()
        return b"".join(pieces)

    def close(self) -> None:
        """Give the connection back, or close it where part of the body is still on it."""
        with contextlib.suppress(OSError, HTTPError):
            if self._left == 0:
                self._raw.drain_conn()  # nothing is left on it, but the library does not know
                self._raw.release_conn()
            else:
                self._raw.close()

    def retry_after(self) -> float | None:
        """The seconds that the server asks to wait, if it does."""
        value = self.headers.get("Retry-After", "").strip()
        if value.isascii() and value.isdigit():
            return float(value)
        try:
            moment = email.utils.parsedate_tz(value)
            return None if moment is None else max(email.utils.mktime_tz(moment) - time.time(), 0.0)
        except (ValueError, OverflowError, IndexError, TypeError):
            return None  # not a date after all


def _length(raw: urllib3.BaseHTTPResponse) -> int | None:
    if "chunked" in raw.headers.get("Transfer-Encoding", "").lower():
        return None
    value = raw.headers.get("Content-Length", "")
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None
