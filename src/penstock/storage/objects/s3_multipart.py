"""Writing an object to S3 in parts, several at a time; it appears when the last is in place.

A small object is one request. Of a larger one, the parts lie aside on the server until the upload
is completed, and an upload that is given up is taken back. What a killed process left behind is
invisible, and the next writer of the same name takes it back when it is a day old.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import datetime
import hashlib
import logging
import weakref
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from penstock.errors import Origin, PipelineError, StorageError

from penstock.storage.readers.remote_file import exchange
from penstock.storage.objects.s3 import S3Store, child, children, error_code, moment, parsed
from penstock.storage.streams import WriteStream

logger = logging.getLogger("penstock.storage")

PART_BYTES = 16 << 20
SMALLEST_PART_BYTES = 5 << 20  # S3 refuses smaller ones, except for the last
MOST_PARTS = 10_000
STALE_S = 24 * 3600
_ABORT_WAIT_S = 30


class MultipartWriter(WriteStream):
    """A stream to an object. Memory: ``(uploads + 1) * part_bytes``.

    ``stale_s``: older unfinished uploads of the same object are taken back when a new one begins
    (None: never).
    """

    def __init__(
        self,
        store: S3Store,
        url: str,
        *,
        buffer_bytes: int | None = None,
        part_bytes: int = PART_BYTES,
        uploads: int = 4,
        patience: Any = None,
        stale_s: float | None = STALE_S,
    ) -> None:
        if part_bytes < SMALLEST_PART_BYTES or uploads < 1:
            raise PipelineError("an upload needs part_bytes of at least 5 MiB and uploads >= 1")
        self._store, self._part_bytes, self._uploads = store, part_bytes, uploads
        self._patience, self._stale_s = patience, stale_s
        self._part = bytearray()
        self._upload: str | None = None
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._running: list[concurrent.futures.Future[tuple[str, bytes]]] = []
        self._etags: list[str] = []
        self._sums: list[bytes] = []
        super().__init__(url, 0 if buffer_bytes is None else max(buffer_bytes, 0))

    def _exchange(self, method: str, **rest: Any) -> Any:
        if self._patience is not None:
            rest["patience"] = self._patience
        return exchange(self._store, method, self.name, **rest)

    def _send(self, data: memoryview) -> int:
        # Parts grow, so that their number does not limit the size of the object.
        number = len(self._etags) + len(self._running)
        room = self._part_bytes * (1 + number // 1000) - len(self._part)
        taken = data[:room]
        self._part += taken
        if len(taken) == room:
            self._start_part()
        return len(taken)

    def _start_part(self) -> None:
        if self._upload is None:
            self._begin()
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self._uploads, "penstock-upload")
        while len(self._running) >= self._uploads:
            self._wait_for_one()
        number = len(self._etags) + len(self._running) + 1
        if number > MOST_PARTS:
            raise StorageError("S3 takes 10000 parts: set a larger part_bytes")
        body, self._part = bytes(self._part), bytearray()
        self._running.append(self._pool.submit(self._put_part, number, body))

    def _wait_for_one(self) -> None:
        etag, md5 = self._running[0].result()
        self._etags.append(etag)
        self._sums.append(md5)
        del self._running[0]

    def _begin(self) -> None:
        if self._stale_s is not None:
            self._take_back_stale(self._stale_s)
        _, _, page = self._exchange("POST", query={"uploads": ""})
        self._upload = child(parsed(page, "InitiateMultipartUploadResult", self.name), "UploadId")
        if not self._upload:
            raise StorageError(
                "the server began an upload without a name", origin=Origin(self.name)
            )
        _unfinished.add(self)

    def _put_part(self, number: int, body: bytes) -> tuple[str, bytes]:
        query = {"partNumber": str(number), "uploadId": self._upload}
        _, headers, _ = self._exchange("PUT", query=query, body=body)
        etag = headers.get("ETag")
        if not etag:
            raise StorageError(
                f"the server took part {number} without an ETag", origin=Origin(self.name)
            )
        return str(etag), hashlib.md5(body, usedforsecurity=False).digest()

    def _finish(self) -> None:
        if self._upload is None:
            self._exchange("PUT", body=bytes(self._part))
            self._part = bytearray()
            return
        if self._part:
            self._start_part()
        while self._running:
            self._wait_for_one()
        self._complete()
        self._end_pool()
        _unfinished.discard(self)

    def _complete(self) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for number, etag in enumerate(self._etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = {"uploadId": self._upload}
        status, headers, page = self._exchange("POST", query=query, body=body, ok=(200, 404))
        # The first answer may have been lost: then the upload is gone, and the object is there.
        if status == 404 and error_code(page) == "NoSuchUpload" and self._is_there():
            return
        if status != 200:
            what = self._store.refusal(self.name, status, headers, page)
            raise StorageError(what, origin=Origin(self.name))
        # Amazon may answer 200 and then change its mind in the page.
        parsed(page, "CompleteMultipartUploadResult", self.name)

    def _is_there(self) -> bool:
        """Whether the object holds our bytes: an older one may have as many, in as many parts."""
        status, headers, _ = self._exchange("HEAD", ok=(200, 404))
        whole = hashlib.md5(b"".join(self._sums), usedforsecurity=False).hexdigest()
        etag = str(headers.get("ETag")).strip('"').lower()
        return status == 200 and etag == f"{whole}-{len(self._sums)}"

    def _discard(self) -> None:
        self._part = bytearray()
        for future in self._running:
            future.cancel()
        # A part that arrives after the upload was given up would stay on the server.
        concurrent.futures.wait(self._running, timeout=_ABORT_WAIT_S)
        self._end_pool()
        if self._upload is not None:
            with self._told_not_raised("an unfinished upload remains"):
                self._take_back(self._upload)
        _unfinished.discard(self)

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _take_back(self, upload: str) -> None:
        self._exchange("DELETE", query={"uploadId": upload}, ok=(200, 204, 404))

    def _take_back_stale(self, stale_s: float) -> None:
        """Take back what killed writers of this object left on the server."""
        with self._told_not_raised("unfinished uploads cannot be listed"):
            now = datetime.datetime.now(datetime.UTC)
            for upload, begun in unfinished_uploads(self._store, self.name):
                if (now - begun).total_seconds() >= stale_s:
                    self._take_back(upload)

    @contextlib.contextmanager
    def _told_not_raised(self, what: str) -> Iterator[None]:
        try:
            yield
        except StorageError as exn:
            logger.info("%s (%s): %s", what, self.name, exn)


def unfinished_uploads(store: S3Store, url: str) -> Iterator[tuple[str, datetime.datetime]]:
    """The uploads of one object that were begun and not ended: their ids and when they began.

    One whose beginning the server does not tell may be somebody's right now: it is left out.
    """
    bucket_url, key = _bucket_and_key(url)
    query = {"uploads": "", "prefix": key}
    _, _, page = exchange(store, "GET", bucket_url, query=query)
    for entry in children(parsed(page, "ListMultipartUploadsResult", url), "Upload"):
        begun = moment(child(entry, "Initiated"))
        if child(entry, "Key") == key and begun is not None:
            yield child(entry, "UploadId"), begun


def _bucket_and_key(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}/", key


_unfinished: weakref.WeakSet[MultipartWriter] = weakref.WeakSet()


@atexit.register
def _take_back_all() -> None:
    # A program that ends with a writer open: nothing of it must stay on the server.
    for writer in list(_unfinished):
        writer.abort()
