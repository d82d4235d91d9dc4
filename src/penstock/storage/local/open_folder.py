"""A folder that is held open, for files whose names come from other people's data."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Self

from penstock.errors import Origin, UnsupportedError, WriteError
from penstock.storage.streams import storage_error

_CLOSED_IN_CHILDREN = getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | _CLOSED_IN_CHILDREN | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _CLOSED_IN_CHILDREN
_RELATIVE = {os.open, os.mkdir, os.rename, os.rmdir, os.stat, os.unlink} <= os.supports_dir_fd


class OpenFolder:
    """A local folder, made if it is missing. Files have names relative to it, like ``a/b.txt``.

    Every part of a name is opened in the folder before it, and never a link, so no name leads out
    of the folder, not even while another process changes it. If the ``with`` block raises, the new
    files and folders are deleted.

    >>> import tempfile
    >>> root = os.path.join(tempfile.mkdtemp(), "x")
    >>> with OpenFolder(root) as folder:
    ...     folder.write("a/b.txt", b"hello")
    ...     folder.kind("a"), folder.kind("a/b.txt"), folder.kind("c")
    ('folder', 'file', None)
    """

    def __init__(self, path: str) -> None:
        if not _RELATIVE:
            raise UnsupportedError("this system cannot open files relative to an open folder")
        self.path = path = path or os.curdir
        self._above: list[str] = []  # folders that were made for this one, and this one
        self._folders: list[Sequence[str]] = []  # those that were made in it
        self._files: list[str] = []  # new ones: they replaced nothing
        missing = path.rstrip("/") or path
        while missing and not os.path.lexists(missing):
            self._above.insert(0, missing)
            missing = os.path.dirname(missing)
        try:
            os.makedirs(path, exist_ok=True)
            self._descriptor = os.open(path, _FOLDER)
        except OSError as error:
            raise storage_error("cannot make the folder", path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._discard()
        os.close(self._descriptor)

    def kind(self, name: str) -> str | None:
        """Return ``"folder"``, ``"file"`` (also for a link), or None if nothing has that name."""
        *folders, last = _parts(name)
        try:
            with self._parent(folders) as parent:
                mode = os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        return "folder" if stat.S_ISDIR(mode) else "file"

    def write(self, name: str, data: bytes) -> None:
        """Write a file, which appears complete; an existing file or link is replaced."""
        new = self.kind(name) is None
        *folders, last = _parts(name)
        part = f".{last[:50]}.{os.getpid()}-{os.urandom(8).hex()}.part"
        try:
            with self._parent(folders, make=True) as parent:
                try:
                    with open(os.open(part, _NEW_FILE, 0o666, dir_fd=parent), "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    if new:
                        self._files.append(name)  # first: an interrupt may come at any moment
                    os.rename(part, last, src_dir_fd=parent, dst_dir_fd=parent)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(part, dir_fd=parent)
                    raise
        except OSError as error:
            raise storage_error("cannot write", os.path.join(self.path, name), error) from error

    def delete(self, name: str) -> None:
        """Delete a file or link; one that is not there is no error."""
        *folders, last = _parts(name)
        try:
            with self._parent(folders) as parent:
                os.unlink(last, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("cannot delete", os.path.join(self.path, name), error) from error

    @contextlib.contextmanager
    def _parent(self, folders: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Yield the descriptor of a folder below this one."""
        current = os.dup(self._descriptor)
        try:
            for number, name in enumerate(folders, 1):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=current)
                        self._folders.append(folders[:number])
                try:
                    inner = os.open(name, _FOLDER | _NO_LINK, dir_fd=current)
                except OSError:
                    path = os.path.join(self.path, *folders[:number])
                    if os.path.islink(path):
                        raise WriteError(
                            "this is a link, which may lead out of the folder: remove it",
                            origin=Origin(path),
                        ) from None
                    if os.path.isfile(path):
                        what = f"{path!r} is a file, and a folder is needed there"
                        raise NotADirectoryError(errno.ENOTDIR, what) from None
                    raise
                os.close(current)
                current = inner
            yield current
        finally:
            os.close(current)

    def _discard(self) -> None:
        for name in self._files:
            with contextlib.suppress(OSError):
                self.delete(name)
        for *folders, last in reversed(self._folders):
            with contextlib.suppress(OSError), self._parent(folders) as parent:
                os.rmdir(last, dir_fd=parent)
        for path in reversed(self._above):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _parts(name: str) -> list[str]:
    """Return the parts of a relative name; one that leaves the folder is a WriteError."""
    parts = name.split("/")
    if parts[0] == "" or ".." in parts or "\0" in name:
        raise WriteError(f"a file in a folder cannot have the name {name!r}: it leaves the folder")
    return [part for part in parts[:-1] if part not in ("", ".")] + parts[-1:]
