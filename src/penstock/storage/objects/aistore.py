"""``ais://bucket/object``: NVIDIA AIStore, and other stores read through a cluster.

``AIS_ENDPOINT`` is the address of the cluster, ``AIS_AUTHN_TOKEN`` its token, if it needs one.
``USE_AIS_FOR=s3:gs`` sends all URLs of these schemes to the cluster, which fetches the objects from
their store and caches them.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote, urlencode, urljoin

from penstock import env
from penstock.errors import Origin, StorageError, UrlError
from penstock.redact import redact
from penstock.storage.auth.bearer_tokens import Token, find_token
from penstock.storage.client.store import (
    Body,
    Fields,
    FixedAddressStore,
    Listed,
    Page,
    Request,
    Store,
    parse_json,
)
from penstock.storage.objects.open_object import open_object
from penstock.storage.objects.spooled_writer import SpooledWriter
from penstock.storage.readers.remote_file import exchange
from penstock.storage.schemes import AIS_PROVIDERS

_REDIRECTS = (301, 302, 307, 308)


def open_ais(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """Open an object of an AIStore cluster, or of a store behind it, for reading or writing.

    >>> open_ais("ais://bucket", "rb")
    Traceback (most recent call last):
    ...
    penstock.errors.UrlError: 'ais://bucket' names no object: write ais://BUCKET/OBJECT
    """
    split_url(url)
    return open_object(AisStore(url), url, mode, buffer_bytes, **options)


def split_url(url: str, *, name_needed: bool = True) -> tuple[str, str, str]:
    """Return AIStore's provider, the bucket and the object's name.

    >>> split_url("gs://bucket/train/0.tar")
    ('gcp', 'bucket', 'train/0.tar')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    provider = AIS_PROVIDERS.get(scheme.lower())
    if provider is None:
        raise UrlError(f"AIStore has no objects of the kind {scheme}://: {redact(url)!r}")
    if not bucket or (name_needed and not name):
        raise UrlError(f"{redact(url)!r} names no object: write {scheme}://BUCKET/OBJECT")
    return provider, bucket, name


class AisStore(Store):
    """The cluster at ``AIS_ENDPOINT``. It redirects to the machine that has the object."""

    scheme = "ais"
    address_from = "AIS_ENDPOINT"

    def __init__(self, url: str) -> None:
        endpoint = env.text("AIS_ENDPOINT")
        if endpoint is None:
            raise StorageError(
                "no AIStore cluster is named: set AIS_ENDPOINT=http://HOST:PORT",
                origin=Origin(url),
            )
        self.endpoint = (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/")
        self._token = find_token(url, Token(_fetch_token))

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        provider, bucket, name = split_url(url)
        fields = urlencode({"provider": provider, **(query or {})})
        address = f"{self.endpoint}/v1/objects/{quote(bucket)}/{quote(name)}?{fields}"
        sent = {**(headers or {}), **self._token.headers()}
        sent.pop("If-Match", None)  # AIStore's versions are not ETags
        return Request(method, address, sent, body)

    def version(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("ais-version") or headers.get("ETag")

    def refresh(self) -> bool:
        return self._token.renew()

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        if status == 404:
            _, bucket, _ = split_url(url, name_needed=False)
            return f"there is no such object, or no bucket {bucket!r}: see 'ais ls'"
        if status in (401, 403):
            return f"AIStore refused access ({status}): set AIS_AUTHN_TOKEN to a token that may"
        return f"AIStore answered {status}"

    def list_page(self, prefix: str, deep: bool, token: str) -> Page:
        provider, bucket, name = split_url(prefix, name_needed=False)
        root = prefix[: len(prefix) - len(name)].rstrip("/") + "/"
        objects = FixedAddressStore(
            self,
            f"{self.endpoint}/v1/buckets/{quote(bucket)}?provider={provider}",
            {**self._token.headers(), "Content-Type": "application/json"},
        )
        listing, _, position = token.partition(" ")
        wanted = {"prefix": name, "props": "name,size"}
        wanted |= {"uuid": listing, "continuation_token": position}
        body = json.dumps({"action": "list", "value": wanted}).encode()
        _, _, page = exchange(objects, "GET", prefix, body=body)
        answer = parse_json(page)
        found = [
            Listed.of(root, entry["name"], entry.get("size"))
            for entry in answer.get("entries") or ()
        ]
        following = answer.get("continuation_token")
        return found, f"{answer.get('uuid') or ''} {following}" if following else ""

    def writer(self, url: str, **options: Any) -> AisWriter:
        return AisWriter(self, url, **options)


class AisWriter(SpooledWriter):
    """Sends an object as a whole when it is closed."""

    def __init__(self, store: AisStore, url: str, *, patience: Any = None) -> None:
        self._store, self._patience = store, patience
        super().__init__(url)

    def _upload(self) -> None:
        # The cluster only says where to send the object, so the first request has no body.
        _, headers, _ = exchange(
            self._store, "PUT", self.name, body=b"", patience=self._patience, ok=(200, *_REDIRECTS)
        )
        home = self._store.request("PUT", self.name)
        address = urljoin(home.url, headers.get("Location") or home.url)
        # The address itself grants access; the token is sent only to the cluster.
        target = FixedAddressStore(self._store, address)
        if self.tell() == 0:
            exchange(target, "PUT", self.name, body=b"", patience=self._patience)
            return
        with (
            mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            # A view is sent like bytes, without memory for the whole object.
            body = cast(bytes, view)
            exchange(target, "PUT", self.name, body=body, patience=self._patience)


def _fetch_token() -> tuple[str | None, float | None]:
    return env.text("AIS_AUTHN_TOKEN"), None
