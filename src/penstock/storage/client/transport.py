"""Send one HTTP request, once, over pooled connections.

Connections stay open across shards, in pools that belong to one process: a forked child creates new
ones and never touches its parent's. A failure that a retry may cure is a
:class:`~penstock.storage.client.response.TransientError`;
:mod:`penstock.storage.client.retrying` does the retrying.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import logging
import math
import os
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, SSLError
from urllib3.util.ssl_ import create_urllib3_context

from penstock import env
from penstock.errors import Origin, StorageError
from penstock.redact import redact
from penstock.storage.client.deadlines import POOLS
from penstock.storage.client.fork_safety import block_forks, note_thread
from penstock.storage.client.response import Response, Unreachable, to_transient
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.client.store import Request

HOSTS_KEPT = 64
CONNECTIONS_KEPT = 16
"""Per host; more may be open at the same time."""
REDIRECTS = (301, 302, 303, 307, 308)
MAX_REDIRECTS = 5
USER_AGENT = "penstock"
PASSWORD_RULE = "in a password, write / as %2F, ? as %3F, # as %23 and @ as %40"
CA_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_HARMLESS = re.compile(r"range|if-.*|accept-encoding|user-agent", re.IGNORECASE)
"""Headers that are sent on when another server is redirected to: any other may be a secret."""


class _WithoutQueries(logging.Filter):
    """Removes queries, which may be signatures, from the log messages of urllib3."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                re.sub(r"\?.*", "?...", arg, flags=re.DOTALL) if isinstance(arg, str) else arg
                for arg in record.args
            )
        return True


logging.getLogger("urllib3.connectionpool").addFilter(_WithoutQueries())


class _Pools:
    """The connection pools of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.refresh_lock = threading.RLock()
        self._lock = threading.Lock()
        self._managers: dict[Any, urllib3.PoolManager] = {}
        self._proxies: dict[tuple[str, str], str | None] = {}
        self.quickest: dict[str, float] = {}
        """Server → the shortest time in which it has begun a response."""
        self.sent = 0

    def manager(self, url: str) -> urllib3.PoolManager:
        """Return the pools for a URL, through a proxy if the system's settings name one."""
        parts = urlsplit(url)
        server = (parts.scheme, parts.hostname or "")
        with self._lock:
            if server not in self._proxies:
                self._proxies[server] = _find_proxy(*server)
            proxy = self._proxies[server]
            secure = parts.scheme == "https"
            trust = tuple(map(env.text, CA_VARIABLES)) if secure else ()
            kind = (proxy, trust)
            if kind not in self._managers:
                options: dict[str, Any] = {"num_pools": HOSTS_KEPT, "maxsize": CONNECTIONS_KEPT}
                if any(trust):
                    options["ssl_context"] = _make_ssl_context()
                if proxy:
                    manager: urllib3.PoolManager = _make_proxy_manager(proxy, **options)
                else:
                    manager = urllib3.PoolManager(**options)
                manager.pool_classes_by_scheme = POOLS
                self._managers[kind] = manager
            return self._managers[kind]


def _find_proxy(scheme: str, host: str) -> str | None:
    """Return the proxy of the system's settings (``https_proxy``, ``no_proxy``) for a host."""
    proxy = urllib.request.getproxies().get(scheme)
    return proxy if proxy and not urllib.request.proxy_bypass(host) else None


def _make_ssl_context() -> ssl.SSLContext:
    """Trust OpenSSL's authorities (``SSL_CERT_FILE``) and those that ``CA_VARIABLES`` name.

    The latter are added and do not replace the others: a private authority is for some servers.
    """
    context = create_urllib3_context()
    context.load_default_certs()
    for name in CA_VARIABLES:
        path = env.text(name)
        if path is None:
            continue
        try:
            folder = os.path.isdir(path)
            context.load_verify_locations(None if folder else path, path if folder else None)
        except (OSError, ssl.SSLError) as exn:
            raise StorageError(
                f"the variable {name} names no readable file of certificates ({path!r}: {exn})"
            ) from None
    return context


def _make_proxy_manager(proxy: str, **options: Any) -> urllib3.ProxyManager:
    """Return pools that go through a proxy, with the ``user:password@`` of its URL."""
    head, mark, rest = proxy.partition("://")
    password, at, host = rest.rpartition("@")
    if not (mark and at):
        return urllib3.ProxyManager(proxy, **options)
    # urllib3 encodes passwords in Latin-1; servers mostly expect UTF-8.
    coded = unquote(password).encode().decode("latin-1")
    headers = urllib3.make_headers(proxy_basic_auth=coded)
    return urllib3.ProxyManager(f"{head}://{host}", proxy_headers=headers, **options)


_pools = _Pools()


def _current_pools() -> _Pools:
    global _pools
    if _pools.pid != os.getpid():
        _reset_pools()
    return _pools


def _reset_pools() -> None:
    # The parent's pools are not touched: one of their locks may have been held during the fork.
    global _pools
    _inherited.append(_pools)
    _pools = _Pools()


_inherited: list[_Pools] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pools)


def requests_sent() -> int:
    """Return the number of requests that this process has sent; approximate with threads."""
    return _current_pools().sent


def refresh_lock() -> threading.RLock:
    """Return the lock under which this process refreshes credentials; new in every fork."""
    return _current_pools().refresh_lock


def send(request: Request, *, patience: RetryPolicy) -> Response:
    """Send a request and return the response, its body unread; follow redirects of GET and HEAD.

    Raise :class:`~penstock.storage.client.response.TransientError` if the connection fails, and
    :class:`~penstock.errors.StorageError` if the server's certificate is not trusted.
    """
    url, headers = request.url, {"User-Agent": USER_AGENT, **request.headers}
    for _ in range(MAX_REDIRECTS + 1):
        raw, latency_s = _send_timed(request, url, headers, patience)
        location = raw.headers.get("Location")
        if raw.status not in REDIRECTS or not location or request.method not in ("GET", "HEAD"):
            bodyless = request.method == "HEAD"
            response = Response(raw, patience, bodyless=bodyless, latency_s=latency_s)
            response.moved_to = url if url != request.url else None
            return response
        Response(raw, patience, bodyless=request.method == "HEAD").read_page()
        target = _resolve_redirect(url, location)
        if urlsplit(target)[:2] != urlsplit(url)[:2]:
            headers = {k: v for k, v in headers.items() if _HARMLESS.fullmatch(k)}
        if urlsplit(target).scheme not in ("http", "https"):
            raise StorageError(
                f"the server redirects to {urlsplit(target).scheme!r}, not to http or https",
                origin=Origin(redact(url)),
            )
        if is_forbidden_redirect(url, target):
            raise StorageError(
                f"the server redirects to {urlsplit(target).hostname}, an address of a private "
                "network or of this machine, which PENSTOCK_PRIVATE_REDIRECTS=0 forbids",
                origin=Origin(redact(url)),
            )
        url = target
    raise StorageError(f"more than {MAX_REDIRECTS} redirects", origin=Origin(redact(request.url)))


def is_forbidden_redirect(url: str, target: str) -> bool:
    """Return whether to refuse a redirect: from a public server to a private address.

    >>> import os; os.environ["PENSTOCK_PRIVATE_REDIRECTS"] = "0"
    >>> is_forbidden_redirect("http://8.8.8.8/a", "http://127.0.0.1/b")
    True
    >>> is_forbidden_redirect("http://10.0.0.1/a", "http://10.0.0.2/b")
    False
    >>> is_forbidden_redirect("http://8.8.8.8/a", "http://8.8.4.4/b")
    False
    >>> del os.environ["PENSTOCK_PRIVATE_REDIRECTS"]
    """
    if env.text("PENSTOCK_PRIVATE_REDIRECTS") is None or env.flag("PENSTOCK_PRIVATE_REDIRECTS"):
        return False
    # A name that cannot be resolved here is resolved by a proxy: its address is unknown.
    return not _is_public(target, unknown=False) and _is_public(url, unknown=True)


def _is_public(url: str, *, unknown: bool) -> bool:
    """Return whether all addresses of the server are public; ``unknown`` if it has none here."""
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return unknown
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    inner = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    return all(address.is_global for address in inner)


def _send_timed(
    request: Request, url: str, headers: Mapping[str, str], patience: RetryPolicy
) -> tuple[urllib3.BaseHTTPResponse, float]:
    """Return the response, and the shortest time in which this server has ever begun one.

    The shortest, because a single one depends more on how busy this machine is at the moment.
    """
    begin = time.monotonic()
    raw = _send(request, url, headers, patience)
    quickest, server = _current_pools().quickest, urlsplit(url).netloc
    latency_s = min(time.monotonic() - begin, quickest.get(server, math.inf))
    quickest[server] = latency_s
    return raw, latency_s


def _resolve_redirect(url: str, location: str) -> str:
    try:
        target = urljoin(url, location)
        _ = urlsplit(target).port
    except ValueError:
        raise StorageError(
            "the server redirects to something that is not a URL", origin=Origin(redact(url))
        ) from None
    return target


def _send(
    request: Request, url: str, headers: Mapping[str, str], patience: RetryPolicy
) -> urllib3.BaseHTTPResponse:
    timeout = urllib3.Timeout(connect=patience.connect_timeout_s, read=patience.read_timeout_s)
    _current_pools().sent += 1
    note_thread()  # signatures are made with the TLS library, too
    try:
        manager = _current_pools().manager(url)
        # Until the response's header has arrived: the TLS handshake is complete by then.
        with block_forks() if url.startswith("https:") else contextlib.nullcontext():
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
    except StorageError:  # a setting that no retry corrects; it is an OSError, too
        raise
    except (LocationValueError, http.client.InvalidURL):
        raise _invalid_request(url) from None
    except (HTTPError, OSError, http.client.HTTPException) as exn:
        if isinstance(exn, SSLError) and "certificate" in str(exn).lower():
            raise StorageError(
                f"the server's certificate is not trusted: {exn}; name the authority's file in "
                "the variable SSL_CERT_FILE",
                origin=Origin(redact(url)),
            ) from None
        # Without the chain: the exceptions of urllib3 may show signed URLs.
        error = to_transient(exn, patience, urlsplit(url).netloc.rpartition("@")[2])
        if isinstance(error, Unreachable):
            error.first = urlsplit(url).netloc not in _current_pools().quickest
        raise error from None
    except ValueError:
        raise _invalid_request(url) from None


def _invalid_request(url: str) -> StorageError:
    """Return the error for an invalid URL or header, which is not quoted."""
    return StorageError(
        f"no request can be made of this URL and its headers: check them; {PASSWORD_RULE}",
        origin=Origin(redact(url)),
    )
