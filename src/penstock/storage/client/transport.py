"""One HTTP request, sent once, over connections that this process keeps.

Connections stay open across shards, in pools that belong to one process: a forked child makes its
own and never touches its parent's. Everything that may go better next time is a fault
(:mod:`penstock.storage.client.response`); trying again is the business of :mod:`penstock.storage.client.retrying`.
"""

from __future__ import annotations

import contextlib
import http.client
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
from urllib3.exceptions import HTTPError, LocationValueError, SSLError
from urllib3.util.ssl_ import create_urllib3_context

from penstock import env
from penstock.errors import Origin, StorageError
from penstock.redact import shown

from penstock.storage.client.response import Answer, fault_of
from penstock.storage.client.deadlines import POOLS
from penstock.storage.client.fork_safety import held_off
from penstock.storage.client.retry_policy import Patience
from penstock.storage.client.store import Request

HOSTS_KEPT = 64
CONNECTIONS_KEPT = 16
"""Per host; more may be open at a time."""
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

    A connection that fails is a fault; a certificate that is not trusted is a
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
        raise fault_of(exn, patience) from None
    except ValueError:
        raise _unaskable(url) from None


def _unaskable(url: str) -> StorageError:
    """The error for a URL or header that no request can be made of, and that is not quoted."""
    return StorageError(
        f"no request can be made of this URL and its headers: check them; {PASSWORD_RULE}",
        origin=Origin(shown(url)),
    )
