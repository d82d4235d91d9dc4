"""``az://container/blob`` and ``abfs://container@account.dfs.core.windows.net/path``: Azure blobs.

Credentials come from the variables of Azure's tools: ``AZURE_STORAGE_CONNECTION_STRING``, or an
account (``AZURE_STORAGE_ACCOUNT``) with a key (``AZURE_STORAGE_KEY``), with a SAS token
(``AZURE_STORAGE_SAS_TOKEN``), or with the signed-in user (package azure-identity). With nothing but
the account, requests are anonymous, which is enough for public containers.
"""

from __future__ import annotations

import base64
import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from xml.etree import ElementTree

from penstock.errors import UrlError, pip_install
from penstock.redact import redact
from penstock.storage.auth.azure_auth import account_for, sign_shared_key
from penstock.storage.client.checksums import parse_base64_md5
from penstock.storage.client.store import Body, Fields, Listed, Page, Request, Store
from penstock.storage.objects.open_object import open_object
from penstock.storage.readers.remote_file import exchange
from penstock.storage.streams import WriteStream

API_VERSION = "2021-08-06"
BLOCK_BYTES = 8 << 20


def open_azure(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """Open a blob for reading or writing.

    >>> open_azure("az://container", "rb")
    Traceback (most recent call last):
    ...
    penstock.errors.UrlError: 'az://container' names no blob: write az://CONTAINER/NAME
    """
    if not parse_url(url).name:
        raise UrlError(f"{redact(url)!r} names no blob: write az://CONTAINER/NAME")
    return open_object(AzureStore(url), url, mode, buffer_bytes, **options)


@dataclasses.dataclass(frozen=True, slots=True)
class BlobAddress:
    """The parts of a URL; without an account, the environment's is used."""

    root: str  # the part of the container's URLs before the names
    account: str | None
    container: str
    name: str


def parse_url(url: str) -> BlobAddress:
    """Parse a URL in any of the forms that Azure's users write.

    >>> parse_url("az://shards/train/a.tar")
    BlobAddress(root='az://shards/', account=None, container='shards', name='train/a.tar')
    >>> parse_url("abfss://shards@mine.dfs.core.windows.net/a.tar").account
    'mine'
    """
    scheme, _, rest = url.partition("://")
    host, _, name = rest.partition("/")
    container, _, account = host.partition("@")
    if not container:
        raise UrlError(
            f"{redact(url)!r} names no container: write {scheme or 'az'}://CONTAINER/NAME"
        )
    return BlobAddress(f"{scheme}://{host}/", account.partition(".")[0] or None, container, name)


class AzureStore(Store):
    """Azure's blob service with the credentials for a URL's account."""

    scheme = "az"

    def __init__(self, url: str) -> None:
        self.account = account_for(url, parse_url(url).account)

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        blob = parse_url(url)
        fields = dict(query or {})
        path = f"/{quote(blob.container)}"
        if fields.get("restype") != "container":
            path += f"/{quote(blob.name, safe='/~')}"
        address = self.account.endpoint + path
        sent = {"x-ms-version": API_VERSION, **(headers or {})}
        if body is not None:
            sent["Content-Length"] = str(len(body))
        if self.account.sas:
            fields.update(parse_qsl(self.account.sas, keep_blank_values=True))
        elif self.account.key:
            sent |= sign_shared_key(self.account, method, urlsplit(address).path, sent, fields)
        else:
            sent |= self.account.token.headers()
        if fields:
            address += f"?{urlencode(fields, quote_via=quote)}"
        return Request(method, address, sent, body)

    def refresh(self) -> bool:
        return not (self.account.sas or self.account.key) and self.account.token.renew()

    def checksum(self, headers: Mapping[str, str]) -> str | None:
        return parse_base64_md5(headers.get("x-ms-blob-content-md5"))

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        code = headers.get("x-ms-error-code") or ""
        if status == 404:
            what = {"ContainerNotFound": "container"}.get(code, "blob")
            return f"there is no such {what} in the account {self.account.name!r}"
        if status in (401, 403, 409) and not code.startswith("Blob"):
            return (
                f"access was refused ({status} {code}): {self.account.explain_refusal()}; set "
                "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with "
                "AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or sign in with 'az login' and "
                + pip_install("azure")
            )
        return f"the server answered {status} {code}".rstrip()

    def list_page(self, prefix: str, deep: bool, token: str) -> Page:
        container = parse_url(prefix)
        query = {"restype": "container", "comp": "list", "prefix": container.name}
        if not deep:
            query["delimiter"] = "/"
        if token:
            query["marker"] = token
        _, _, page = exchange(self, "GET", prefix, query=query)
        tree = ElementTree.fromstring(page)
        if tree.tag != "EnumerationResults":
            raise ValueError("not a listing of Azure's")
        length = "Properties/Content-Length"
        found = [
            Listed.of(
                container.root,
                blob.findtext("Name"),
                blob.findtext(length),
                blob.findtext("Properties/Etag"),
            )
            for blob in tree.iter("Blob")
            # Accounts with hierarchical namespaces list folders as blobs, too.
            if blob.findtext("Properties/ResourceType") != "directory"
        ]
        return found, tree.findtext("NextMarker") or ""

    def writer(self, url: str, **options: Any) -> AzureWriter:
        return AzureWriter(self, url, **options)

    def put(self, url: str, data: bytes, *, exclusive: bool = False) -> bool:
        headers = {"x-ms-blob-type": "BlockBlob", **({"If-None-Match": "*"} if exclusive else {})}
        status, _, _ = exchange(self, "PUT", url, headers=headers, body=data, ok=(201, 409, 412))
        return status == 201

    def delete(self, url: str) -> None:
        exchange(self, "DELETE", url, ok=(202, 404))


class AzureWriter(WriteStream):
    """Writes a blob as blocks; nothing is visible until the list of blocks is sent."""

    def __init__(
        self, store: AzureStore, url: str, *, part_bytes: int = BLOCK_BYTES, patience: Any = None
    ) -> None:
        self._store, self._patience = store, patience
        self._part_bytes = part_bytes
        self._blocks: list[str] = []
        # Two writers of one blob must not use each other's blocks.
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
        self._blocks = []  # Azure deletes blocks that are in no list after a week

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
