"""Downloads and unpacks the files of a data set before training."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, cast

from penstock.errors import Origin, PipelineError, UnsafeError
from penstock.storage.local.files import AtomicFile
from penstock.storage.schemes import open_url
from penstock.storage.urls import local_path

Path = str | os.PathLike[str]
BLOCK_BYTES = 1 << 20


def download_file(
    source: Path,
    dest: Path,
    unpack: bool = False,
    dest_unpack: Path | None = None,
    replace_existing: bool = False,
    write_permissions: bool = False,
) -> None:
    """Copy a file from any URL or path to ``dest``, and unpack it with ``unpack=True``.

    A URL is not fetched again if ``dest`` exists, unless ``replace_existing``. The file appears
    complete or not at all. Tar and zip archives are unpacked into ``dest_unpack``, by default the
    folder of ``dest``; a plain ``.gz`` is unpacked next to it. An archive with names outside
    that folder raises an :class:`~penstock.errors.UnsafeError`. ``write_permissions`` makes the
    unpacked files writable. If torch.distributed is initialised, rank 0 does the work and the
    others wait for it.
    """
    with _only_on_first_rank() as first:
        if not first:
            return
        url, path = os.fspath(source), os.fspath(dest)
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        if replace_existing or local_path(url) is not None or not os.path.isfile(path):
            with open_url(url) as stream, AtomicFile(path) as file:
                shutil.copyfileobj(cast(Any, stream), cast(Any, file), BLOCK_BYTES)
        if unpack:
            folder = os.path.dirname(path) or "." if dest_unpack is None else os.fspath(dest_unpack)
            unpack_archive(path, folder)
            if write_permissions:
                set_writing_permissions(folder)


@contextlib.contextmanager
def _only_on_first_rank() -> Iterator[bool]:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        yield True
        return
    try:
        yield distributed.get_rank() == 0
    finally:
        distributed.barrier()


def unpack_archive(path: str, folder: str) -> None:
    """Unpack a tar or zip archive into a folder, or a plain ``.gz`` next to it."""
    if path.endswith(".gz") and not path.endswith(".tar.gz"):
        with gzip.open(path) as packed, AtomicFile(path.removesuffix(".gz")) as file:
            shutil.copyfileobj(packed, cast(Any, file), BLOCK_BYTES)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise _make_unsafe_error(path, repr(name))
            archive.extractall(folder)
    elif tarfile.is_tarfile(path):
        if not hasattr(tarfile, "data_filter"):
            raise UnsafeError("unpacking safely needs Python 3.11.4: unpack the archive by hand")
        with tarfile.open(path) as tar:
            try:
                tar.extractall(folder, filter="data")
            except tarfile.FilterError as error:
                raise _make_unsafe_error(path, str(error)) from error
    else:
        raise PipelineError("archives are .tar, .tar.gz, .zip or .gz", origin=Origin(path))


def _make_unsafe_error(path: str, what: str) -> UnsafeError:
    return UnsafeError(
        f"an archive must not contain names outside its folder: {what}; unpack it by hand if you "
        "trust it",
        origin=Origin(path),
    )


def set_writing_permissions(folder_path: Path) -> None:
    """Give the owner of all files in a folder the permission to write them."""
    for folder, _, names in os.walk(folder_path):
        for name in names:
            path = os.path.join(folder, name)
            os.chmod(path, os.stat(path).st_mode | stat.S_IWUSR)
