"""Small files, local or remote: read and written whole, created once, listed, deleted.

Shards are streams (:func:`~penstock.storage.open_url`). This module is for records of a few
kilobytes, which several processes or machines read and write at the same time. A file always
appears whole. Nothing is flushed to the disk: after a power cut a record may be missing, or empty.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import Origin, StorageError
from penstock.redact import redact
from penstock.storage.client.store import Store
from penstock.storage.listing import list_prefix, store_of
from penstock.storage.local.file_locks import HAS_LOCKS
from penstock.storage.local.files import MissingFile, create_part, sweep_once
from penstock.storage.schemes import fsspec_knows, open_url
from penstock.storage.streams import storage_error
from penstock.storage.urls import local_path, rewrite_url, scheme_of


class FileStamp(NamedTuple):
    """The size of a file, and its version: modification time, ETag or generation."""

    size_bytes: int | None
    version: str | None

    @classmethod
    def of_file(cls, status: os.stat_result) -> FileStamp:
        return cls(status.st_size, str(status.st_mtime_ns))

    @classmethod
    def of_object(cls, size_bytes: int | None, version: str | None) -> FileStamp:
        """Return the stamp of a remote object; servers write ETags with and without quotes."""
        return cls(size_bytes, version.strip('"') if version else None)


def read_file(url: str) -> bytes:
    """Return the bytes of a small file. Raise :class:`~penstock.storage.MissingFile` if missing."""
    with open_url(url, buffer_bytes=-1) as stream:
        data: bytes = stream.read()
    return data


def write_file(url: str, data: bytes) -> None:
    """Write a small file, replacing one of that name."""
    path = _path(url)
    if path is None:
        store = _putting_store(url)
        if store is not None:
            store.put(rewrite_url(url), data)
            return
        with open_url(url, "wb") as stream:
            stream.write(data)
        return
    with _written_part(path, url, data) as part:
        try:
            os.replace(part, path)
        except OSError as error:
            raise storage_error("cannot write", url, error) from error


def create_file(url: str, data: bytes) -> bool:
    """Write a small file unless there is one of that name; then return False.

    Stores that cannot do that in one step replace the file and return True: test that with
    :func:`creates_exclusively`.
    """
    path = _path(url)
    if path is None:
        store = _putting_store(url)
        if store is not None:
            # After a lost answer the request is sent again, and the file there is our own.
            return store.put(rewrite_url(url), data, exclusive=True) or _holds(url, data)
        write_file(url, data)
        return True
    with _written_part(path, url, data) as part:
        try:
            os.link(part, path)
        except FileExistsError:
            return False
        except OSError:  # some file systems have no links
            return _create_plainly(path, url, data)
    return True


def creates_exclusively(url: str) -> bool:
    """Return whether :func:`create_file` never replaces a file beside ``url``, found by trying.

    ``url`` is the name of a scratch file, which is left there.
    """
    create_file(url, b"first")
    return not create_file(url, b"second")


def delete_file(url: str) -> None:
    """Delete a file; one that is not there is no error."""
    path = _path(url)
    if path is not None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("cannot delete", url, error) from error
        return
    url = rewrite_url(url)
    store = store_of(url)
    if store is not None:
        store.delete(url)
    elif fsspec_knows(scheme_of(url)):
        from penstock.storage.objects.fsspec import delete_fsspec

        delete_fsspec(url)
    else:
        raise StorageError("files of this store cannot be deleted", origin=Origin(redact(url)))


def list_files(folder: str) -> dict[str, FileStamp]:
    """Return the names of the files directly in a folder, each with its stamp.

    A folder that does not exist holds no files. Names that begin with a dot are left out.
    """
    path = _path(folder)
    if path is None:
        prefix = rewrite_url(folder).rstrip("/") + "/"
        return {
            name: FileStamp.of_object(found.size_bytes, found.version)
            for found in list_prefix(prefix, deep=False)
            if (name := found.url[len(prefix) :]) and "/" not in name and name[0] != "."
        }
    found_files = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name[0] != "." and entry.is_file():
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        found_files[entry.name] = FileStamp.of_file(entry.stat())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error("cannot list", folder, error) from error
    return found_files


def make_folder(url: str) -> None:
    """Make a local folder and those above it; other stores need none."""
    path = _path(url)
    if path is not None:
        try:
            os.makedirs(path or os.curdir, exist_ok=True)
        except OSError as error:
            raise storage_error("cannot make the folder", url, error) from error


def stamp_file(url: str) -> FileStamp:
    """Return the stamp of one file. Raise :class:`~penstock.storage.MissingFile` if missing."""
    path = _path(url)
    if path is not None:
        with contextlib.suppress(OSError, ValueError):  # opening it says what is wrong
            return FileStamp.of_file(os.stat(path))
    with open_url(url) as stream:
        return FileStamp.of_object(stream.size_bytes, getattr(stream, "etag", None))


def _path(url: str) -> str | None:
    return local_path(rewrite_url(url))


def _putting_store(url: str) -> Store | None:
    """Return the store of the URL if it takes small objects in one request."""
    store = store_of(rewrite_url(url))
    return None if store is None or type(store).put is Store.put else store


def _holds(url: str, data: bytes) -> bool:
    try:
        return read_file(url) == data
    except MissingFile:
        return False


@contextlib.contextmanager
def _written_part(path: str, url: str, data: bytes) -> Iterator[str]:
    """Write the data to a temporary file beside ``path``, and yield its name.

    It is locked until the end, where it is deleted unless it was renamed.
    """
    try:
        descriptor, part = create_part(path)
    except OSError as error:
        raise storage_error("cannot write", url, error) from error
    sweep_once(os.path.dirname(path))
    try:
        try:
            # Windows cannot rename an open file.
            with open(descriptor, "wb", closefd=not HAS_LOCKS) as file:
                file.write(data)
        except OSError as error:
            raise storage_error("cannot write", url, error) from error
        yield part
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if HAS_LOCKS:
            os.close(descriptor)  # last: an unlocked part would look abandoned


def _create_plainly(path: str, url: str, data: bytes) -> bool:
    try:
        with open(path, "xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    except OSError as error:
        raise storage_error("cannot write", url, error) from error
    return True
