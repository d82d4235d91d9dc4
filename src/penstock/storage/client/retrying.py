"""Request the bytes of an object: check every response, and retry.

A :class:`RemoteObject` is one object of a store with its known size and version. Its methods return
the right bytes or raise; :class:`~penstock.storage.client.retry_policy.RetryPolicy` limits how long
transient errors are retried.
"""

from __future__ import annotations

import logging
import os.path
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from penstock.errors import Origin, StorageError
from penstock.redact import redact
from penstock.storage.client.deadlines import Stop, cancel_with
from penstock.storage.client.response import Response, TransientError, UnknownHost, Unreachable
from penstock.storage.client.retry_policy import PROGRESS_BYTES, RetryPolicy, RetryState
from penstock.storage.client.store import Store
from penstock.storage.client.transport import refresh_lock, send
from penstock.storage.local.files import MissingFile

logger = logging.getLogger("penstock.storage")

T = TypeVar("T")
TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that a retry may cure."""
FIRST_CONTACT_S = 3.0
"""How long a server is retried that a variable names and that has never responded."""
WARN_FROM_FAILURE = 3
"""From this failure on, retries are logged as warnings."""
BODY_BYTES = 64 << 20
"""The longest response to a small request, such as a listing."""
PAGES = {
    "text/html": (".html", ".htm"),
    "application/xhtml+xml": (".xhtml", ".html"),
    "application/xml": (".xml",),
    "text/xml": (".xml",),
}
"""Types of pages that servers send instead of data, and the suffixes of files of that type."""
_GZIPPED = (".gz", ".tgz")
_SHARD = re.compile(r"\.(tar(\.\w+)?|tgz)$", re.IGNORECASE)


class Refused(StorageError):
    """The server refused the request and would refuse it again; ``status`` is its response."""

    status: int = 0


class MissingObject(MissingFile):
    """The server has no such object."""

    status: int = 404


class Changed(StorageError):
    """The object was replaced while it was being read."""


class Cancelled(Exception):
    """The read was cancelled: its bytes are no longer needed."""


class _Expired(Exception):
    def __init__(self, refusal: StorageError) -> None:
        self.refusal = refusal


def exchange(
    store: Store,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
    body: bytes | None = None,
    patience: RetryPolicy | None = None,
    ok: Collection[int] = (200,),
) -> tuple[int, Mapping[str, str], bytes]:
    """Send a small request and return status, headers and body of the response.

    A status outside ``ok`` raises :class:`MissingObject` for 404 and :class:`Refused` for others:
    at once, or when the retries of a transient status are used up.
    """
    source = RemoteObject(store, url, patience or RetryPolicy())

    def attempt() -> tuple[int, Mapping[str, str], bytes]:
        request = store.request(method, url, headers=headers, query=query, body=body)
        response = send(request, patience=source.patience)
        if response.status not in ok:
            raise source.refusal(response)
        page = b"" if method == "HEAD" else response.read_body(BODY_BYTES)
        if page is None:
            raise StorageError(
                f"the server's answer is longer than {BODY_BYTES} bytes: check the address",
                origin=source.origin(),
            )
        return response.status, response.headers, page

    what = "cannot read" if method in ("GET", "HEAD") else "cannot write"
    return source.retry(attempt, what=what)


class RemoteObject:
    """One object of a store, with its size and version once a response has reported them."""

    def __init__(self, store: Store, url: str, patience: RetryPolicy) -> None:
        self.store, self.url, self.patience = store, url, patience
        self.size: int | None = None
        self.version: str | None = None
        self.declared: str | None = None
        """The checksum of the object, if the store declares one."""
        self.encrypted = False
        """True if the ETag is not a checksum of the bytes, because they are stored encrypted."""
        self.ranged: bool | None = None
        """Whether the server supports ranges; None before the first response."""
        self.near = False
        """Whether one connection to the server is as fast as several."""

    def origin(self, offset: int | None = None) -> Origin:
        return Origin(redact(self.url), offset=offset)

    def request_range(self, offset: int, length: int) -> tuple[Response, int]:
        """Request a range, once; return the checked response and the number of bytes in its body.

        A server without support for ranges sends the whole object: then ``ranged`` is False and the
        body begins at byte 0.
        """
        if self.ranged is False:
            return self.request_whole()
        last = offset + length - 1
        headers = {"Range": f"bytes={offset}-{last}", "Accept-Encoding": "identity"}
        request = self.store.request("GET", self.url, headers=headers)
        response = send(request, patience=self.patience)
        try:
            if response.status == 206:
                return response, self._check_range(response, offset, last)
            if response.status == 416 and self.size is None:
                response.read_page()  # beyond the end; an empty object has not even a first byte
                return self.request_range(0, 1) if offset else self.request_whole()
            if response.status == 416:
                raise self._changed_error("it is shorter now", offset)
            if response.status != 200:
                raise self.refusal(response, offset)
            if self.ranged:
                raise TransientError("the server ignored the range this time")
            return self._check_whole(response)
        except BaseException:
            response.close()
            raise

    def request_whole(self) -> tuple[Response, int]:
        """Request the whole object, once; return the checked response and the object's size."""
        headers = {"Accept-Encoding": "identity"}
        request = self.store.request("GET", self.url, headers=headers)
        response = send(request, patience=self.patience)
        try:
            if response.status != 200:
                raise self.refusal(response)
            return self._check_whole(response)
        except BaseException:
            response.close()
            raise

    def fill(
        self,
        offset: int,
        view: memoryview,
        report: Callable[[int], None],
        *,
        response: Response | None = None,
        stop: Stop | None = None,
        state: RetryState | None = None,
    ) -> None:
        """Fill the view with the bytes from ``offset`` on, with as many requests as that takes.

        ``report`` is called with the number of bytes so far whenever more have arrived. A
        ``response`` that is already open is read first. ``state`` counts the failures of a read of
        several parts. Needs a server that supports ranges.
        """
        received = 0
        received_at = time.monotonic()

        def attempt() -> None:
            nonlocal response, received, received_at
            received_at = time.monotonic()
            now, response = response, None
            requested = received
            if now is None:
                now, _ = self.request_range(offset + received, len(view) - received)
            elif stop is not None:
                stop.watch(now.socket)
            try:
                while received < len(view):
                    if stop is not None and stop.is_set():
                        raise Cancelled
                    count = now.readinto(view[received:])
                    if not count:  # some servers send less than requested
                        if received - requested < PROGRESS_BYTES:
                            raise TransientError("the body was shorter than the range")
                        requested = received
                        now, _ = self.request_range(offset + received, len(view) - received)
                    received += count
                    received_at = time.monotonic()
                    report(received)
            finally:
                now.close()

        with cancel_with(stop):
            progress: Any = {"received": lambda: received, "received_at": lambda: received_at}
            self.retry(attempt, **progress, offset=offset, stop=stop, state=state)

    def retry(
        self,
        attempt: Callable[[], T],
        *,
        received: Callable[[], int] = lambda: 0,
        received_at: Callable[[], float] = lambda: 0.0,
        offset: int | None = None,
        stop: threading.Event | None = None,
        what: str = "cannot read",
        state: RetryState | None = None,
    ) -> T:
        """Call ``attempt`` until it succeeds, the retries are used up, or ``stop`` is set.

        ``received`` returns the number of bytes so far, ``received_at`` the time of the last one.
        ``state`` counts the failures of a reader that makes many small calls.
        """
        state = self.patience.start() if state is None else state
        refreshed = False
        while True:
            before, began = received(), time.monotonic()
            try:
                return attempt()
            except _Expired as exn:
                if refreshed or not self._refresh():
                    raise exn.refusal from None
                refreshed = True
            except TransientError as exn:
                now = offset + received() if offset is not None else None
                lost_s = time.monotonic() - max(began, received_at())
                delay_s = state.next_delay(received() - before, exn.retry_after, lost_s)
                if isinstance(exn, Unreachable) and self._is_mistyped(exn, state):
                    delay_s = None
                if delay_s is None:
                    raise self._final_error(what, exn, state, now) from None
                level = logging.INFO if state.failures < WARN_FROM_FAILURE else logging.WARNING
                logger.log(level, "%s: %s; again in %.1f s", self.origin(now), exn, delay_s)
                if (stop or threading.Event()).wait(delay_s):
                    raise Cancelled from None

    def _is_mistyped(self, exn: Unreachable, state: RetryState) -> bool:
        """Return whether a wrong server address is more likely than a server that is down."""
        if isinstance(exn, UnknownHost):
            return self.size is None
        return bool(self.store.address_from) and exn.first and state.elapsed_s > FIRST_CONTACT_S

    def refusal(self, response: Response, offset: int | None = None) -> Exception:
        """Return the error for a response of the wrong status, after reading its page."""
        page = response.read_page()
        words = self.store.refusal(self.url, response.status, response.headers, page)
        error: StorageError
        if response.status in (404, 410):
            error = MissingObject(f"cannot open: {words}", origin=self.origin())
        else:
            refused = Refused(f"cannot open: {words}", origin=self.origin(offset))
            refused.status = response.status
            error = refused
        if self.store.expired(response.status, page):
            return _Expired(error)
        if response.status in TRANSIENT_STATUSES:
            return TransientError(words, response.retry_after())
        return error

    def _final_error(
        self, what: str, exn: TransientError, state: RetryState, offset: int | None
    ) -> StorageError:
        count = state.failures
        tries = f"{count} tries in {state.elapsed_s:.1f} s" if count > 1 else "1 try"
        remedy = f"; the server asks to wait {exn.retry_after:g} s" if exn.retry_after else ""
        if isinstance(exn, Unreachable) and self.store.address_from:
            remedy = f"; check {self.store.address_from}, which names this server"
        return StorageError(f"{what}: {exn}{remedy} (after {tries})", origin=self.origin(offset))

    def _refresh(self) -> bool:
        # One at a time: the others find the new credentials of the first, and refresh again at
        # most once each.
        with refresh_lock():
            return self.store.refresh()

    def _check_range(self, response: Response, first: int, last: int) -> int:
        content_range = response.headers.get("Content-Range", "").strip()
        found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", content_range)
        if found is None:
            raise TransientError("the response does not say which range it contains")
        begin, end, total = map(int, found.groups())
        if begin != first or not begin <= end <= last or end >= total:
            raise TransientError(f"bytes {first} to {last} were requested, {begin} to {end} came")
        if response.length is not None and response.length > end - begin + 1:
            raise TransientError("the response is longer than its range")
        self._check_kind(response)
        self._learn(response, total, first, ranged=True)
        if response.moved_to is not None:
            self.store.moved(self.url, response.moved_to)
        return end - begin + 1

    def _check_whole(self, response: Response) -> tuple[Response, int]:
        self._check_kind(response)
        kind = _content_type(response)
        if kind.endswith("json") and _SHARD.search(urlsplit(self.url).path):
            raise self._page_error(kind)
        if response.length is None:
            raise StorageError(
                "the server reports neither a length nor ranges, so a body that ends early looks "
                "like a complete one; to accept that, read with 'pipe:curl -sf URL'",
                origin=self.origin(),
            )
        self._learn(response, response.length, 0, ranged=False)
        return response, response.length

    def _learn(self, response: Response, total: int, offset: int, *, ranged: bool) -> None:
        version = self.store.version(response.headers)
        if self.size is None:
            self.version, self.ranged = version, ranged
            self.declared = self.store.checksum(response.headers)
            kind = response.headers.get("x-amz-server-side-encryption", "")
            own = "x-amz-server-side-encryption-customer-algorithm" in response.headers
            self.encrypted = own or "kms" in kind.lower()
            self.size = total  # last: to other threads it means that everything is known
        elif total != self.size or version != self.version:
            was = f"it had {self.size} bytes and the version {self.version}"
            raise self._changed_error(f"{was}, now {total} and {version}", offset)

    def _changed_error(self, how: str, offset: int) -> Changed:
        return Changed(
            f"the object was replaced while it was read: {how}; read it again",
            origin=self.origin(offset),
        )

    def _check_kind(self, response: Response) -> None:
        self._check_coding(response)
        kind = _content_type(response)
        suffix = os.path.splitext(urlsplit(self.url).path)[1].lower()
        if kind in PAGES and suffix and suffix not in PAGES[kind]:
            raise self._page_error(kind)

    def _page_error(self, kind: str) -> Refused:
        return Refused(
            f"the server sent a page ({kind}) instead of the data: an error or log-in page?",
            origin=self.origin(),
        )

    def _check_coding(self, response: Response) -> None:
        """Refuse what a web server has compressed: its ranges and length are not the object's.

        Object stores only repeat what the writer declared, and so do servers for names in .gz.
        """
        coding = response.headers.get("Content-Encoding", "").strip().lower()
        if self.store.scheme != "http" or coding in ("", "identity"):
            return
        if coding in ("gzip", "x-gzip") and urlsplit(self.url).path.lower().endswith(_GZIPPED):
            return
        raise Refused(
            f"the server compresses what it sends (Content-Encoding: {coding[:40]}), although the "
            "request does not allow it: switch that off for these files",
            origin=self.origin(),
        )


def _content_type(response: Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
