"""One HTTP request, sent once, over connections that this process keeps.

Connections stay open across shards, in pools that belong to one process: a forked child makes its
own and never touches its parent's. Everything that may go better next time is a :class:`Fault`;
trying again is the business of :mod:`penstock.storage.fetching`.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import io
import logging
import math
import os
import re
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.util.ssl_ import create_urllib3_context

from penstock import env
from penstock.errors import Origin, StorageError
from penstock.shown import shown

from .connections import POOLS
from .forks import held_off
from .patience import Patience
from .store import Request

HOSTS_KEPT = 64
CONNECTIONS_KEPT = 16
"""Per host; more may be open at a time."""
PAGE_BYTES = 64 << 10
"""So much of an error page is read."""
MOVED = (301, 302, 303, 307, 308)
MOVES = 5
USER_AGENT = "penstock"
PASSWORD_RULE = "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
CA_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_HARMLESS = re.compile(r"range|if-.*|accept-encoding|user-agent", re.IGNORECASE)
"""The headers that follow a redirect to another server: any other may be a secret."""


class _WithoutQueries(logging.Filter):
    """The client library logs what it asks for, with queries, which may be signatures."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                re.sub(r"\?.*", "?...", arg, flags=re.DOTALL) if isinstance(arg, str) else arg
                for arg in record.args
            )
        return True


logging.getLogger("urllib3.connectionpool").addFilter(_WithoutQueries())


class Fault(Exception):
    """A failure that may be gone at the next try."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnknownHost(Fault):
    """The server's name leads nowhere: a typing error more often than a fault."""


class _Pools:
    """The connections of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.refreshing = threading.RLock()
        self._lock = threading.Lock()
        self._managers: dict[Any, urllib3.PoolManager] = {}
        self._proxies: dict[tuple[str, str], str | None] = {}
        self.quickest: dict[str, float] = {}
        """By server, the shortest time in which it has begun an answer."""

    def manager(self, url: str) -> urllib3.PoolManager:
        """The pools for a URL; through a proxy where the system's settings name one."""
        parts = urlsplit(url)
        place = (parts.scheme, parts.hostname or "")
        with self._lock:
            if place not in self._proxies:
                self._proxies[place] = _proxy(*place)
            proxy = self._proxies[place]
            secure = parts.scheme == "https"
            trust = tuple(map(env.text, CA_VARIABLES)) if secure else ()
            kind = (proxy, trust)
            if kind not in self._managers:
                kept: dict[str, Any] = {"num_pools": HOSTS_KEPT, "maxsize": CONNECTIONS_KEPT}
                if any(trust):
                    kept["ssl_context"] = _trusting()
                manager = _through(proxy, **kept) if proxy else urllib3.PoolManager(**kept)
                manager.pool_classes_by_scheme = POOLS
                self._managers[kind] = manager
            return self._managers[kind]


def _proxy(scheme: str, host: str) -> str | None:
    """The proxy that the system's settings (``https_proxy``, ``no_proxy``) name for a host."""
    proxy = urllib.request.getproxies().get(scheme)
    return proxy if proxy and not urllib.request.proxy_bypass(host) else None


def _trusting() -> ssl.SSLContext:
    """The authorities that OpenSSL trusts (``SSL_CERT_FILE``), and those of the usual variables.

    They are added, not put in the place of the others: a private one is for some servers only.
    """
    context = create_urllib3_context()
    context.load_default_certs()
    for name in CA_VARIABLES:
        place = env.text(name)
        if place is None:
            continue
        try:
            folder = os.path.isdir(place)
            context.load_verify_locations(None if folder else place, place if folder else None)
        except (OSError, ssl.SSLError) as exn:
            raise StorageError(
                f"the variable {name} names no readable file of certificates ({place!r}: {exn})"
            ) from None
    return context


def _through(proxy: str, **kept: Any) -> urllib3.ProxyManager:
    """The pools through a proxy, with the ``user:password@`` of its URL."""
    head, mark, rest = proxy.partition("://")
    password, at, host = rest.rpartition("@")
    if not (mark and at):
        return urllib3.ProxyManager(proxy, **kept)
    # The library writes passwords in Latin-1; servers mostly expect UTF-8.
    coded = unquote(password).encode().decode("latin-1")
    headers = urllib3.make_headers(proxy_basic_auth=coded)
    return urllib3.ProxyManager(f"{head}://{host}", proxy_headers=headers, **kept)


_pools = _Pools()


def _here() -> _Pools:
    global _pools
    if _pools.pid != os.getpid():
        _forget()
    return _pools


def _forget() -> None:
    # The parent's pools are left as they are: a lock of theirs may have been held at the fork.
    global _pools
    _inherited.append(_pools)
    _pools = _Pools()


_inherited: list[_Pools] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def refreshing() -> threading.RLock:
    """The lock of this process under which credentials are refreshed; new in every fork."""
    return _here().refreshing


def send(request: Request, *, patience: Patience) -> Answer:
    """The answer to a request, its body still to be read; redirects of GET and HEAD are followed.

    A connection that fails is a :class:`Fault`; a certificate that is not trusted is a
    :class:`~penstock.errors.StorageError` at once.
    """
    url, headers = request.url, {"User-Agent": USER_AGENT, **request.headers}
    for _ in range(MOVES + 1):
        raw, latency_s = _timed(request, url, headers, patience)
        place = raw.headers.get("Location")
        if raw.status not in MOVED or not place or request.method not in ("GET", "HEAD"):
            bodyless = request.method == "HEAD"
            answer = Answer(raw, patience, bodyless=bodyless, latency_s=latency_s)
            answer.moved_to = url if url != request.url else None
            return answer
        Answer(raw, patience, bodyless=request.method == "HEAD").page()
        target = _target(url, place)
        if urlsplit(target)[:2] != urlsplit(url)[:2]:
            headers = {k: v for k, v in headers.items() if _HARMLESS.fullmatch(k)}
        if urlsplit(target).scheme not in ("http", "https"):
            raise StorageError(
                f"the server redirects to {urlsplit(target).scheme!r}, not to http or https",
                origin=Origin(shown(url)),
            )
        url = target
    raise StorageError(f"more than {MOVES} redirects", origin=Origin(shown(request.url)))


def _timed(
    request: Request, url: str, headers: Mapping[str, str], patience: Patience
) -> tuple[urllib3.BaseHTTPResponse, float]:
    """The answer, and the shortest time in which this server has ever begun one.

    The shortest, since a single one says more about how busy this machine is at the moment.
    """
    begin = time.monotonic()
    raw = _send(request, url, headers, patience)
    quickest, place = _here().quickest, urlsplit(url).netloc
    latency_s = min(time.monotonic() - begin, quickest.get(place, math.inf))
    quickest[place] = latency_s
    return raw, latency_s


def _target(url: str, place: str) -> str:
    try:
        target = urljoin(url, place)
        _ = urlsplit(target).port
    except ValueError:
        raise StorageError(
            "the server redirects to something that is not a URL", origin=Origin(shown(url))
        ) from None
    return target


def _send(
    request: Request, url: str, headers: Mapping[str, str], patience: Patience
) -> urllib3.BaseHTTPResponse:
    timeout = urllib3.Timeout(connect=patience.connect_timeout_s, read=patience.read_timeout_s)
    try:
        manager = _here().manager(url)
        # Until the head of the answer is there: it also brings the end of TLS's greeting.
        with held_off() if url.startswith("https:") else contextlib.nullcontext():
            return manager.urlopen(
                request.method,
                url,
                body=request.body,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=timeout,
                preload_content=False,
                decode_content=False,
            )
    except (LocationValueError, http.client.InvalidURL):
        raise _unaskable(url) from None
    except (HTTPError, OSError, http.client.HTTPException) as exn:
        if isinstance(exn, SSLError) and "certificate" in str(exn).lower():
            raise StorageError(
                f"the server's certificate is not trusted: {exn}; name the authority's file in "
                "the variable SSL_CERT_FILE",
                origin=Origin(shown(url)),
            ) from None
        # Without the chain: the client's own exceptions may show signed URLs.
        raise _fault(exn, patience) from None
    except ValueError:
        raise _unaskable(url) from None


def _unaskable(url: str) -> StorageError:
    """The error for a URL or header that no request can be made of, and that is not quoted."""
    return StorageError(
        f"no request can be made of this URL and its headers: check them; {PASSWORD_RULE}",
        origin=Origin(shown(url)),
    )


def _fault(exn: Exception, patience: Patience) -> Fault:
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
            raise _fault(exn, self._patience) from None
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
            raise _fault(exn, self._patience) from None
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
