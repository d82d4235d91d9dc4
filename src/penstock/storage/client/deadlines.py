"""Connections that cannot block forever: headers have a deadline, and any receive can be cancelled.

urllib3 limits the time of each receive, so a server that sends a byte of a header now and then
would block its reader forever. And it cannot end a receive in which another thread waits: closing
a file while its server stalls would leave a thread and a socket open.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

_thread = threading.local()


class Stop(threading.Event):
    """Cancels a read: set when its bytes are no longer needed.

    >>> stop = Stop()
    >>> stop.cut()
    >>> stop.is_set()
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._socket: Any = None

    def watch(self, connected: Any) -> None:
        """Set the socket over which the bytes arrive; None after they have arrived."""
        self._socket = connected
        if connected is not None and self.is_set():
            self.cut()

    def cut(self) -> None:
        """Set the event and wake a thread that waits for the bytes. Its connection is lost."""
        self.set()
        connected = self._socket
        if isinstance(connected, socket.socket):
            with contextlib.suppress(OSError):  # already closed
                # Not a TLS shutdown, which would use the state of the other thread.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


@contextlib.contextmanager
def cancel_with(stop: Stop | None) -> Iterator[None]:
    """Let ``stop`` cancel all responses that this thread waits for during a ``with`` block."""
    _thread.stop = stop
    try:
        yield
    finally:
        _thread.stop = None
        if stop is not None:
            stop.watch(None)


class DeadlineResponse(http.client.HTTPResponse):
    """A response whose header must be complete within the time-out, from its first byte on."""

    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.socket = sock
        self._unbuffered: Any = getattr(self.fp, "raw", None)
        if self._unbuffered is not None:
            self._unbuffered.readinto = _limit_time(self._unbuffered.readinto, sock.gettimeout())
        stop = getattr(_thread, "stop", None)
        if stop is not None:
            stop.watch(sock)

    def begin(self) -> None:
        try:
            super().begin()
        finally:
            if self._unbuffered is not None:  # the readers of the body watch its rate
                self._unbuffered.__dict__.pop("readinto", None)


def _limit_time(receive: Any, limit_s: float | None) -> Any:
    deadline = math.inf

    def readinto(buffer: Any) -> Any:
        nonlocal deadline
        if time.monotonic() > deadline:
            raise http.client.HTTPException(f"a response header took more than {limit_s:g} s")
        count = receive(buffer)
        if deadline == math.inf and limit_s is not None:
            deadline = time.monotonic() + limit_s
        return count

    return readinto


class _Connection(HTTPConnection):
    response_class = DeadlineResponse


class _SecureConnection(HTTPSConnection):
    response_class = DeadlineResponse


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS: dict[str, Any] = {"http": _Pool, "https": _SecurePool}
"""For urllib3: scheme → the pool class that creates such connections."""
