"""Writing to places that take an object only as a whole: it waits in a temporary file till then."""

from __future__ import annotations

import tempfile

from penstock.storage.streams import WriteStream


class SpooledWriter(WriteStream):
    """What is written goes to a temporary file; ``close()`` hands that file over.

    A kind of place gives one method: ``_upload``, which sends the file that ``self._file`` is.
    The folder for temporary files (``TMPDIR``) needs room for the object.
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
