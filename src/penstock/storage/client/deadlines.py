"""Connections that nobody can be held by: heads have a deadline, and any receive can be cut.

The client library bounds each receive, so a server that sends a byte of a header now and then
would keep its reader for ever. And it cannot end a receive that another thread waits in: a file
closed on a server that stalls would leave a thread and a socket behind.
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
    """Says that nobody waits for some bytes any more.

    >>> stop = Stop()
    >>> stop.cut()
    >>> stop.is_set()
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._socket: Any = None

    def watch(self, connected: Any) -> None:
        """The socket that they come over now; None where they have come."""
        self._socket = connected
        if connected is not None and self.is_set():
            self.cut()

    def cut(self) -> None:
        """Say so also to a thread that is waiting for them. Its connection is lost."""
        self.set()
        connected = self._socket
        if isinstance(connected, socket.socket):
            with contextlib.suppress(OSError):  # it is closed already
                # Not TLS's own way to end: it would take the state that the other thread uses.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


@contextlib.contextmanager
def stopped_by(stop: Stop | None) -> Iterator[None]:
    """All answers that this thread waits for in the block can be cut by ``stop``."""
    _thread.stop = stop
    try:
        yield
    finally:
        _thread.stop = None
        if stop is not None:
            stop.watch(None)


class Response(http.client.HTTPResponse):
    """An answer whose head must be complete within the time-out, from its first byte on."""

    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.socket = sock
        self._unbuffered: Any = getattr(self.fp, "raw", None)
        if self._unbuffered is not None:
            self._unbuffered.readinto = _bounded(self._unbuffered.readinto, sock.gettimeout())
        stop = getattr(_thread, "stop", None)
        if stop is not None:
            stop.watch(sock)

    def begin(self) -> None:
        try:
            super().begin()
        finally:
            if self._unbuffered is not None:  # the body is watched by those who read it
                self._unbuffered.__dict__.pop("readinto", None)


def _bounded(receive: Any, limit_s: float | None) -> Any:
    deadline = math.inf

    def readinto(buffer: Any) -> Any:
        nonlocal deadline
        if time.monotonic() > deadline:
            raise http.client.HTTPException(f"the head of an answer took more than {limit_s:g} s")
        count = receive(buffer)
        if deadline == math.inf and limit_s is not None:
            deadline = time.monotonic() + limit_s
        return count

    return readinto


class _Connection(HTTPConnection):
    response_class = Response


class _SecureConnection(HTTPSConnection):
    response_class = Response


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


POOLS: dict[str, Any] = {"http": _Pool, "https": _SecurePool}
"""For the client library: the pools that make such connections, by scheme."""
