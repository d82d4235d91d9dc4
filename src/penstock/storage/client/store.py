"""What a kind of store must know: how to ask for an object by HTTP, and how to list and write.

Everything that can go wrong on the way (broken connections, busy servers, short bodies, stalls,
objects that change) is the business of :mod:`penstock.storage.readers.remote_file` and
:mod:`penstock.storage.client.transport`, the same for all stores. A store only turns a URL such as
``s3://bucket/key`` into signed HTTP requests, and reads its own error pages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from penstock.errors import StorageError

Fields: TypeAlias = Mapping[str, str] | None
Body: TypeAlias = bytes | None


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, ready to be sent: signed, with everything in it."""

    method: str
    url: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: Body = None

    def __repr__(self) -> str:
        # Query strings and headers hold signatures and keys: never show them.
        return f"Request({self.method} {self.url.split('?', 1)[0]})"


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """An object found by listing: its URL and its size in bytes."""

    url: str
    size_bytes: int | None = None


class Store:
    """A kind of store with one set of credentials. Pickles hold names of keys, never the keys.

    ``url`` in all methods is the user's own (``s3://bucket/key``), and what messages show.
    """

    scheme: str = ""

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        """The signed request for an object. ``Range`` and ``If-Match`` come in ``headers``."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Get new credentials after the server refused the old ones; False where there are none."""
        return False

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        """What an error answer means, in words with a remedy: the engine raises it with the URL."""
        return f"the server answered {status}"

    def moved(self, url: str, address: str) -> None:
        """The object was found at another address, to which the server sent us on."""

    def expired(self, status: int, page: bytes) -> bool:
        """Whether an answer says that the credentials have run out, so that refreshing may help."""
        return status == 401

    def version(self, headers: Mapping[str, str]) -> str | None:
        """What tells two versions of an object apart: the ETag, unless the store has better."""
        return headers.get("ETag")

    def checksum(self, headers: Mapping[str, str]) -> str | None:
        """The sum over the whole object that the store declares (``"md5:HEX"``), if it does."""
        return None

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        """The objects whose URLs begin with ``prefix``, in order.

        Without ``deep``, those behind a further slash need not be among them.
        """
        raise StorageError(f"{self.scheme}:// cannot be listed: name the shards one by one")

    def writer(self, url: str, **options: Any) -> Any:
        """A :class:`~penstock.storage.WriteStream`: nothing is visible until ``close()``."""
        raise StorageError(f"{self.scheme}:// cannot be written to")
