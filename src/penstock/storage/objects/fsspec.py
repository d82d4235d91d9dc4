"""Any other scheme that fsspec has a file system for: ``sftp://``, ``hdfs://``, ``memory://``, …

What fsspec gives is checked here: the size is asked for first and the bytes are counted against it,
so that a file that ends early is an error. Files are written under a temporary name beside the
final one, and moved when they are complete.
"""

from __future__ import annotations

import contextlib
import io
import secrets
from collections.abc import Iterator
from typing import Any

from penstock.errors import Origin, StorageError
from penstock.redact import shown

from penstock.storage.local.files import MissingFile
from penstock.storage.client.store import Listed
from penstock.storage.streams import Buffer, BufferedStream, WriteStream

USUAL_BUFFER_BYTES = 1 << 20


def open_fsspec(
    url: str, mode: str, buffer_bytes: int | None = None, **options: Any
) -> FsspecFile | BufferedStream | FsspecWriter:
    """A file of any file system that fsspec knows; options are those of that file system.

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
    """The files whose URLs begin with ``prefix``, in order of their names.

    Without ``deep``, none behind a further slash.
    """
    system, path = _located(prefix, options)
    # The path of a prefix "…/" comes without its slash.
    inner = path if not prefix.endswith("/") else path.rstrip("/") + "/"
    folder = inner.rpartition("/")[0]
    with _told("cannot be listed", prefix):
        found = system.find(folder, maxdepth=None if deep else 1, detail=True)
    for name in sorted(found):
        if name.startswith(inner):
            yield Listed(prefix + name[len(inner) :], found[name].get("size"))


class FsspecFile(io.RawIOBase):
    """A file open for reading; ``read_range`` where the file system can."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__()
        self._file: Any = None
        self.name = url
        self._place = 0
        self._system, self._path = _located(url, options)
        with _told("cannot be opened", url):
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
        with _told("cannot be read", self.name, self._place):
            data: bytes = self._file.read(size)
        self._place += len(data)
        if not data and size and self.size_bytes is not None and self._place < self.size_bytes:
            raise StorageError(
                f"the file ends too early: it has {self.size_bytes} bytes",
                origin=Origin(shown(self.name), offset=self._place),
            )
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check_open()
        with _told("cannot seek", self.name, self._place):
            self._file.seek(offset, whence)
            self._place = self._file.tell()
        return self._place

    def tell(self) -> int:
        return self._place

    def read_range(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on, fewer only at the end; the position stays."""
        end = offset + length
        if self.size_bytes is not None:
            end = min(end, self.size_bytes)
        if end <= offset:
            return b""
        with _told("cannot be read", self.name, offset):
            data: bytes = self._system.cat_file(self._path, start=offset, end=end)
        if self.size_bytes is not None and len(data) != end - offset:
            raise StorageError(
                f"{end - offset} bytes were asked for and {len(data)} came",
                origin=Origin(shown(self.name), offset=offset),
            )
        return data

    def close(self) -> None:
        if not self.closed:
            if self._file is not None:
                self._file.close()
            super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"the stream is closed and cannot be read ({shown(self.name)})")


class FsspecWriter(WriteStream):
    """A file that gets its name when it is closed; where moving is not atomic, soon after."""

    def __init__(self, url: str, **options: Any) -> None:
        self._file: Any = None
        self._system, self._path = _located(url, options)
        self._part = f"{self._path}.{secrets.token_hex(8)}.part"
        with _told("cannot be opened for writing", url):
            self._file = self._system.open(self._part, "wb")
        super().__init__(url)

    def _send(self, data: memoryview) -> int:
        with _told("cannot be written", self.name, self._sent):
            # Some file systems take nothing but bytes, and some do not tell how many they took.
            self._file.write(bytes(data))
        return len(data)

    def _finish(self) -> None:
        with _told("cannot be written", self.name, self._sent):
            self._file.close()
            self._system.mv(self._part, self._path)

    def _discard(self) -> None:
        try:
            with _told("cannot be removed", self.name):
                self._file.close()
                self._system.rm(self._part)
        except StorageError:
            return  # what remains ends in ".part", and nobody reads it


def _located(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    import fsspec

    with _told("cannot be opened", url):
        system, path = fsspec.core.url_to_fs(url, **options)
    return system, str(path)


@contextlib.contextmanager
def _told(what: str, url: str, offset: int | None = None) -> Iterator[None]:
    """Every file system has exceptions of its own: they all become ours, with the URL."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as exn:
        raise MissingFile("there is no such file", origin=Origin(shown(url))) from exn
    except Exception as exn:
        raise StorageError(
            f"{what}: {type(exn).__name__}: {exn}", origin=Origin(shown(url), offset=offset)
        ) from exn
