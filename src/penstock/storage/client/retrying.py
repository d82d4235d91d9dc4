"""Bytes of one object, asked for until they are there: checks on every answer, and trying again.

A :class:`Source` is one object of a store with what is known of it. Its methods give the right
bytes or raise; what is a passing fault, and for how long to put up with it, is told by
:class:`~penstock.storage.client.retry_policy.Patience`.
"""

from __future__ import annotations

import logging
import os.path
import re
import threading
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from penstock.errors import Origin, StorageError
from penstock.redact import shown

from penstock.storage.client.response import Answer, Fault, UnknownHost
from penstock.storage.client.deadlines import Stop, stopped_by
from penstock.storage.local.files import MissingFile
from penstock.storage.client.retry_policy import PROGRESS_BYTES, Patience, Tries
from penstock.storage.client.store import Store
from penstock.storage.client.transport import refreshing, send

logger = logging.getLogger("penstock.storage")

T = TypeVar("T")
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that may be gone at the next try."""
TOLD_TRIES = 3
"""From this failure on, the log's reader is warned."""
PAGES = {
    "text/html": (".html", ".htm"),
    "application/xhtml+xml": (".xhtml", ".html"),
    "application/xml": (".xml",),
    "text/xml": (".xml",),
}
"""Kinds of pages that servers send instead of data, and the names that really are such pages."""
_GZIPPED = (".gz", ".tgz")
_SHARD = re.compile(r"\.(tar(\.\w+)?|tgz)$", re.IGNORECASE)


class Refused(StorageError):
    """The server said no, and would say no again; ``status`` is its answer."""

    status: int = 0


class MissingObject(MissingFile):
    """The server has no such object."""

    status: int = 404


class Changed(StorageError):
    """The object was replaced while it was read."""


class Cancelled(Exception):
    """Nobody waits for these bytes any more."""


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
    patience: Patience | None = None,
    ok: Collection[int] = (200,),
) -> tuple[int, Mapping[str, str], bytes]:
    """One small request and its whole answer: status, headers, body.

    A status outside ``ok`` is an error: :class:`MissingObject` for 404, :class:`Refused` for
    others, at once or, where it may pass, when patience has ended.
    """
    source = Source(store, url, patience or Patience())

    def act() -> tuple[int, Mapping[str, str], bytes]:
        request = store.request(method, url, headers=headers, query=query, body=body)
        answer = send(request, patience=source.patience)
        if answer.status not in ok:
            raise source.no(answer)
        return answer.status, answer.headers, b"" if method == "HEAD" else answer.body()

    what = "cannot read" if method in ("GET", "HEAD") else "cannot write"
    return source.persist(act, what=what)


class Source:
    """One object of a store: its size and version as soon as an answer has told them."""

    def __init__(self, store: Store, url: str, patience: Patience) -> None:
        self.store, self.url, self.patience = store, url, patience
        self.size: int | None = None
        self.version: str | None = None
        self.declared: str | None = None
        """The checksum of the object, where the store tells one."""
        self.encrypted = False
        """Whether the ETag cannot be a sum of the bytes, since they are stored as others."""
        self.ranged: bool | None = None
        """Whether the server answers ranges; None before the first answer."""
        self.near = False
        """Whether one connection to the server is as good as several."""

    def origin(self, offset: int | None = None) -> Origin:
        return Origin(shown(self.url), offset=offset)

    def ask(self, offset: int, length: int) -> tuple[Answer, int]:
        """One try: the answer to a range, checked, and how many bytes of it the body holds.

        The whole object comes back from a server that knows no ranges: then ``ranged`` is False
        and the body begins at byte 0.
        """
        if self.ranged is False:
            return self.ask_whole()
        last = offset + length - 1
        headers = {"Range": f"bytes={offset}-{last}", "Accept-Encoding": "identity"}
        request = self.store.request("GET", self.url, headers=headers)
        answer = send(request, patience=self.patience)
        try:
            if answer.status == 206:
                return answer, self._check_range(answer, offset, last)
            if answer.status == 416 and self.size is None:
                answer.page()  # beyond the end; an empty object has not even a first byte
                return self.ask(0, 1) if offset else self.ask_whole()
            if answer.status == 416:
                raise self._changed("it is shorter now", offset)
            if answer.status != 200:
                raise self.no(answer, offset)
            if self.ranged:
                raise Fault("the server ignored the range this time")
            return self._check_whole(answer)
        except BaseException:
            answer.close()
            raise

    def ask_whole(self) -> tuple[Answer, int]:
        """One try without a range: the answer, and the size of the object."""
        headers = {"Accept-Encoding": "identity"}
        request = self.store.request("GET", self.url, headers=headers)
        answer = send(request, patience=self.patience)
        try:
            if answer.status != 200:
                raise self.no(answer)
            return self._check_whole(answer)
        except BaseException:
            answer.close()
            raise

    def fill(
        self,
        offset: int,
        view: memoryview,
        came: Callable[[int], None],
        *,
        answer: Answer | None = None,
        stop: Stop | None = None,
    ) -> None:
        """Fill the view with the bytes from ``offset`` on, however often that must be tried.

        ``came`` is told how many are there in all, each time some more are. An ``answer`` that is
        open already is read first. Needs a server that knows ranges.
        """
        got = 0

        def act() -> None:
            nonlocal answer, got
            now, answer = answer, None
            asked = got
            if now is None:
                now, _ = self.ask(offset + got, len(view) - got)
            elif stop is not None:
                stop.watch(now.socket)
            try:
                while got < len(view):
                    if stop is not None and stop.is_set():
                        raise Cancelled
                    count = now.readinto(view[got:])
                    if not count:  # some servers send less than was asked for
                        if got - asked < PROGRESS_BYTES:
                            raise Fault("the body was shorter than the range")
                        asked = got
                        now, _ = self.ask(offset + got, len(view) - got)
                    got += count
                    came(got)
            finally:
                now.close()

        with stopped_by(stop):
            self.persist(act, gained=lambda: got, offset=offset, stop=stop)

    def persist(
        self,
        act: Callable[[], T],
        *,
        gained: Callable[[], int] = lambda: 0,
        offset: int | None = None,
        stop: threading.Event | None = None,
        what: str = "cannot read",
        tries: Tries | None = None,
    ) -> T:
        """Do it until it works, patience ends, or ``stop`` is set.

        ``tries`` are the failures so far, of who does many small things one after the other.
        """
        tries = self.patience.tries() if tries is None else tries
        refreshed = False
        while True:
            before = gained()
            try:
                return act()
            except _Expired as exn:
                if refreshed or not self._refresh():
                    raise exn.refusal from None
                refreshed = True
            except Fault as exn:
                now = offset + gained() if offset is not None else None
                wait = tries.failed(gained() - before, exn.retry_after)
                if isinstance(exn, UnknownHost) and self.size is None:
                    wait = None
                if wait is None:
                    raise self._given_up(what, exn, tries.count, tries.seconds, now) from None
                level = logging.INFO if tries.count < TOLD_TRIES else logging.WARNING
                logger.log(level, "%s: %s; again in %.1f s", self.origin(now), exn, wait)
                if (stop or threading.Event()).wait(wait):
                    raise Cancelled from None

    def no(self, answer: Answer, offset: int | None = None) -> Exception:
        """The error for an answer that is not what was asked for; its page is read here."""
        page = answer.page()
        words = self.store.refusal(self.url, answer.status, answer.headers, page)
        error: StorageError
        if answer.status in (404, 410):
            error = MissingObject(f"cannot open: {words}", origin=self.origin())
        else:
            refused = Refused(f"cannot open: {words}", origin=self.origin(offset))
            refused.status = answer.status
            error = refused
        if self.store.expired(answer.status, page):
            return _Expired(error)
        if answer.status in PASSING:
            return Fault(words, answer.retry_after())
        return error

    def _given_up(
        self, what: str, exn: Fault, count: int, seconds: float, offset: int | None
    ) -> StorageError:
        tries = f"{count} tries in {seconds:.1f} s" if count > 1 else "1 try"
        wish = f"; the server asks to wait {exn.retry_after:g} s" if exn.retry_after else ""
        return StorageError(f"{what}: {exn}{wish} (after {tries})", origin=self.origin(offset))

    def _refresh(self) -> bool:
        # One at a time: the others find new credentials made by the first, and refresh again at
        # most once each.
        with refreshing():
            return self.store.refresh()

    def _check_range(self, answer: Answer, first: int, last: int) -> int:
        told = answer.headers.get("Content-Range", "").strip()
        found = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", told)
        if found is None:
            raise Fault("the answer does not tell which range it holds")
        begin, end, total = map(int, found.groups())
        if begin != first or not begin <= end <= last or end >= total:
            raise Fault(f"bytes {first} to {last} were asked for, {begin} to {end} came")
        if answer.length is not None and answer.length > end - begin + 1:
            raise Fault("the answer is longer than its range")
        self._check_kind(answer)
        self._learn(answer, total, first, ranged=True)
        if answer.moved_to is not None:
            self.store.moved(self.url, answer.moved_to)
        return end - begin + 1

    def _check_whole(self, answer: Answer) -> tuple[Answer, int]:
        self._check_kind(answer)
        kind = _kind(answer)
        if kind.endswith("json") and _SHARD.search(urlsplit(self.url).path):
            raise self._page(kind)
        if answer.length is None:
            raise StorageError(
                "the server tells neither a length nor ranges, so that a body that ends early "
                "looks like a whole one; if that may be, read with 'pipe:curl -sf URL'",
                origin=self.origin(),
            )
        self._learn(answer, answer.length, 0, ranged=False)
        return answer, answer.length

    def _learn(self, answer: Answer, total: int, offset: int, *, ranged: bool) -> None:
        version = self.store.version(answer.headers)
        if self.size is None:
            self.version, self.ranged = version, ranged
            self.declared = self.store.checksum(answer.headers)
            kind = answer.headers.get("x-amz-server-side-encryption", "")
            own = "x-amz-server-side-encryption-customer-algorithm" in answer.headers
            self.encrypted = own or "kms" in kind.lower()
            self.size = total  # last: other threads take it for the sign that all is known
        elif total != self.size or version != self.version:
            was = f"it had {self.size} bytes and the version {self.version}"
            raise self._changed(f"{was}, now {total} and {version}", offset)

    def _changed(self, how: str, offset: int) -> Changed:
        return Changed(
            f"the object was replaced while it was read: {how}; read it anew",
            origin=self.origin(offset),
        )

    def _check_kind(self, answer: Answer) -> None:
        self._check_coding(answer)
        kind = _kind(answer)
        suffix = os.path.splitext(urlsplit(self.url).path)[1].lower()
        if kind in PAGES and suffix and suffix not in PAGES[kind]:
            raise self._page(kind)

    def _page(self, kind: str) -> Refused:
        return Refused(
            f"the server sent a page ({kind}) instead of the data: an error or log-in page?",
            origin=self.origin(),
        )

    def _check_coding(self, answer: Answer) -> None:
        """Refuse what a web server has packed: its ranges and length are not the object's.

        Stores of objects only repeat what the writer noted, and so do servers for names in .gz.
        """
        coding = answer.headers.get("Content-Encoding", "").strip().lower()
        if self.store.scheme != "http" or coding in ("", "identity"):
            return
        if coding in ("gzip", "x-gzip") and urlsplit(self.url).path.lower().endswith(_GZIPPED):
            return
        raise Refused(
            f"the server packs what it sends (Content-Encoding: {coding[:40]}), although it was "
            "asked not to: switch that off for these files",
            origin=self.origin(),
        )


def _kind(answer: Answer) -> str:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
