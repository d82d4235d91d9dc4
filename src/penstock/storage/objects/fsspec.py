"""All other schemes for which fsspec has a file system: ``sftp://``, ``hdfs://``, ``memory://``, …

The number of bytes that fsspec returns is compared with the size of the file, so that a file that
ends early is an error. Files are written under a temporary name next to the final one, and moved
when they are complete.
"""

from __future__ import annotations

import contextlib
import io
import secrets
from collections.abc import Iterator
from typing import Any

from penstock.errors import Origin, StorageError
from penstock.redact import redact
from penstock.storage.client.store import Listed
from penstock.storage.local.files import MissingFile
from penstock.storage.streams import Buffer, BufferedStream, WriteStream

USUAL_BUFFER_BYTES = 1 << 20


def open_fsspec(
    url: str, mode: str, buffer_bytes: int | None = None, **options: Any
) -> FsspecFile | BufferedStream | FsspecWriter:
    """Open a file of any file system of fsspec; options are those of that file system.

    >>> with open_fsspec("memory://a.txt", "wb") as file:
    ...     count = file.write(b"hello")
    >>> with open_fsspec("memory://a.txt", "rb") as file:
    ...     file.read()
    b'hello'
    """
    if mode == "wb":
        return FsspecWriter(url, **options)
    file = FsspecFile(url, **options)
    if not buffer_bytes:
        return file
    size = USUAL_BUFFER_BYTES if buffer_bytes < 0 else buffer_bytes
    return BufferedStream(file, size)


def list_fsspec(prefix: str, *, deep: bool = True, **options: Any) -> Iterator[Listed]:
    """Yield the files whose URLs begin with ``prefix``, sorted by name.

    Without ``deep``, none after a further slash.
    """
    system, path = _resolve(prefix, options)
    # fsspec returns the path of a prefix "…/" without its slash.
    inner = path if not prefix.endswith("/") else path.rstrip("/") + "/"
    folder = inner.rpartition("/")[0]
    with _convert_errors("cannot be listed", prefix):
        found = system.find(folder, maxdepth=None if deep else 1, detail=True)
        names = sorted(name for name in found if name.startswith(inner))
        listed = [Listed.of(prefix, n[len(inner) :], found[n].get("size")) for n in names]
    yield from listed


class FsspecFile(io.RawIOBase):
    """A file open for reading; ``read_range`` works if the file system supports it."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__()
        self._file: Any = None
        self.name = url
        self._position = 0
        self._system, self._path = _resolve(url, options)
        with _convert_errors("cannot be opened", url):
            self._file = self._system.open(self._path, "rb")
            size = getattr(self._file, "size", None)
            self.size_bytes: int | None = self._system.size(self._path) if size is None else size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def readinto(self, buffer: Buffer, /) -> int:
        self._check_open()
        view = memoryview(buffer).cast("B")
        data = self._read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_open()
        if size is None or size < 0:
            return b"".join(iter(lambda: self._read(1 << 20), b""))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        with _convert_errors("cannot be read", self.name, self._position):
            data: bytes = self._file.read(size)
        self._position += len(data)
        if not data and size and self.size_bytes is not None and self._position < self.size_bytes:
            raise StorageError(
                f"the file ends too early: it has {self.size_bytes} bytes",
                origin=Origin(redact(self.name), offset=self._position),
            )
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check_open()
        with _convert_errors("cannot seek", self.name, self._position):
            self._file.seek(offset, whence)
            self._position = self._file.tell()
        return self._position

    def tell(self) -> int:
        return self._position

    def read_range(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on, fewer only at the end; keep the position."""
        end = offset + length
        if self.size_bytes is not None:
            end = min(end, self.size_bytes)
        if end <= offset:
            return b""
        with _convert_errors("cannot be read", self.name, offset):
            data: bytes = self._system.cat_file(self._path, start=offset, end=end)
        if self.size_bytes is not None and len(data) != end - offset:
            raise StorageError(
                f"{end - offset} bytes were requested and {len(data)} arrived",
                origin=Origin(redact(self.name), offset=offset),
            )
        return data

    def close(self) -> None:
        if not self.closed:
            if self._file is not None:
                self._file.close()
            super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"the stream is closed and cannot be read ({redact(self.name)})")


class FsspecWriter(WriteStream):
    """Writes a file that gets its name when it is closed; if moving is not atomic, soon after."""

    def __init__(self, url: str, **options: Any) -> None:
        self._file: Any = None
        self._system, self._path = _resolve(url, options)
        self._part = f"{self._path}.{secrets.token_hex(8)}.part"
        with _convert_errors("cannot be opened for writing", url):
            self._file = self._system.open(self._part, "wb")
        super().__init__(url)

    def _send(self, data: memoryview) -> int:
        with _convert_errors("cannot be written", self.name, self._sent):
            # Some file systems accept only bytes, and some do not return how many they wrote.
            self._file.write(bytes(data))
        return len(data)

    def _finish(self) -> None:
        with _convert_errors("cannot be written", self.name, self._sent):
            self._file.close()
            self._system.mv(self._part, self._path)

    def _discard(self) -> None:
        try:
            with _convert_errors("cannot be removed", self.name):
                self._file.close()
                self._system.rm(self._part)
        except StorageError:
            return  # the remaining file ends in ".part", and nobody reads it


def _resolve(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    import fsspec

    with _convert_errors("cannot be opened", url):
        system, path = fsspec.core.url_to_fs(url, **options)
    return system, str(path)


@contextlib.contextmanager
def _convert_errors(what: str, url: str, offset: int | None = None) -> Iterator[None]:
    """Convert the exceptions of any file system to StorageErrors with the URL."""
    try:
        yield
    except (StorageError, MemoryError):
        raise
    except FileNotFoundError as exn:
        raise MissingFile("there is no such file", origin=Origin(redact(url))) from exn
    except Exception as exn:
        raise StorageError(
            f"{what}: {type(exn).__name__}: {exn}", origin=Origin(redact(url), offset=offset)
        ) from exn


def delete_fsspec(url: str) -> None:
    """Delete a file; one that is not there is no error."""
    system, path = _resolve(url, {})
    with contextlib.suppress(MissingFile), _convert_errors("cannot be deleted", url):
        system.rm_file(path)
