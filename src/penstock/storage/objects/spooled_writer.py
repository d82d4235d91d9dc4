"""Write to stores that take an object only as a whole, through a temporary file."""

from __future__ import annotations

import tempfile

from penstock.storage.streams import WriteStream


class SpooledWriter(WriteStream):
    """Writes to a temporary file, which ``close()`` uploads.

    A subclass has one method: ``_upload``, which sends ``self._file``. The folder for temporary
    files (``TMPDIR``) needs space for the object.
    """

    def __init__(self, url: str, buffer_bytes: int | None = None) -> None:
        self._file = tempfile.TemporaryFile(prefix="penstock-")  # noqa: SIM115
        super().__init__(url, buffer_bytes)

    def _upload(self) -> None:
        raise NotImplementedError

    def _send(self, data: memoryview) -> int:
        return self._file.write(data)

    def _finish(self) -> None:
        self._file.flush()
        self._file.seek(0)
        self._upload()
        self._file.close()

    def _discard(self) -> None:
        self._file.close()
