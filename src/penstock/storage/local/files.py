"""Files of this machine, and whatever else has a path: devices, fifos, mounted file systems.

A file is written under a hidden temporary name beside the final one, and renamed when it is
complete and on the disk. So a writer that is killed at any moment leaves no half shard behind,
only a file ``.NAME.PID-RANDOM.part`` that nobody reads and anyone may delete.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat

from penstock import env
from penstock.errors import Origin, StorageError
from penstock.storage.urls import local_path

from penstock.storage.streams import (
    WRITE_BUFFER_BYTES,
    Buffer,
    BufferedStream,
    WriteStream,
    storage_error,
)

_STANDARD = ("/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


class MissingFile(StorageError, FileNotFoundError):
    """There is no such file or folder."""


def open_file(
    url: str, mode: str, buffer_bytes: int | None = None
) -> LocalFile | BufferedStream | WriteStream:
    """A local path or ``file:`` URL, open for reading or writing.

    Reading is unbuffered unless ``buffer_bytes`` says otherwise; -1 means the variable
    ``GOPEN_BUFFER``, or the system's usual size.
    """
    path = local_path(url)
    if not path or "\0" in path:
        raise MissingFile(f"no file can have the name {path!r}", origin=Origin(url))
    if buffer_bytes == -1:
        usual = io.DEFAULT_BUFFER_SIZE if mode == "rb" else WRITE_BUFFER_BYTES
        buffer_bytes = max(env.integer("GOPEN_BUFFER") or 0, 0) or usual
    if mode == "wb":
        if _is_special(path, url):
            return SpecialFile(path, url=url, buffer_bytes=buffer_bytes)
        return AtomicFile(path, url=url, buffer_bytes=buffer_bytes)
    file = LocalFile(path, url=url)
    return BufferedStream(file, buffer_bytes) if buffer_bytes else file


class LocalFile(io.FileIO):
    """A file open for reading: unbuffered, seekable where it is a regular file.

    >>> with LocalFile("/dev/null") as file:
    ...     file.size_bytes, file.read(10)
    (None, b'')
    """

    size_bytes: int | None

    def __init__(self, path: str, *, url: str | None = None) -> None:
        url = path if url is None else url
        try:
            super().__init__(path, "rb")
        except OSError as exn:
            raise _cannot_read(path, url, exn) from exn
        self.name = url
        status = os.fstat(self.fileno())
        self.size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self, size: int | None = -1, /) -> bytes:
        try:
            return super().read(-1 if size is None else size) or b""
        except OSError as exn:
            raise self._failed(exn) from exn

    def readinto(self, buffer: Buffer, /) -> int:
        try:
            return super().readinto(buffer) or 0
        except OSError as exn:
            raise self._failed(exn) from exn

    def read_range(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on, fewer only at the end; the position stays."""
        pieces: list[bytes] = []
        while length > 0:
            piece = self._read_at(offset, length)
            if not piece:
                break
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_at(self, offset: int, length: int) -> bytes:
        try:
            if hasattr(os, "pread"):
                return os.pread(self.fileno(), length, offset)
            before = self.tell()  # Windows has no pread
            self.seek(offset)
            try:
                return super().read(length) or b""
            finally:
                self.seek(before)
        except OSError as exn:
            raise storage_error("cannot read", str(self.name), exn, offset) from exn

    def _failed(self, exn: OSError) -> StorageError:
        if isinstance(exn, io.UnsupportedOperation):
            return storage_error("cannot read", str(self.name), exn)
        place = None
        with contextlib.suppress(OSError):
            place = self.tell()
        return storage_error("cannot read", str(self.name), exn, place)


class SpecialFile(WriteStream):
    """A device, a fifo, ``/dev/stdout``: written directly, since it cannot be replaced."""

    def __init__(
        self, path: str, *, url: str | None = None, buffer_bytes: int | None = None
    ) -> None:
        url = path if url is None else url
        try:
            # Appending, since /dev/stdout may be a file that others have written to as well.
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
        except OSError as exn:
            raise storage_error("cannot open for writing", url, exn) from exn
        self._file = io.FileIO(descriptor, "wb")
        super().__init__(url, buffer_bytes)

    def _send(self, data: memoryview) -> int:
        return self._file.write(data) or 0

    def _finish(self) -> None:
        self._file.close()

    def _discard(self) -> None:
        self._file.close()


START_BYTES = 4 << 20
"""Written data is sent to the disk after so many bytes, not all at the end."""


class AtomicFile(WriteStream):
    """A file that appears under its name, whole and on the disk, when it is closed; or not at all.

    Folders are not made. A file of that name stays as it is until the new one takes its place. A
    link is followed. A missing folder, a lack of permission or a full disk are a
    :class:`~penstock.errors.StorageError`.

    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with AtomicFile(os.path.join(folder, "a.tar")) as file:
    ...     count = file.write(b"hello")
    ...     os.path.exists(os.path.join(folder, "a.tar"))
    False
    >>> os.listdir(folder)
    ['a.tar']
    """

    def __init__(
        self, path: str, *, url: str | None = None, buffer_bytes: int | None = None
    ) -> None:
        self._written = self._started = 0
        url = path if url is None else url
        self._path = os.path.realpath(path)
        folder, name = os.path.split(self._path)
        # The name is shortened because most file systems allow 255 bytes.
        part = f".{name[:50]}.{os.getpid()}-{os.urandom(4).hex()}.part"
        self._part = os.path.join(folder, part)
        try:
            permissions = _permissions(self._path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            descriptor = os.open(self._part, flags, 0o666)
        except OSError as exn:
            raise _cannot_write(folder, url, exn) from exn
        self._file = io.FileIO(descriptor, "wb")
        super().__init__(url, buffer_bytes)
        if permissions is not None:
            with contextlib.suppress(OSError):  # some file systems have none
                os.chmod(self._part, permissions)

    def _send(self, data: memoryview) -> int:
        count = self._file.write(data) or 0
        self._written += count
        if self._written - self._started >= START_BYTES and hasattr(os, "posix_fadvise"):
            # Linux then begins to write these pages out, while we go on: less is left for fsync.
            begin, self._started = self._started, self._written
            descriptor = self._file.fileno()
            os.posix_fadvise(descriptor, begin, self._written - begin, os.POSIX_FADV_DONTNEED)
        return count

    def _finish(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)
        _sync_folder(os.path.dirname(self._path))

    def _discard(self) -> None:
        try:
            with contextlib.suppress(OSError):  # a full disk may tell once more at closing
                self._file.close()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part)


def _is_special(path: str, url: str) -> bool:
    """True for what must not be replaced by a new file of that name."""
    if os.path.abspath(path).startswith(_STANDARD):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        raise StorageError(
            "cannot open for writing: this is a folder; give the name of a file in it",
            origin=Origin(url),
        )
    return not stat.S_ISREG(mode)


def _permissions(path: str) -> int | None:
    """Those of the file that will be replaced, None where there is none; a name too long raises."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def _sync_folder(folder: str) -> None:
    # Without this a power cut could take the new name away again. By now the file is complete, and
    # not every system or file system can do it for a folder.
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exn:
        if exn.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF):
            raise


def _cannot_read(path: str, url: str, exn: OSError) -> StorageError:
    what = "cannot open for reading"
    if isinstance(exn, FileNotFoundError):
        folder = os.path.dirname(os.path.abspath(path))
        lacks = "file" if os.path.isdir(folder) else f"folder {folder!r}, nor a file"
        seen = "" if os.path.isabs(path) else f" as seen from {os.getcwd()!r}"
        if path.count("{") != path.count("}"):
            seen += "; its braces are not balanced, so it was not taken for a pattern"
        return MissingFile(f"{what}: there is no such {lacks}{seen}", origin=Origin(url))
    if isinstance(exn, IsADirectoryError):
        return StorageError(
            f"{what}: this is a folder; for all shards in it, end its name with '/'",
            origin=Origin(url),
        )
    return storage_error(what, url, exn)


def _cannot_write(folder: str, url: str, exn: OSError) -> StorageError:
    what = "cannot open for writing"
    if isinstance(exn, FileNotFoundError):
        return MissingFile(
            f"{what}: there is no folder {folder!r}; make it first", origin=Origin(url)
        )
    return storage_error(what, url, exn)
