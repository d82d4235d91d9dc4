"""``az://container/blob`` and ``abfs://container@account.dfs.core.windows.net/path``: Azure blobs.

Credentials come from the names that Azure's own tools use: ``AZURE_STORAGE_CONNECTION_STRING``, an
account (``AZURE_STORAGE_ACCOUNT``) with a key (``AZURE_STORAGE_KEY``), with a SAS token
(``AZURE_STORAGE_SAS_TOKEN``), or with whoever is signed in (package azure-identity). Where there
is nothing but the account, requests are anonymous, which is enough for public containers.
"""

from __future__ import annotations

import base64
import dataclasses
import secrets
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from xml.etree import ElementTree

from penstock.errors import Origin, StorageError, UrlError

from penstock.storage.auth.azure_auth import account_for, shared_key
from penstock.storage.client.checksums import md5_of_base64
from penstock.storage.readers.remote_file import exchange
from penstock.storage.objects.open_object import open_remote
from penstock.storage.client.store import Body, Fields, Listed, Request, Store
from penstock.storage.streams import WriteStream

API_VERSION = "2021-08-06"
BLOCK_BYTES = 8 << 20


def open_azure(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """A blob, for reading or writing.

    >>> open_azure("az://container", "rb")
    Traceback (most recent call last):
    ...
    penstock.errors.UrlError: 'az://container' names no blob: write az://CONTAINER/NAME
    """
    if not place_of(url).name:
        raise UrlError(f"{url!r} names no blob: write az://CONTAINER/NAME")
    return open_remote(AzureStore(url), url, mode, buffer_bytes, **options)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The parts of a URL; no account means the one of the environment."""

    root: str  # what stands before the names in URLs of this container
    account: str | None
    container: str
    name: str


def place_of(url: str) -> Place:
    """The parts of a URL in any of the forms that Azure's users write.

    >>> place_of("az://shards/train/a.tar")
    Place(root='az://shards/', account=None, container='shards', name='train/a.tar')
    >>> place_of("abfss://shards@mine.dfs.core.windows.net/a.tar").account
    'mine'
    """
    scheme, _, rest = url.partition("://")
    host, _, name = rest.partition("/")
    container, _, account = host.partition("@")
    if not container:
        raise UrlError(f"{url!r} names no container: write {scheme or 'az'}://CONTAINER/NAME")
    return Place(f"{scheme}://{host}/", account.partition(".")[0] or None, container, name)


class AzureStore(Store):
    """Azure's blob service with the credentials for a URL's account."""

    scheme = "az"

    def __init__(self, url: str) -> None:
        self.account = account_for(url, place_of(url).account)

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        place = place_of(url)
        fields = dict(query or {})
        path = f"/{quote(place.container)}"
        if fields.get("restype") != "container":
            path += f"/{quote(place.name, safe='/~')}"
        address = self.account.endpoint + path
        sent = {"x-ms-version": API_VERSION, **(headers or {})}
        if body is not None:
            sent["Content-Length"] = str(len(body))
        if self.account.sas:
            fields.update(parse_qsl(self.account.sas, keep_blank_values=True))
        elif self.account.key:
            sent |= shared_key(self.account, method, urlsplit(address).path, sent, fields)
        else:
            sent |= self.account.token.headers()
        if fields:
            address += f"?{urlencode(fields, quote_via=quote)}"
        return Request(method, address, sent, body)

    def refresh(self) -> bool:
        return not (self.account.sas or self.account.key) and self.account.token.renew()

    def checksum(self, headers: Mapping[str, str]) -> str | None:
        return md5_of_base64(headers.get("x-ms-blob-content-md5"))

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        code = headers.get("x-ms-error-code") or ""
        if status == 404:
            what = {"ContainerNotFound": "container"}.get(code, "blob")
            return f"there is no such {what} in the account {self.account.name!r}"
        if status in (401, 403, 409) and not code.startswith("Blob"):
            return (
                f"access was refused ({status} {code}): {self.account.means()}; set "
                "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with "
                "AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or sign in with 'az login' and "
                "pip install 'penstock[azure]'"
            )
        return f"the server answered {status} {code}".rstrip()

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        place = place_of(prefix)
        query = {"restype": "container", "comp": "list", "prefix": place.name}
        if not deep:
            query["delimiter"] = "/"
        while True:
            _, _, page = exchange(self, "GET", prefix, query=query)
            try:
                tree = ElementTree.fromstring(page)
            except ElementTree.ParseError as exn:
                raise StorageError("the listing is not XML", origin=Origin(prefix)) from exn
            for blob in tree.iter("Blob"):
                size = blob.findtext("Properties/Content-Length")
                # Accounts with a tree of folders list these as blobs, too.
                if blob.findtext("Properties/ResourceType") != "directory":
                    yield Listed(place.root + (blob.findtext("Name") or ""), int(size or 0))
            marker = tree.findtext("NextMarker")
            if not marker:
                return
            query["marker"] = marker

    def writer(self, url: str, **options: Any) -> AzureWriter:
        return AzureWriter(self, url, **options)


class AzureWriter(WriteStream):
    """A blob put together from blocks: nothing is visible until the list of them is sent."""

    def __init__(
        self, store: AzureStore, url: str, *, part_bytes: int = BLOCK_BYTES, patience: Any = None
    ) -> None:
        self._store, self._patience = store, patience
        self._part_bytes = part_bytes
        self._blocks: list[str] = []
        # Two writers of one blob must not take each other's blocks for their own.
        self._mark = secrets.token_hex(8)
        super().__init__(url, part_bytes)

    def _send(self, data: memoryview) -> int:
        part = bytes(data[: self._part_bytes])
        block = base64.b64encode(f"{self._mark}-{len(self._blocks):06d}".encode()).decode()
        self._put({"comp": "block", "blockid": block}, part)
        self._blocks.append(block)
        return len(part)

    def _finish(self) -> None:
        names = "".join(f"<Uncommitted>{block}</Uncommitted>" for block in self._blocks)
        page = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{names}</BlockList>'
        self._put({"comp": "blocklist"}, page.encode())

    def _discard(self) -> None:
        self._blocks = []  # Azure drops blocks that no list names after a week

    def _put(self, query: Mapping[str, str], body: bytes) -> None:
        exchange(
            self._store,
            "PUT",
            self.name,
            query=query,
            body=body,
            patience=self._patience,
            ok=(201,),
        )
