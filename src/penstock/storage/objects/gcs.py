"""``gs://bucket/key``: Google Cloud Storage, by its JSON interface.

Credentials are those of Google's own tools (``GOOGLE_APPLICATION_CREDENTIALS``, what ``gcloud auth
application-default login`` left, the machine's service account) and need the package google-auth;
where there are none, requests are anonymous, which is enough for public buckets. An emulator is
named by ``STORAGE_EMULATOR_HOST`` and gets no credentials.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from penstock import env
from penstock.errors import MissingPackage, Origin, StorageError, UrlError

from penstock.storage.client.addressed import Addressed
from penstock.storage.client.checksums import md5_of_base64
from penstock.storage.readers.remote_file import exchange
from penstock.storage.objects.open_object import open_remote
from penstock.storage.client.store import Body, Fields, Listed, Request, Store
from penstock.storage.streams import WriteStream
from penstock.storage.auth.bearer_tokens import Token, key_for, no_token, token_for

ENDPOINT = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
PART_BYTES = 8 << 20
_PART_UNIT = 256 << 10  # all parts of an upload but the last are multiples of this


def open_gcs(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """An object of Google Cloud Storage, for reading or writing.

    >>> open_gcs("gs://", "rb")
    Traceback (most recent call last):
    ...
    penstock.errors.UrlError: 'gs://' names no object: write gs://BUCKET/KEY
    """
    split_url(url)
    return open_remote(GoogleStore(url), url, mode, buffer_bytes, **options)


def split_url(url: str, *, key_needed: bool = True) -> tuple[str, str]:
    """Bucket and key. The key is taken as it is: ``%20`` in it is three characters.

    >>> split_url("gs://bucket/train/a b%20.tar")
    ('bucket', 'train/a b%20.tar')
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket or (key_needed and not key):
        raise UrlError(f"{url!r} names no object: write {scheme or 'gs'}://BUCKET/KEY")
    return bucket, key


class GoogleStore(Store):
    """Google Cloud Storage with the credentials for a URL's bucket."""

    scheme = "gs"

    def __init__(self, url: str) -> None:
        key = key_for(url)
        own = key.endpoint if key is not None else None
        emulator = env.text("STORAGE_EMULATOR_HOST")
        if emulator and "://" not in emulator:
            emulator = f"http://{emulator}"
        self.endpoint = (own or emulator or ENDPOINT).rstrip("/")
        silent = emulator is not None and own is None
        self._token = Token(no_token) if silent else token_for(url, _TOKEN)

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        _, key = split_url(url)
        fields = {**(query or {}), "alt": "media"}
        # Otherwise the server unpacks objects stored with "Content-Encoding: gzip" on the way,
        # and neither sizes nor ranges are those of the object.
        sent = {**(headers or {}), **self._token.headers(), "Accept-Encoding": "gzip"}
        wanted = sent.pop("If-Match", None)
        if wanted is not None:
            fields["ifGenerationMatch"] = wanted.strip('"')
        address = f"{self._bucket(url)}/{quote(key, safe='')}?{urlencode(fields)}"
        return Request(method, address, sent, body)

    def _bucket(self, url: str, kind: str = "") -> str:
        bucket, _ = split_url(url, key_needed=False)
        return f"{self.endpoint}{kind}/storage/v1/b/{quote(bucket, safe='')}/o"

    def uploads(self, url: str) -> Addressed:
        """Where uploads to the URL's bucket begin."""
        return Addressed(self, self._bucket(url, "/upload"), self._token.headers())

    def version(self, headers: Mapping[str, str]) -> str | None:
        """The object's generation, which changes whenever it is written."""
        return headers.get("x-goog-generation") or headers.get("ETag")

    def checksum(self, headers: Mapping[str, str]) -> str | None:
        if headers.get("x-goog-stored-content-encoding", "identity") != "identity":
            return None  # of the packed bytes
        told = re.search(r"md5=([A-Za-z0-9+/]+={0,2})", headers.get("x-goog-hash", ""))
        return md5_of_base64(told[1]) if told else None

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
        return f"the server answered {status}{reason(page)}"

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        bucket, key = split_url(prefix, key_needed=False)
        query = {"prefix": key, "fields": "items(name,size),nextPageToken"}
        if not deep:
            query["delimiter"] = "/"
        while True:
            objects = Addressed(self, self._bucket(prefix), self._token.headers())
            _, _, page = exchange(objects, "GET", prefix, query=query)
            answer = parsed(page, prefix)
            for item in answer.get("items", ()):
                yield Listed(f"gs://{bucket}/{item['name']}", int(item["size"]))
            if not answer.get("nextPageToken"):
                return
            query["pageToken"] = answer["nextPageToken"]

    def writer(self, url: str, **options: Any) -> GoogleWriter:
        return GoogleWriter(self, url, **options)


class GoogleWriter(WriteStream):
    """An upload in parts; the object appears, whole, when it is closed."""

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
            raise StorageError("the server gave no place to upload to", origin=Origin(url))
        self._session = Addressed(store, location)
        super().__init__(url, 1 << 20)

    def _send(self, data: memoryview) -> int:
        # A full part waits for the byte after it, since the last part must be told apart.
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
            # The answer to giving up an upload is 499, which is Google's own number.
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
            # What the server has kept may be less than what was sent: the rest goes again.
            kept = _kept(headers.get("Range"))
            if not self._stored < kept <= end:
                raise StorageError(
                    f"the server has {kept} bytes of the upload after {end} were sent",
                    origin=Origin(self.name, offset=self._stored),
                )
            del self._part[: kept - self._stored]
            self._stored = kept
            if not last:
                return


def reason(page: bytes) -> str:
    """What a JSON error page says, as the end of a sentence; nothing where it says nothing."""
    try:
        answer = json.loads(page)
        message = answer["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f": {str(message)[:200]}"


def parsed(page: bytes, url: str) -> dict[str, Any]:
    """A JSON answer; one that is not JSON is a :class:`~penstock.errors.StorageError`."""
    try:
        answer = json.loads(page)
    except ValueError as exn:
        raise StorageError(
            "the listing is not JSON: is this address really such a store?", origin=Origin(url)
        ) from exn
    return answer if isinstance(answer, dict) else {}


def _kept(span: str | None) -> int:
    return int(span.rpartition("-")[2]) + 1 if span else 0


def _google_token() -> tuple[str | None, float | None]:
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
            f"Google gave no token for the credentials found ({type(exn).__name__}): renew them "
            "with 'gcloud auth application-default login'"
        ) from exn
    # google-auth tells the time without a zone, in UTC.
    ends = credentials.expiry
    return credentials.token, None if ends is None else _seconds(ends)


def _seconds(moment: Any) -> float:
    import datetime

    stamp: float = moment.replace(tzinfo=datetime.UTC).timestamp()
    return stamp


_TOKEN = Token(_google_token)
"""One for the process: asking the metadata server takes seconds where there is none."""
