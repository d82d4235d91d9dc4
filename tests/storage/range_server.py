"""A web server for tests of readers: ranges, ETags, and a log of the requests."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from pathlib import Path


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = Path(folder)
        self.asked: list[tuple[str, int, int]] = []  # name, first byte, number of bytes

    def handle_error(self, request, client_address):
        pass  # clients close the connection when they have read enough

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def sent(self, name: str) -> int:
        return sum(count for asked, _, count in self.asked if asked == name)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise responses wait 40 ms between head and body

    def do_GET(self):
        server = self.server
        assert isinstance(server, Server)
        path = server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        begin, end = 0, len(data)
        told = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if told:
            begin, end = int(told[1]), min(int(told[2] or len(data)) + 1, len(data))
        if begin >= end and data:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        server.asked.append((path.name, begin, end - begin))
        self.send_response(206 if told else 200)
        if told:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data[begin:end])

    def log_message(self, *words):
        pass


@contextlib.contextmanager
def serving(folder):
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
