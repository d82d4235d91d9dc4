"""Write an object to S3 in parts, several at a time; it appears when the upload is completed.

A small object is one request. The parts of a larger one are invisible until the upload is
completed; an aborted upload is deleted. The parts that a killed process has left are invisible too,
and the next writer of the same object deletes them when they are a day old.
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
from penstock.redact import redact
from penstock.storage.objects.s3 import S3Store, child, children, error_code, parse_time, parse_xml
from penstock.storage.readers.remote_file import exchange
from penstock.storage.streams import WriteStream

logger = logging.getLogger("penstock.storage")

PART_BYTES = 16 << 20
SMALLEST_PART_BYTES = 5 << 20  # S3 refuses smaller ones, except for the last
MOST_PARTS = 10_000
STALE_S = 24 * 3600
_ABORT_WAIT_S = 30


class MultipartWriter(WriteStream):
    """Writes an object in parts. Memory: ``(uploads + 1) * part_bytes``.

    Unfinished uploads of the same object that are older than ``stale_s`` seconds are deleted when a
    new one begins (None: never).
    """

    def __init__(
        self,
        store: S3Store,
        url: str,
        *,
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
        super().__init__(url, 0)

    def _exchange(self, method: str, **rest: Any) -> Any:
        if self._patience is not None:
            rest["patience"] = self._patience
        return exchange(self._store, method, self.name, **rest)

    def _send(self, data: memoryview) -> int:
        # Parts grow, so that their number does not limit the size of the object.
        number = len(self._etags) + len(self._running)
        space = self._part_bytes * (1 + number // 1000) - len(self._part)
        taken = data[:space]
        self._part += taken
        if len(taken) == space:
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
            self._delete_stale(self._stale_s)
        _, _, page = self._exchange("POST", query={"uploads": ""})
        tree = parse_xml(page, "InitiateMultipartUploadResult", self.name)
        self._upload = child(tree, "UploadId")
        if not self._upload:
            raise StorageError("the server began an upload without an id", origin=Origin(self.name))
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
        # The first response may have been lost: then the upload is gone and the object exists.
        if status == 404 and error_code(page) == "NoSuchUpload" and self._is_stored():
            return
        if status != 200:
            what = self._store.refusal(self.name, status, headers, page)
            raise StorageError(what, origin=Origin(self.name))
        # Amazon may send 200 and then report an error in the page.
        parse_xml(page, "CompleteMultipartUploadResult", self.name)

    def _is_stored(self) -> bool:
        """Return whether the object has our bytes: an older one may have the same size."""
        status, headers, _ = self._exchange("HEAD", ok=(200, 404))
        whole = hashlib.md5(b"".join(self._sums), usedforsecurity=False).hexdigest()
        etag = str(headers.get("ETag")).strip('"').lower()
        return status == 200 and etag == f"{whole}-{len(self._sums)}"

    def _discard(self) -> None:
        self._part = bytearray()
        for future in self._running:
            future.cancel()
        # A part that arrives after the upload was aborted would remain on the server.
        concurrent.futures.wait(self._running, timeout=_ABORT_WAIT_S)
        self._end_pool()
        if self._upload is not None:
            with self._log_errors("an unfinished upload remains"):
                self._delete_upload(self._upload)
        _unfinished.discard(self)

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _delete_upload(self, upload: str) -> None:
        self._exchange("DELETE", query={"uploadId": upload}, ok=(200, 204, 404))

    def _delete_stale(self, stale_s: float) -> None:
        """Delete the uploads that killed writers of this object have left on the server."""
        with self._log_errors("unfinished uploads cannot be listed"):
            now = datetime.datetime.now(datetime.UTC)
            for upload, begun in list_unfinished_uploads(self._store, self.name):
                if (now - begun).total_seconds() >= stale_s:
                    self._delete_upload(upload)

    @contextlib.contextmanager
    def _log_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except StorageError as exn:
            logger.info("%s (%s): %s", what, redact(self.name), exn)


def list_unfinished_uploads(store: S3Store, url: str) -> Iterator[tuple[str, datetime.datetime]]:
    """Yield the unfinished uploads of one object: their ids and when they began.

    One without a start time is left out: it may be in progress.
    """
    bucket_url, key = _split_key(url)
    query = {"uploads": "", "prefix": key}
    _, _, page = exchange(store, "GET", bucket_url, query=query)
    for entry in children(parse_xml(page, "ListMultipartUploadsResult", url), "Upload"):
        begun = parse_time(child(entry, "Initiated"))
        if child(entry, "Key") == key and begun is not None:
            yield child(entry, "UploadId"), begun


def _split_key(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}/", key


_unfinished: weakref.WeakSet[MultipartWriter] = weakref.WeakSet()


@atexit.register
def _abort_all() -> None:
    # A program that ends with an open writer must not leave parts on the server.
    for writer in list(_unfinished):
        writer.abort()
