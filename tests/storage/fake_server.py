"""A small web server for tests: calls Python, keeps connections open, supports ranges."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class FakeServer:
    """Calls ``answer(call)`` for every request, on a free port of loopback."""

    def __init__(self, answer):
        self.calls: list[Call] = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # otherwise responses wait 40 ms between head and body

            def handle_call(handler):
                call = Call(handler)
                with lock:
                    self.calls.append(call)
                answer(call)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_call

            def log_message(handler, *values):
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        # A client that has read enough may close the connection during a response.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Call:
    """One parsed request, and methods to reply to it."""

    def __init__(self, handler):
        self._handler = handler
        parts = urlsplit(handler.path)
        self.method, self.headers = handler.command, handler.headers
        self.raw_path, self.path = parts.path, unquote(parts.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if "chunked" in (handler.headers.get("Transfer-Encoding") or ""):
            self.body = b"".join(iter(self._chunk, b""))
        else:
            self.body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))

    def _chunk(self):
        size = int(self._handler.rfile.readline(), 16)
        data = self._handler.rfile.read(size)
        self._handler.rfile.readline()
        return data

    def reply(self, status, body=b"", headers=None):
        handler = self._handler
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if self.method != "HEAD":
            handler.wfile.write(body)

    def reply_json(self, value, headers=None):
        self.reply(200, json.dumps(value).encode(), headers)

    def reply_object(self, data, headers=None):
        """Reply with the object, or with the requested range of it."""
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"', **(headers or {})}
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if match is None:
            return self.reply(200, data, headers)
        first, last = int(match[1]), min(int(match[2]), len(data) - 1)
        if first >= len(data):
            return self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return self.reply(206, data[first : last + 1], headers)
