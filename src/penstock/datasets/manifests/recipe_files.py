"""Reads and writes the files of recipes that prepare a data set: manifests, tables, pickles.

SpeechBrain's names and arguments. Pickles hold only plain values, arrays and tensors, nothing that
could run code.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from penstock.codecs.safe_pickle.unpickler import pickle_dumps, unpickle_loads
from penstock.datasets.manifests import readers as files
from penstock.datasets.manifests.row_table import RowsView
from penstock.errors import ManifestError, Origin, PenstockError, UnknownKeyError, WriteError
from penstock.storage.local.files import AtomicFile

Path = str | os.PathLike[str]


def load_data_json(json_path: Path, replacements: files.Names = None) -> dict[str, dict[str, Any]]:
    """Return the rows of a JSON manifest by id, with ``{name}`` replaced in all strings."""
    return dict(RowsView(files.read_json(json_path, replacements)))


def load_data_csv(
    csv_path: Path,
    replacements: files.Names = None,
    col_types: Mapping[str, Callable[[str], Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the rows of a CSV manifest by id, with ``$name`` replaced in all strings.

    ``duration`` becomes a float; ``col_types`` maps other columns to a function of their string.
    """
    rows = dict(RowsView(files.read_csv(csv_path, replacements)))
    for row in rows.values():
        row.update({key: kind(row[key]) for key, kind in (col_types or {}).items() if key in row})
    return rows


def get_list_from_csv(
    csvfile: Path, field: str, delimiter: str = ",", skipinitialspace: bool = True
) -> list[str]:
    """Return all values of a column of a CSV file."""
    with open(csvfile, newline="", encoding="utf-8") as text:
        rows = csv.DictReader(text, delimiter=delimiter, skipinitialspace=skipinitialspace)
        if field not in (rows.fieldnames or ()):
            raise UnknownKeyError(
                f"the table has no column {field!r} (columns: {rows.fieldnames})",
                origin=Origin(os.fspath(csvfile)),
            )
        return [row[field] for row in rows]


def merge_csvs(data_folder: Path, csv_lst: Sequence[str], merged_csv: str) -> None:
    """Write the rows of several CSV files of a folder to another file of that folder.

    Files with different headers raise a :class:`~penstock.errors.ManifestError`.
    """
    header, bodies = None, []
    for name in csv_lst:
        path = os.path.join(data_folder, name)
        with open(path, newline="", encoding="utf-8") as text:
            first, _, body = text.read().partition("\n")
        header = first if header is None else header
        if first.rstrip("\r") != header.rstrip("\r"):
            raise ManifestError(
                f"merged tables must have the same header: {csv_lst[0]} has {header!r} and "
                f"{name} has {first!r}",
                origin=Origin(path),
            )
        bodies.append(body)
    with AtomicFile(os.path.join(data_folder, merged_csv)) as file:
        for body in (header or "", *bodies):
            # A file may lack a newline at its end.
            file.write((body if body.endswith("\n") or not body else body + "\n").encode())


def save_pkl(obj: Any, file: Path) -> None:
    """Write plain values, arrays and tensors as a pickle, atomically.

    Anything else raises a :class:`~penstock.errors.WriteError`, as :func:`load_pkl` refuses it.
    """
    data, path = pickle_dumps(obj), os.fspath(file)
    try:
        unpickle_loads(data)
    except PenstockError as error:
        raise WriteError(
            f"a pickle may hold only plain values, arrays and tensors: {error.message}",
            origin=Origin(path),
        ) from error
    with AtomicFile(path) as stream:
        stream.write(data)


def load_pkl(file: Path) -> Any:
    """Return the plain values, arrays and tensors of a pickle.

    Anything else raises an :class:`~penstock.errors.UnsafeError`: a pickle could run any code.
    """
    with open(file, "rb") as stream:
        data = stream.read()
    try:
        return unpickle_loads(data)
    except PenstockError as error:
        error.locate(Origin(os.fspath(file)))
        raise


def get_md5(file: Path) -> str:
    """Return the MD5 checksum of a file in hexadecimal."""
    with open(file, "rb") as stream:
        md5 = functools.partial(hashlib.md5, usedforsecurity=False)
        return hashlib.file_digest(stream, md5).hexdigest()


def save_md5(files: Iterable[str], out_file: Path) -> None:
    """Write the MD5 checksums of files as a pickled dict."""
    save_pkl({file: get_md5(file) for file in files}, out_file)


def get_all_files(
    dirName: Path,
    match_and: Iterable[str] | None = None,
    match_or: Iterable[str] | None = None,
    exclude_and: Iterable[str] | None = None,
    exclude_or: Iterable[str] | None = None,
) -> list[str]:
    """Return the paths of all files in a folder and below it, sorted.

    A path is kept if it contains all strings of ``match_and`` and one of ``match_or``, and does not
    contain all of ``exclude_and`` or one of ``exclude_or``.
    """
    tests = [
        (match_and, all, True),
        (match_or, any, True),
        (exclude_and, all, False),
        (exclude_or, any, False),
    ]
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(dirName, onerror=_raise, followlinks=True)
        for name in names
    ]
    for texts, combine, wanted in tests:
        if texts is not None:
            texts = list(texts)
            found = [path for path in found if combine(text in path for text in texts) is wanted]
    return sorted(found)


def _raise(error: OSError) -> NoReturn:
    raise error


def split_path(path: Any) -> tuple[Any, str]:
    """Split a path or URL into its folder and its file name.

    A SpeechBrain ``FetchSource`` keeps its other fields.

    >>> split_path("speechbrain/asr/model.ckpt"), split_path("model.ckpt")
    (('speechbrain/asr', 'model.ckpt'), ('./', 'model.ckpt'))
    """
    if hasattr(path, "_replace"):
        folder, name = split_path(path.path)
        return path._replace(path=folder), name
    folder, slash, name = str(path).rpartition("/")
    return (folder if slash else "./"), name
