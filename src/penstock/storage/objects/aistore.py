"""``ais://bucket/object``: NVIDIA AIStore, and other stores read through one.

``AIS_ENDPOINT`` is the address of the cluster, ``AIS_AUTHN_TOKEN`` the token where it wants one.
``USE_AIS_FOR=s3:gs`` sends all URLs of these schemes to the cluster, which fetches the objects
from where they are and keeps them near.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote, urlencode, urljoin

from penstock import env
from penstock.errors import Origin, StorageError, UrlError

from penstock.storage.client.addressed import Addressed
from penstock.storage.readers.remote_file import exchange
from penstock.storage.objects.open_object import open_remote
from penstock.storage.routes import PROVIDERS
from penstock.storage.objects.spooled_writer import SpooledWriter
from penstock.storage.client.store import Body, Fields, Listed, Request, Store
from penstock.storage.auth.bearer_tokens import Token, token_for

_REDIRECTS = (301, 302, 307, 308)


def open_ais(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """An object in an AIStore cluster or behind one, for reading or writing.

    >>> open_ais("ais://bucket", "rb")
    Traceback (most recent call last):
    ...
    penstock.errors.UrlError: 'ais://bucket' names no object: write ais://BUCKET/OBJECT
    """
    split_url(url)
    return open_remote(AisStore(url), url, mode, buffer_bytes, **options)


def split_url(url: str, *, name_needed: bool = True) -> tuple[str, str, str]:
    """AIStore's provider, the bucket and the object's name.

    >>> split_url("gs://bucket/train/0.tar")
    ('gcp', 'bucket', 'train/0.tar')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    provider = PROVIDERS.get(scheme.lower())
    if provider is None:
        raise UrlError(f"AIStore has no objects of the kind {scheme}://: {url!r}")
    if not bucket or (name_needed and not name):
        raise UrlError(f"{url!r} names no object: write {scheme}://BUCKET/OBJECT")
    return provider, bucket, name


class AisStore(Store):
    """The cluster at ``AIS_ENDPOINT``. Its answers lead on to the machine that has the object."""

    scheme = "ais"

    def __init__(self, url: str) -> None:
        endpoint = env.text("AIS_ENDPOINT")
        if endpoint is None:
            raise StorageError(
                "no AIStore cluster is named: set AIS_ENDPOINT=http://HOST:PORT",
                origin=Origin(url),
            )
        self.endpoint = (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/")
        self._token = token_for(url, Token(_ais_token))

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        provider, bucket, name = split_url(url)
        fields = urlencode({"provider": provider, **(query or {})})
        address = f"{self.endpoint}/v1/objects/{quote(bucket)}/{quote(name)}?{fields}"
        sent = {**(headers or {}), **self._token.headers()}
        sent.pop("If-Match", None)  # AIStore's versions are no ETags
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

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        provider, bucket, name = split_url(prefix, name_needed=False)
        root = prefix[: len(prefix) - len(name)].rstrip("/") + "/"
        objects = Addressed(
            self,
            f"{self.endpoint}/v1/buckets/{quote(bucket)}?provider={provider}",
            {**self._token.headers(), "Content-Type": "application/json"},
        )
        wanted = {"prefix": name, "props": "name,size", "uuid": "", "continuation_token": ""}
        while True:
            body = json.dumps({"action": "list", "value": wanted}).encode()
            _, _, page = exchange(objects, "GET", prefix, body=body)
            try:
                answer = json.loads(page)
                entries = [(e["name"], e.get("size")) for e in answer.get("entries") or ()]
            except (ValueError, KeyError, TypeError, AttributeError) as exn:
                raise StorageError("the listing is not AIStore's", origin=Origin(prefix)) from exn
            for found, size in entries:
                yield Listed(root + found, None if size is None else int(size))
            wanted["uuid"] = answer.get("uuid") or ""
            wanted["continuation_token"] = answer.get("continuation_token") or ""
            if not wanted["continuation_token"]:
                return

    def writer(self, url: str, **options: Any) -> AisWriter:
        return AisWriter(self, url, **options)


class AisWriter(SpooledWriter):
    """An object that is sent as a whole when it is closed."""

    def __init__(self, store: AisStore, url: str, *, patience: Any = None) -> None:
        self._store, self._patience = store, patience
        super().__init__(url)

    def _upload(self) -> None:
        # The cluster only tells where to send the object, so it is first asked without one.
        _, headers, _ = exchange(
            self._store, "PUT", self.name, body=b"", patience=self._patience, ok=(200, *_REDIRECTS)
        )
        home = self._store.request("PUT", self.name)
        place = urljoin(home.url, headers.get("Location") or home.url)
        # The address itself carries the right to write there; the token stays with the cluster.
        target = Addressed(self._store, place)
        if self.tell() == 0:
            exchange(target, "PUT", self.name, body=b"", patience=self._patience)
            return
        with (
            mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            # A view is sent like bytes, but needs no memory for the whole object.
            body = cast(bytes, view)
            exchange(target, "PUT", self.name, body=body, patience=self._patience)


def _ais_token() -> tuple[str | None, float | None]:
    return env.text("AIS_AUTHN_TOKEN"), None
