"""A web server that fails on demand: each request gets the next fault of a plan.

It implements HTTP itself, because no server library would send such wrong responses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping

ENDLESS = 1 << 60


@dataclasses.dataclass
class Asked:
    """One request as it was received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""

    def span(self, size: int) -> tuple[int, int] | None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if found is None:
            return None
        return int(found[1]), min(int(found[2] or size - 1) + 1, size)


Fault = Callable[["FaultyServer", socket.socket, Asked], None]


class FaultyServer:
    """Objects by path, a plan of faults, and a log of the requests. A context manager."""

    def __init__(self, **objects: bytes) -> None:
        self.objects = {f"/{name}.tar": data for name, data in objects.items()}
        self.plan: deque[Fault | None] = deque()
        self.always: Fault | None = None
        self.asked: list[Asked] = []
        self.connections = 0
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        self.stopping = threading.Event()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening and cut every connection."""
        self.stopping.set()
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> FaultyServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def url(self, name: str = "a") -> str:
        return f"http://127.0.0.1:{self.port}/{name}.tar"

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
        # Otherwise each response waits 40 ms between its head and its body.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = connection.makefile("rb")
        try:
            while not self.stopping.is_set() and (asked := _request(file)) is not None:
                with self._lock:
                    self.asked.append(asked)
                    fault = self.plan.popleft() if self.plan else self.always
                (fault or good())(self, connection, asked)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(connection)
            file.close()
            connection.close()


def _request(file) -> Asked | None:
    first = file.readline().split()
    if len(first) < 2:
        return None
    headers = {}
    while (line := file.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = file.read(int(headers.get("content-length", 0)))
    return Asked(first[0].decode(), first[1].decode(), headers, body)


class _Cut(OSError):
    """Ends the connection."""


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _head(status: int, headers: Mapping[str, object]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value is not None)
    return f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode()


def good(
    *,
    cut: int = ENDLESS,
    end: str = "fin",
    ranges: bool = True,
    data: bytes | None = None,
    tag: str | None = "md5",
    pace: Callable[[bytes], Iterator[tuple[bytes, float]]] | None = None,
    most: int = ENDLESS,
    **changed: object,
) -> Fault:
    """Return a correct response, except for what the arguments change.

    ``cut`` bytes of the body are sent, then the connection ends by ``end`` (``fin``, ``reset``,
    ``stall``). ``changed`` headers replace the correct ones (``_`` for ``-``), None omits one.
    """

    def answer(server: FaultyServer, connection: socket.socket, asked: Asked) -> None:
        whole = data if data is not None else server.objects.get(asked.path.partition("?")[0])
        if asked.method == "PUT":
            server.objects[asked.path] = asked.body
            connection.sendall(_head(201, {"Content-Length": 0}))
            return
        if whole is None:
            connection.sendall(_head(404, {"Content-Length": 4}) + b"gone")
            return
        span = asked.span(len(whole)) if ranges else None
        if span is not None and span[0] >= len(whole):
            headers = {"Content-Range": f"bytes */{len(whole)}", "Content-Length": 0}
            connection.sendall(_head(416, headers))
            return
        begin, stop = span or (0, len(whole))
        stop = min(stop, begin + most)
        headers = {"Content-Length": stop - begin, "Content-Type": "application/x-tar"}
        headers["ETag"] = etag(whole) if tag == "md5" else tag
        if span is not None:
            headers["Content-Range"] = f"bytes {begin}-{stop - 1}/{len(whole)}"
        headers.update({name.replace("_", "-"): value for name, value in changed.items()})
        connection.sendall(_head(206 if span is not None else 200, headers))
        if asked.method == "HEAD":
            return
        body = whole[begin:stop]
        for piece, seconds in pace(body) if pace else [(body[:cut], 0.0)]:
            connection.sendall(piece)
            if seconds and server.stopping.wait(seconds):
                return
        if cut < len(body) or end == "close" or "Content_Length" in changed:
            _end(server, connection, end)

    return answer


def _end(server: FaultyServer, connection: socket.socket, end: str) -> None:
    if end == "stall":
        server.stopping.wait(20)
    if end == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    raise _Cut


def drip(body: bytes) -> Iterator[tuple[bytes, float]]:
    for number in range(len(body)):
        yield body[number : number + 1], 0.02


def status(number: int, page: bytes = b"sorry", **headers: object) -> Fault:
    def answer(server: FaultyServer, connection: socket.socket, asked: Asked) -> None:
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.sendall(_head(number, {"Content-Length": len(page), **more}) + page)

    return answer


def page(server: FaultyServer, connection: socket.socket, asked: Asked) -> None:
    """Send an error page with status 200."""
    text = b"<html>please log in</html>"
    headers = {"Content-Length": len(text), "Content-Type": "text/html; charset=utf-8"}
    connection.sendall(_head(200, headers) + text)


def silence(server: FaultyServer, connection: socket.socket, asked: Asked) -> None:
    server.stopping.wait(20)
    raise _Cut


def slow_head(server: FaultyServer, connection: socket.socket, asked: Asked) -> None:
    """Send bytes of a header forever, without its end."""
    connection.sendall(b"HTTP/1.1 206 Whatever\r\nX-Endless: ")
    while not server.stopping.wait(0.02):
        connection.sendall(b"x")


def chunked(*, cut: int = ENDLESS, ended: bool = True, ranges: bool = False) -> Fault:
    """Return a body in chunks, with or without the last, empty chunk."""

    def answer(server: FaultyServer, connection: socket.socket, asked: Asked) -> None:
        whole = server.objects[asked.path]
        span = asked.span(len(whole)) if ranges else None
        begin, stop = span or (0, len(whole))
        headers = {"Transfer-Encoding": "chunked", "ETag": etag(whole)}
        if span:
            headers["Content-Range"] = f"bytes {begin}-{stop - 1}/{len(whole)}"
        connection.sendall(_head(206 if span else 200, headers))
        body = whole[begin:stop][:cut]
        for at in range(0, len(body), 10_000):
            piece = body[at : at + 10_000]
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        if not ended:
            raise _Cut
        connection.sendall(b"0\r\n\r\n")

    return answer


def moved(address: str, number: int = 302) -> Fault:
    return status(number, b"", Location=address)
