"""The interface of a kind of store: how to request, list and write objects by HTTP.

A store only turns a URL such as ``s3://bucket/key`` into signed HTTP requests, and explains its
error responses. Broken connections, busy servers, short bodies, stalls and changing objects are
handled by :mod:`penstock.storage.client.retrying` and :mod:`penstock.storage.readers`, the same
for all stores.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlencode

from penstock.errors import Origin, PenstockError, StorageError

Fields: TypeAlias = Mapping[str, str] | None
Body: TypeAlias = bytes | None


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, complete and signed."""

    method: str
    url: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: Body = None

    def __repr__(self) -> str:
        # Query strings and headers contain signatures and keys: never show them.
        return f"Request({self.method} {self.url.split('?', 1)[0]})"


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """An object found by listing: its URL, its size in bytes, and its version (ETag, generation).

    The version is the one that reading the object reports, or None where the listing has none.
    """

    url: str
    size_bytes: int | None = None
    version: str | None = None

    @classmethod
    def of(cls, root: str, name: Any, size: Any, version: Any = None) -> Listed:
        """Return the object of an entry in a listing. A wrong name or size raises a ValueError.

        >>> Listed.of("gs://bucket/", "a.tar", "5").size_bytes
        5
        """
        if not isinstance(name, str) or not (
            size is None or re.fullmatch(r"[0-9]{1,18}", str(size))
        ):
            raise ValueError("an entry without a name, or with a size that is not a number")
        version = str(version) if version else None
        return cls(root + name, None if size is None else int(size), version)


Page: TypeAlias = tuple[list[Listed], str]
"""A page of a listing, and the token of the next page; the last one has ``""``."""
EMPTY_PAGES = 1000
"""Maximum number of consecutive pages of a listing without an object."""
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, SyntaxError)
"""What code that reads a document raises if it does not have the expected form.

The XML parser raises a SyntaxError.
"""


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text. Anything wrong with it raises a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


class Store:
    """A kind of store with one set of credentials. Pickles contain names of keys, never the keys.

    ``url`` in all methods is the user's (``s3://bucket/key``), which messages show.
    """

    scheme: str = ""
    address_from: str = ""
    """The environment variable that names the server, if one does."""

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        """Return the signed request for an object. ``headers`` may have Range and If-Match."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Get new credentials after the server refused the old ones. Return False if none exist."""
        return False

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        """Explain an error response, with a remedy; the caller raises it with the URL."""
        return f"the server answered {status}"

    def moved(self, url: str, address: str) -> None:
        """Record that the server redirected requests for the object to another address."""

    def expired(self, status: int, page: bytes) -> bool:
        """Return whether the response says that the credentials have expired."""
        return status == 401

    def version(self, headers: Mapping[str, str]) -> str | None:
        """Return what identifies an object's version: the ETag, unless the store has better."""
        return headers.get("ETag")

    def checksum(self, headers: Mapping[str, str]) -> str | None:
        """Return the checksum that the store declares for the object (``"md5:HEX"``), if any."""
        return None

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        """Yield the objects whose URLs begin with ``prefix``, in order.

        Without ``deep``, those after a further slash may be left out. A listing that repeats a
        page, or that is not one of this kind of store, raises a StorageError.
        """
        token, seen, empty = "", {""}, 0
        while True:
            try:
                found, token = self.list_page(prefix, deep, token)
            except PenstockError:
                raise
            except MALFORMED as exn:
                raise StorageError(
                    f"the listing is not one of a {self.scheme}:// store: check the address of "
                    "the server",
                    origin=Origin(prefix),
                ) from exn
            yield from found
            empty = 0 if found else empty + 1
            if not token:
                return
            if token in seen or empty > EMPTY_PAGES:
                how = "leads back to an earlier page" if token in seen else "has only empty pages"
                raise StorageError(f"the server's listing {how}", origin=Origin(prefix))
            seen.add(token)

    def list_page(self, prefix: str, deep: bool, token: str) -> Page:
        """Return the page that the token of the previous page names; ``""`` names the first.

        A malformed response may raise any of the errors in ``MALFORMED``.
        """
        raise StorageError(f"{self.scheme}:// cannot be listed: name the shards one by one")

    def writer(self, url: str, **options: Any) -> Any:
        """Return a :class:`~penstock.storage.WriteStream`. Nothing is visible until ``close()``."""
        raise StorageError(f"{self.scheme}:// cannot be written to")

    def put(self, url: str, data: bytes, *, exclusive: bool = False) -> bool:
        """Store a small object with one request.

        With ``exclusive``, only if no object has that name; return False if one has. A server may
        ignore that condition.
        """
        raise StorageError(f"{self.scheme}:// cannot be written to")

    def delete(self, url: str) -> None:
        """Delete an object. A missing one is not an error."""
        raise StorageError(f"objects of {self.scheme}:// cannot be deleted")


class FixedAddressStore(Store):
    """A store whose requests all go to one address: a listing, or the target of an upload.

    Errors still name the user's URL and are explained by the store that it wraps.

    >>> list_all = FixedAddressStore(Store(), "https://hub.example.org/api/tree", {"X-Key": "k"})
    >>> list_all.request("GET", "hf://datasets/a/b/", query={"limit": "10"})
    Request(GET https://hub.example.org/api/tree)
    """

    def __init__(
        self, store: Store, address: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.scheme, self.address_from = store.scheme, store.address_from
        self._store, self._address, self._headers = store, address, dict(headers or {})

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        address = self._address
        if query:
            address += ("&" if "?" in address else "?") + urlencode(query)
        return Request(method, address, {**self._headers, **(headers or {})}, body)

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        return self._store.refusal(url, status, headers, page)
