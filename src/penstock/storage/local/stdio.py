"""``-``: standard input and output as streams. They are never closed by this module."""

from __future__ import annotations

import io
import sys
from typing import Any

from penstock.errors import Origin, StorageError
from penstock.storage.streams import Buffer, WriteStream


def open_standard(
    url: str, mode: str, buffer_bytes: int | None = None
) -> StandardReader | StandardWriter:
    """Open standard input for reading, or standard output for writing."""
    if mode == "wb":
        return StandardWriter(url, None if buffer_bytes == -1 else buffer_bytes)
    # Without a buffer of ours: bytes it had read ahead would be lost to the next reader.
    return StandardReader(url, whole=bool(buffer_bytes))


class StandardReader(io.RawIOBase):
    """Standard input. With ``whole``, ``read(n)`` waits for ``n`` bytes, else for any."""

    size_bytes: int | None = None

    def __init__(self, url: str = "-", *, whole: bool = False) -> None:
        super().__init__()
        self.name = url
        self._source = _get_binary(sys.stdin, "standard input", url)
        read = self._source.read
        self._read = read if whole else getattr(self._source, "read1", read)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        if self.closed:
            raise ValueError("the stream is closed and cannot be read (standard input)")
        data = self._source.read() if size is None or size < 0 else self._read(size)
        return bytes(data or b"")


class StandardWriter(WriteStream):
    """Standard output. Bytes already sent cannot be undone: ``abort()`` only drops the rest."""

    def __init__(self, url: str = "-", buffer_bytes: int | None = None) -> None:
        self._target = _get_binary(sys.stdout, "standard output", url)
        super().__init__(url, buffer_bytes)

    def _send(self, data: memoryview) -> int:
        count: int | None = self._target.write(data)
        return len(data) if count is None else count

    def _finish(self) -> None:
        self._target.flush()

    def _discard(self) -> None:
        pass


def _get_binary(stream: Any, what: str, url: str) -> Any:
    source = getattr(stream, "buffer", None)
    if source is None:
        raise StorageError(
            f"{what} is closed or was replaced by something without bytes", origin=Origin(url)
        )
    return source
