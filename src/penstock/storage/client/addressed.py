"""Requests to an address that a server gave or documents, instead of to an object's own."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from penstock.storage.client.store import Body, Fields, Request, Store


class Addressed(Store):
    """A store whose requests all go to one address: a listing, an upload under way, a target.

    Errors still name the user's URL and speak with the words of the store it is made for.

    >>> list_all = Addressed(Store(), "https://hub.example.org/api/tree", {"X-Key": "secret"})
    >>> list_all.request("GET", "hf://datasets/a/b/", query={"limit": "10"})
    Request(GET https://hub.example.org/api/tree)
    """

    def __init__(
        self, store: Store, address: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.scheme = store.scheme
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
