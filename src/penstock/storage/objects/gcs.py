"""``gs://bucket/key``: Google Cloud Storage, through its JSON API.

Credentials are those of Google's tools (``GOOGLE_APPLICATION_CREDENTIALS``, those of ``gcloud auth
application-default login``, the machine's service account) and need the package google-auth.
Without credentials, requests are anonymous, which is enough for public buckets.
``STORAGE_EMULATOR_HOST`` names an emulator, which gets no credentials.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from penstock import env
from penstock.errors import MissingPackage, Origin, StorageError, UrlError
from penstock.redact import redact
from penstock.storage.auth.bearer_tokens import Token, find_scheme_key, find_token, no_token
from penstock.storage.client.checksums import parse_base64_md5
from penstock.storage.client.store import (
    MALFORMED,
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
from penstock.storage.readers.remote_file import exchange
from penstock.storage.streams import WriteStream

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
PART_BYTES = 8 << 20
_PART_UNIT = 256 << 10  # all parts of an upload but the last are multiples of this


def open_gcs(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """Open an object of Google Cloud Storage for reading or writing.

    >>> open_gcs("gs://", "rb")
    Traceback (most recent call last):
    ...
    penstock.errors.UrlError: 'gs://' names no object: write gs://BUCKET/KEY
    """
    split_url(url)
    return open_object(GoogleStore(url), url, mode, buffer_bytes, **options)


def split_url(url: str, *, key_needed: bool = True) -> tuple[str, str]:
    """Return bucket and key. The key is not decoded: ``%20`` in it is three characters.

    >>> split_url("gs://bucket/train/a b%20.tar")
    ('bucket', 'train/a b%20.tar')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket or (key_needed and not key):
        raise UrlError(f"{redact(url)!r} names no object: write {scheme or 'gs'}://BUCKET/KEY")
    return bucket, key


class GoogleStore(Store):
    """Google Cloud Storage with the credentials for a URL's bucket."""

    scheme = "gs"

    def __init__(self, url: str) -> None:
        key = find_scheme_key(url)
        own = key.endpoint if key is not None else None
        emulator = env.text("STORAGE_EMULATOR_HOST")
        if emulator and "://" not in emulator:
            emulator = f"http://{emulator}"
        self.endpoint = (own or emulator or ENDPOINT).rstrip("/")
        self.address_from = "STORAGE_EMULATOR_HOST" if emulator and own is None else ""
        silent = emulator is not None and own is None
        self._token = Token(no_token) if silent else find_token(url, _TOKEN)

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        _, key = split_url(url)
        fields = {**(query or {}), "alt": "media"}
        # Otherwise the server decompresses objects stored with "Content-Encoding: gzip", and
        # neither sizes nor ranges are those of the object.
        sent = {**(headers or {}), **self._token.headers(), "Accept-Encoding": "gzip"}
        wanted = sent.pop("If-Match", None)
        if wanted is not None:
            fields["ifGenerationMatch"] = wanted.strip('"')
        address = f"{self._bucket(url)}/{quote(key, safe='')}?{urlencode(fields)}"
        return Request(method, address, sent, body)

    def _bucket(self, url: str, kind: str = "") -> str:
        bucket, _ = split_url(url, key_needed=False)
        return f"{self.endpoint}{kind}/storage/v1/b/{quote(bucket, safe='')}/o"

    def uploads(self, url: str) -> FixedAddressStore:
        """Return the store for starting uploads to the URL's bucket."""
        return FixedAddressStore(self, self._bucket(url, "/upload"), self._token.headers())

    def version(self, headers: Mapping[str, str]) -> str | None:
        """Return the object's generation, which changes whenever it is written."""
        return headers.get("x-goog-generation") or headers.get("ETag")

    def checksum(self, headers: Mapping[str, str]) -> str | None:
        if headers.get("x-goog-stored-content-encoding", "identity") != "identity":
            return None  # a checksum of the compressed bytes
        found = re.search(r"md5=([A-Za-z0-9+/]+={0,2})", headers.get("x-goog-hash", ""))
        return parse_base64_md5(found[1]) if found else None

    def refresh(self) -> bool:
        return self._token.renew()

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        bucket, _ = split_url(url, key_needed=False)
        if status == 404:
            return f"there is no such object, or no bucket {bucket!r}: see 'gcloud storage ls'"
        if status in (401, 403):
            have = (
                "the credentials in use" if self._token.text() else "no credentials were found, and"
            )
            return (
                f"access was refused ({status}): {have} may not read or write here; set "
                "GOOGLE_APPLICATION_CREDENTIALS or run 'gcloud auth application-default login'"
            )
        return f"the server answered {status}{_read_reason(page)}"

    def list_page(self, prefix: str, deep: bool, token: str) -> Page:
        bucket, key = split_url(prefix, key_needed=False)
        query = {"prefix": key, "fields": "items(name,size,generation),nextPageToken"}
        if not deep:
            query["delimiter"] = "/"
        if token:
            query["pageToken"] = token
        objects = FixedAddressStore(self, self._bucket(prefix), self._token.headers())
        _, _, page = exchange(objects, "GET", prefix, query=query)
        answer = parse_json(page)
        root = f"gs://{bucket}/"
        items = answer.get("items") or ()
        found = [
            Listed.of(root, item["name"], item.get("size"), item.get("generation"))
            for item in items
        ]
        return found, str(answer.get("nextPageToken") or "")

    def writer(self, url: str, **options: Any) -> GoogleWriter:
        return GoogleWriter(self, url, **options)

    def put(self, url: str, data: bytes, *, exclusive: bool = False) -> bool:
        # In two parts, since test servers heed the condition only then.
        query = {"uploadType": "multipart"}
        if exclusive:
            query["ifGenerationMatch"] = "0"
        mark = secrets.token_hex(16)
        about = json.dumps({"name": split_url(url)[1]})
        begin = f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n"
        begin += f"--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n"
        sent: dict[str, Any] = {
            "query": query,
            "headers": {"Content-Type": f"multipart/related; boundary={mark}"},
            "body": begin.encode() + data + f"\r\n--{mark}--\r\n".encode(),
        }
        status, _, _ = exchange(self.uploads(url), "POST", url, **sent, ok=(200, 412))
        return status == 200

    def delete(self, url: str) -> None:
        exchange(self, "DELETE", url, ok=(200, 204, 404))


class GoogleWriter(WriteStream):
    """Uploads an object in parts; it appears, complete, when the stream is closed."""

    def __init__(
        self, store: GoogleStore, url: str, *, part_bytes: int = PART_BYTES, patience: Any = None
    ) -> None:
        self._part_bytes = max(part_bytes // _PART_UNIT, 1) * _PART_UNIT
        self._patience = patience
        self._part = bytearray()
        self._stored = 0
        _, key = split_url(url)
        _, headers, _ = exchange(
            store.uploads(url),
            "POST",
            url,
            query={"uploadType": "resumable", "name": key},
            headers={"Content-Type": "application/octet-stream"},
            body=b"",
            patience=patience,
        )
        location = headers.get("Location")
        if not location:
            raise StorageError("the server sent no upload address", origin=Origin(url))
        self._session = FixedAddressStore(store, location)
        super().__init__(url, 1 << 20)

    def _send(self, data: memoryview) -> int:
        # A full part is sent only when more bytes follow, because the last part is marked as such.
        if len(self._part) >= self._part_bytes:
            self._put(last=False)
        count = min(len(data), self._part_bytes - len(self._part))
        self._part += data[:count]
        return count

    def _finish(self) -> None:
        self._put(last=True)

    def _discard(self) -> None:
        self._part = bytearray()
        try:
            # Google confirms an aborted upload with 499, a non-standard status.
            exchange(
                self._session,
                "DELETE",
                self.name,
                patience=self._patience,
                ok=(200, 204, 400, 404, 405, 499),
            )
        except StorageError:
            return  # it was never visible, and Google drops it after a week

    def _put(self, *, last: bool) -> None:
        while True:
            end = self._stored + len(self._part)
            span = f"{self._stored}-{end - 1}" if self._part else "*"
            status, headers, _ = exchange(
                self._session,
                "PUT",
                self.name,
                headers={"Content-Range": f"bytes {span}/{end if last else '*'}"},
                body=bytes(self._part),
                patience=self._patience,
                ok=(200, 201, 308),
            )
            if status != 308:
                if not last:
                    raise StorageError("the upload ended too early", origin=Origin(self.name))
                return
            # The server may have kept less than was sent: the rest is sent again.
            kept = _count_kept(headers.get("Range"))
            if not self._stored < kept <= end:
                raise StorageError(
                    f"the server has {kept} bytes of the upload after {end} were sent",
                    origin=Origin(self.name, offset=self._stored),
                )
            del self._part[: kept - self._stored]
            self._stored = kept
            if not last:
                return


def _read_reason(page: bytes) -> str:
    """Return the message of a JSON error page as the end of a sentence; empty without one."""
    try:
        answer = parse_json(page)
        message = answer["error"]["message"]
    except MALFORMED:
        return ""
    return f": {str(message)[:200]}"


def _count_kept(span: str | None) -> int:
    """Return how many bytes of an upload the server has, from its header ``Range``."""
    found = re.fullmatch(r"bytes=0-([0-9]{1,18})", span or "")
    return int(found[1]) + 1 if found else 0


def _fetch_token() -> tuple[str | None, float | None]:
    try:
        import google.auth
        import google.auth.transport.urllib3
    except ImportError as exn:
        if env.text("GOOGLE_APPLICATION_CREDENTIALS"):
            what = "using GOOGLE_APPLICATION_CREDENTIALS"
            raise MissingPackage.of(what, "google-auth", "gcs") from exn
        return None, None
    import urllib3

    google_auth: Any = google.auth  # its types are incomplete
    try:
        credentials, _ = google_auth.default(scopes=[SCOPE])
    except google.auth.exceptions.DefaultCredentialsError as exn:
        if env.text("GOOGLE_APPLICATION_CREDENTIALS"):
            raise StorageError(f"GOOGLE_APPLICATION_CREDENTIALS cannot be used: {exn}") from exn
        return None, None
    try:
        with urllib3.PoolManager() as pool:
            credentials.refresh(google_auth.transport.urllib3.Request(pool))
    except google.auth.exceptions.GoogleAuthError as exn:
        raise StorageError(
            f"Google issued no token for the credentials found ({type(exn).__name__}): renew them "
            "with 'gcloud auth application-default login'"
        ) from exn
    expiry = credentials.expiry  # in UTC, without a time zone
    return credentials.token, expiry and expiry.replace(tzinfo=datetime.UTC).timestamp()


_TOKEN = Token(_fetch_token)
"""One per process: without a metadata server, the request for a token takes seconds."""
