"""Plain web servers: ``http://`` and ``https://``."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

from penstock.errors import UrlError
from penstock.redact import redact
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.client.store import Body, Fields, Request, Store
from penstock.storage.client.transport import PASSWORD_RULE
from penstock.storage.objects.open_object import open_object
from penstock.storage.readers.remote_file import exchange
from penstock.storage.streams import WriteStream


def open_http(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """Open an ``http://`` or ``https://`` URL for reading (by ranges) or writing (by PUT).

    Options: ``headers`` (sent with each request) and those of
    :class:`~penstock.storage.readers.remote_file.RemoteFile`. ``user:password@`` in the URL is
    sent as basic authorization and never shown.
    """
    address, password = split_password(url)
    store = HttpStore(headers=options.pop("headers", None), password=password)
    return open_object(store, address, mode, buffer_bytes, **options)


def split_password(url: str) -> tuple[str, str | None]:
    """Split ``user:password@`` off a URL; return the rest and ``user:password``.

    >>> split_password("https://me:a%40b@host/x.tar")
    ('https://host/x.tar', 'me:a@b')
    """
    try:
        parts = urlsplit(url)
        # A fragment is not sent: half of a password with a # in it would look like a port.
        if parts.port is not None and "@" in parts.fragment:
            raise ValueError
    except ValueError:
        raise UrlError(f"this is not a URL ({redact(url)}): {PASSWORD_RULE}") from None
    password, mark, host = parts.netloc.rpartition("@")
    if not mark:
        return url, None
    return urlunsplit(parts._replace(netloc=host)), unquote(password)


class HttpStore(Store):
    """A web server: its objects are addressed by their URLs."""

    scheme = "http"

    def __init__(
        self, *, headers: Mapping[str, str] | None = None, password: str | None = None
    ) -> None:
        self._headers = dict(headers or {})
        if password is not None:
            coded = base64.b64encode(password.encode()).decode("ascii")
            self._headers["Authorization"] = f"Basic {coded}"

    def __repr__(self) -> str:
        return "HttpStore()"  # the headers may be secrets

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        url = re.sub(r"#.*", "", url)
        if query:
            url += ("&" if "?" in url else "?") + urlencode(query)
        return Request(method, url, {**self._headers, **(headers or {})}, body)

    def version(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("ETag") or headers.get("Last-Modified")

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        remedy = {
            401: "the server wants a user and password: write https://USER:PASSWORD@HOST/...",
            403: "the server does not allow it: check the user, the password and the link's age",
            404: "there is no such object: check the path",
            405: "the server does not allow this kind of request here",
            410: "the object is gone",
            429: "too many requests",
        }.get(status)
        text = f"the server answered {status}"
        return f"{text}: {remedy}" if remedy else text

    def writer(self, url: str, **options: Any) -> PutStream:
        return PutStream(self, url, **options)


class PutStream(WriteStream):
    """Keeps an object in memory and sends it by one PUT when it is closed."""

    def __init__(
        self,
        store: Store,
        url: str,
        *,
        patience: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(url)
        self._store, self._patience, self._sent_headers = store, patience, headers
        self._data = bytearray()

    def _send(self, data: memoryview) -> int:
        self._data += data
        return len(data)

    def _finish(self) -> None:
        ok = (200, 201, 204)
        exchange(
            self._store,
            "PUT",
            self.name,
            headers=self._sent_headers,
            body=bytes(self._data),
            patience=self._patience,
            ok=ok,
        )
        self._data = bytearray()

    def _discard(self) -> None:
        self._data = bytearray()
