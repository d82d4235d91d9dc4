"""Local files, and whatever else has a path: devices, fifos, mounted file systems.

A file is written under a hidden temporary name next to the final one, and renamed when it is
complete and on disk. So a writer that is killed at any moment leaves no partial shard, only a file
``.NAME.PID-RANDOM.part`` that nobody reads. A writer locks its file, and the kernel releases the
lock when the process ends: so the next process on the same machine that writes to the folder knows
which of these files are abandoned, and deletes them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import stat
import zlib

from penstock import env
from penstock.errors import Origin, StorageError
from penstock.storage.local.file_locks import HAS_LOCKS, boot_id, flock, same_file
from penstock.storage.streams import (
    WRITE_BUFFER_BYTES,
    Buffer,
    BufferedStream,
    WriteStream,
    storage_error,
)
from penstock.storage.urls import local_path

_STANDARD = ("/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


class MissingFile(StorageError, FileNotFoundError):
    """There is no such file or folder."""


def open_file(
    url: str, mode: str, buffer_bytes: int | None = None
) -> LocalFile | BufferedStream | WriteStream:
    """Open a local path or ``file:`` URL for reading or writing.

    Reading is unbuffered unless ``buffer_bytes`` is given; -1 selects the size in the variable
    ``GOPEN_BUFFER``, or else the default.
    """
    path = local_path(url)
    if not path or not _can_name_a_file(path):
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


def _can_name_a_file(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


class LocalFile(io.FileIO):
    """A file open for reading: unbuffered, and seekable if it is a regular file.

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
            raise _open_error(path, url, exn) from exn
        self.name = url
        status = os.fstat(self.fileno())
        self.size_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self, size: int | None = -1, /) -> bytes:
        try:
            return super().read(-1 if size is None else size) or b""
        except OSError as exn:
            raise self._read_error(exn) from exn

    def readinto(self, buffer: Buffer, /) -> int:
        try:
            return super().readinto(buffer) or 0
        except OSError as exn:
            raise self._read_error(exn) from exn

    def read_range(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on, fewer only at the end; keep the position."""
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

    def _read_error(self, exn: OSError) -> StorageError:
        if isinstance(exn, io.UnsupportedOperation):
            return storage_error("cannot read", str(self.name), exn)
        offset = None
        with contextlib.suppress(OSError):
            offset = self.tell()
        return storage_error("cannot read", str(self.name), exn, offset)


class SpecialFile(WriteStream):
    """A device, a fifo, ``/dev/stdout``: written directly, since it cannot be replaced."""

    def __init__(
        self, path: str, *, url: str | None = None, buffer_bytes: int | None = None
    ) -> None:
        url = path if url is None else url
        try:
            # Append, because /dev/stdout may be a file that others have written to.
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


MOST_PIECES = 1024
"""The system takes this many buffers in one call."""
START_BYTES = 4 << 20
"""Written data is flushed to disk in steps of this size, not all at the end."""


class AtomicFile(WriteStream):
    """A file that appears under its name when it is closed, complete and on disk; or not at all.

    Folders are not created. An existing file of that name is unchanged until the new one replaces
    it. Symbolic links are followed. A missing folder, missing permission or a full disk raise a
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

    closes_at_exit = True

    def __init__(
        self, path: str, *, url: str | None = None, buffer_bytes: int | None = None
    ) -> None:
        self._written = self._started = 0
        url = path if url is None else url
        self._path = os.path.realpath(path)
        folder = os.path.dirname(self._path)
        try:
            permissions = _read_permissions(self._path)
            descriptor, self._part = create_part(self._path)
        except OSError as exn:
            raise _write_error(folder, url, exn) from exn
        sweep_once(folder)
        self._file = io.FileIO(descriptor, "wb")
        super().__init__(url, buffer_bytes)
        if permissions is not None:
            with contextlib.suppress(OSError):  # some file systems have none
                os.chmod(self._part, permissions)

    def write_pieces(self, pieces: list[bytes]) -> None:
        """Write several buffers without joining them."""
        self.flush()
        if not hasattr(os, "writev"):
            self._push(b"".join(pieces))
            return
        for begin in range(0, len(pieces), MOST_PIECES):
            some, rest = pieces[begin : begin + MOST_PIECES], b""
            with self._abort_on_error(final=False):
                count = self._count(os.writev(self._file.fileno(), some))
            self._sent += count
            if count < sum(map(len, some)):  # the disk is almost full, say
                data = b"".join(some)
                some, rest = [data[:count]], data[count:]
            if self.crc32 is not None:
                for piece in some:
                    self.crc32 = zlib.crc32(piece, self.crc32)
            if rest:
                self._push(rest)

    def _send(self, data: memoryview) -> int:
        return self._count(self._file.write(data) or 0)

    def _count(self, count: int) -> int:
        self._written += count
        if self._written - self._started >= START_BYTES and hasattr(os, "posix_fadvise"):
            # Linux then starts to write these pages while we continue: less is left for fsync.
            begin, self._started = self._started, self._written
            descriptor = self._file.fileno()
            os.posix_fadvise(descriptor, begin, self._written - begin, os.POSIX_FADV_DONTNEED)
        return count

    def _finish(self) -> None:
        os.fsync(self._file.fileno())
        if not HAS_LOCKS:  # Windows cannot rename an open file
            self._file.close()
        os.replace(self._part, self._path)
        self._file.close()  # last: an unlocked part would look abandoned
        _sync_folder(os.path.dirname(self._path))

    def _discard(self) -> None:
        try:
            with contextlib.suppress(OSError):  # a full disk may be reported again when closing
                self._file.close()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part)


def create_part(path: str) -> tuple[int, str]:
    """Create a temporary file for ``path``, open for writing and locked; also return its name.

    If it cannot be locked, the name has no mark, and only its writer deletes it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    folder, name = os.path.split(path)
    mark = machine_mark() if HAS_LOCKS else ""
    while True:
        part = f".{_shorten(name)}.{os.getpid()}-{mark}{os.urandom(4).hex()}.part"
        part = os.path.join(folder, part)
        descriptor = os.open(part, flags, 0o666)
        if not mark:
            return descriptor, part
        try:
            # Before it was locked, another process may have deleted it as abandoned.
            if flock(descriptor, shared=False, wait=False) and same_file(descriptor, part):
                return descriptor, part
        except OSError:  # a file system without locks
            mark = ""
        os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _shorten(name: str) -> str:
    """Return a name as temporary names have it."""
    return name if len(os.fsencode(name)) <= KEPT_BYTES else name[:50]


def machine_mark() -> str:
    """Return eight hexadecimal digits that identify this machine since its last boot."""
    machine = boot_id() or os.uname().nodename
    return hashlib.sha256(machine.encode()).hexdigest()[:8]


_PART = re.compile(r"\.(.*)\.[0-9]+-([0-9a-f]{8})[0-9a-f]{8}\.part", re.DOTALL)
_NUMBER = re.compile("[0-9]+")
_swept: set[str] = set()
KEPT_BYTES = 200
"""Temporary names keep names up to this length; most file systems allow 255 bytes."""


def sweep_once(folder: str) -> None:
    """Sweep a folder, once per process."""
    if folder not in _swept:
        _swept.add(folder)
        sweep(folder)


def sweep(folder: str) -> None:
    """Delete the temporary files of killed writers in a folder.

    Only those written on this machine since its last boot: not every file system shows the locks
    of other machines.
    """
    if not HAS_LOCKS:
        return
    mark = machine_mark()
    with contextlib.suppress(OSError):  # the folder may not be listable
        for item in os.scandir(folder):
            found = _PART.fullmatch(item.name)
            if found is not None and found[2] == mark:
                with contextlib.suppress(OSError):  # just completed, or owned by another user
                    _remove_abandoned(item.path)


def remove_parts(path: str, after_number: str | None = None) -> None:
    """Delete the temporary files of a file whose writers are dead, perhaps on other machines.

    With ``after_number``, those of all files named ``path``, a number and ``after_number``. Of this
    machine's, the kernel knows whether they are abandoned. Only these are deleted if the name is
    too long to be in a temporary name: other files may begin the same.
    """
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):  # there is no such folder, or it cannot be listed
        for item in os.scandir(folder or os.curdir):
            if (found := _PART.fullmatch(item.name)) is None:
                continue
            whole = name
            if after_number is not None:
                number = _NUMBER.match(found[1], len(name))
                whole = f"{name}{number[0] if number else 0}{after_number}"
            if found[1] != _shorten(whole):
                continue
            with contextlib.suppress(OSError):
                if found[2] == machine_mark():
                    _remove_abandoned(item.path)
                elif found[1] == whole:
                    os.unlink(item.path)


def _remove_abandoned(part: str) -> None:
    descriptor = os.open(part, os.O_WRONLY | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0))
    try:
        if flock(descriptor, shared=False, wait=False) and same_file(descriptor, part):
            os.unlink(part)
    finally:
        os.close(descriptor)


def _is_special(path: str, url: str) -> bool:
    """Return whether the path must not be replaced by a new file: a device, a fifo."""
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


def _read_permissions(path: str) -> int | None:
    """Return the mode of the file to be replaced, or None. A name that is too long raises."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def _sync_folder(folder: str) -> None:
    # Without this a power cut could undo the rename. The file is already complete, and not every
    # system or file system can sync a folder, so those errors are ignored.
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


def _open_error(path: str, url: str, exn: OSError) -> StorageError:
    what = "cannot open for reading"
    if isinstance(exn, FileNotFoundError):
        folder = os.path.dirname(os.path.abspath(path))
        lacks = "file" if os.path.isdir(folder) else f"folder {folder!r}, nor a file"
        seen = "" if os.path.isabs(path) else f" as seen from {os.getcwd()!r}"
        if path.count("{") != path.count("}"):
            seen += "; its braces are not balanced, so it was not taken for a pattern"
        if "[" in path:
            seen += "; '[…]' is part of a name, unless '*' or '?' is in it too"
        return MissingFile(f"{what}: there is no such {lacks}{seen}", origin=Origin(url))
    if isinstance(exn, IsADirectoryError):
        return StorageError(
            f"{what}: this is a folder; for all shards in it, end its name with '/'",
            origin=Origin(url),
        )
    return storage_error(what, url, exn)


def _write_error(folder: str, url: str, exn: OSError) -> StorageError:
    what = "cannot open for writing"
    if isinstance(exn, FileNotFoundError):
        return MissingFile(
            f"{what}: there is no folder {folder!r}; make it first", origin=Origin(url)
        )
    return storage_error(what, url, exn)
