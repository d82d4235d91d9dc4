"""Manifest files into columns: JSON, JSON lines, CSV, Parquet and Arrow tables.

All are read a part at a time, so what is held is the columns and a few thousand rows, never the
whole file as Python objects.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from penstock.datasets.manifests.columns import PART
from penstock.datasets.manifests.json_stream import JsonPairs
from penstock.datasets.manifests.replacements import Replacements
from penstock.datasets.manifests.row_table import Builder, ForeignRows, Rows, Table
from penstock.errors import ManifestError, MissingPackage, Origin, UnknownKeyError
from penstock.storage.schemes import open_url

Path = str | os.PathLike[str]
Names = Mapping[str, Any] | None


@contextlib.contextmanager
def _text(path: Path) -> Iterator[io.TextIOWrapper]:
    with open_url(path, buffer_bytes=1 << 20) as stream:
        text = io.TextIOWrapper(cast(Any, stream), "utf-8-sig", newline="")
        try:
            yield text
        except UnicodeDecodeError as error:
            raise ManifestError(
                f"a manifest is text in UTF-8: {error}", origin=Origin(os.fspath(path))
            ) from error


def read_json(path: Path, replacements: Names = None) -> Rows:
    """The rows of ``{"id": {"key": value, …}, …}``."""
    name = os.fspath(path)
    with _text(path) as text:
        builder = Builder(Replacements(replacements, "{}", name), name)
        for pairs in JsonPairs(text, name):
            builder.add_rows(*zip(*pairs))
        return builder.rows()


def read_jsonl(path: Path, replacements: Names = None, id_key: str | None = "id") -> Rows:
    """The rows of a file with a JSON object in each line, its id under ``id_key``.

    With ``id_key=None`` the ids are the numbers of the rows.
    """
    name = os.fspath(path)
    builder = Builder(Replacements(replacements, "{}", name), name, numbered=id_key is None)
    with _text(path) as text:
        number = 0
        while lines := list(islice(text, PART)):
            ids: list[Any] = []
            rows: list[Any] = []
            for number, line in enumerate(lines, number + 1):
                if line.strip():
                    uid, row = _line(line, number, id_key, name)
                    ids.append(uid)
                    rows.append(row)
            builder.add_rows(ids, rows)
    return builder.rows()


def _line(line: str, number: int, id_key: str | None, name: str) -> tuple[Any, Any]:
    """Id and row of a line of JSON."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ManifestError(f"line {number}: {error.msg}", origin=Origin(name)) from None
    if not isinstance(row, dict):
        raise ManifestError(f"line {number}: a row is a JSON object", origin=Origin(name))
    if id_key is None:
        return number, row
    if id_key not in row:
        raise UnknownKeyError(
            f"line {number}: a row has its id under {id_key!r}", origin=Origin(name)
        )
    uid = row.pop(id_key)
    if not isinstance(uid, (str, int)):
        raise ManifestError(f"line {number}: an id is a text, not {uid!r}", origin=Origin(name))
    return uid, row


def read_csv(path: Path, replacements: Names = None) -> Rows:
    """The rows of a table with a column ``ID``; ``duration`` is a number, the rest are texts."""
    name = os.fspath(path)
    builder = Builder(Replacements(replacements, "$", name), name)
    with _text(path) as text:
        reader = csv.reader(text, skipinitialspace=True)
        try:
            header = next(reader, [])
            _check_header(header, name)
            for lines, rows in _csv_parts(reader, len(header), name):
                columns: dict[str, Sequence[Any]] = dict(zip(header, zip(*rows)))
                ids = columns.pop("ID")
                if "duration" in columns:
                    columns["duration"] = _floats(columns["duration"], lines, name)
                builder.add(ids, columns, dense=True)
        except csv.Error as error:
            raise ManifestError(f"line {reader.line_num}: {error}", origin=Origin(name)) from error
    return builder.rows()


def _check_header(header: list[str], name: str) -> None:
    if "ID" not in header:
        raise UnknownKeyError(
            f"a CSV manifest has a column 'ID' (its columns: {', '.join(header) or 'none'})",
            origin=Origin(name),
        )
    if "id" in header or len(set(header)) < len(header):
        raise ManifestError(
            f"columns have different names, and none is 'id': {', '.join(header)}",
            origin=Origin(name),
        )


def _csv_parts(reader: Any, width: int, name: str) -> Iterator[tuple[list[int], list[list[str]]]]:
    lines: list[int] = []
    rows: list[list[str]] = []
    for row in reader:
        if len(row) != width:
            if not row:
                continue
            raise ManifestError(
                f"line {reader.line_num}: the row has {len(row)} values, the header {width}",
                origin=Origin(name),
            )
        lines.append(reader.line_num)
        rows.append(row)
        if len(rows) == PART:
            yield lines, rows
            lines, rows = [], []
    if rows:
        yield lines, rows


def _floats(values: Sequence[str], lines: list[int], name: str) -> list[float]:
    try:
        return list(map(float, values))
    except ValueError:
        for line, value in zip(lines, values):
            with contextlib.suppress(ValueError):
                float(value)
                continue
            raise ManifestError(
                f"line {line}: a duration is a number, not {value!r}", origin=Origin(name)
            ) from None
        raise


def read_parquet(path: Path, replacements: Names = None, id_key: str | None = "id") -> Rows:
    """The rows of a Parquet file, the ids in the column ``id_key`` (None: numbers)."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingPackage.of("a Parquet manifest", "pyarrow", "index") from None
    name = os.fspath(path)
    try:
        with open_url(path, buffer_bytes=1 << 20) as stream, pq.ParquetFile(stream) as file:
            return arrow_rows(file.iter_batches(PART), id_key, replacements, name)
    except pa.ArrowException as error:
        raise ManifestError(f"cannot be read as Parquet: {error}", origin=Origin(name)) from error


def arrow_rows(batches: Iterable[Any], id_key: str | None, replacements: Names, name: str) -> Rows:
    """The rows of Arrow record batches."""
    builder = Builder(Replacements(replacements, "{}", name), name, numbered=id_key is None)
    for table in _even(batches):
        columns = {key: table.column(key).to_pylist() for key in table.column_names}
        ids: Any = range(table.num_rows)
        if id_key is not None:
            if id_key not in columns:
                raise UnknownKeyError(
                    f"there is no column {id_key!r} for the ids "
                    f"(columns: {', '.join(columns)}): give id_key",
                    origin=Origin(name),
                )
            ids = columns.pop(id_key)
        if "id" in columns:
            raise ManifestError(
                "the key 'id' is kept for the id of the row: give id_key='id' or rename it",
                origin=Origin(name),
            )
        builder.add(ids, columns, dense=True)
    return builder.rows()


def _even(batches: Iterable[Any]) -> Iterator[Any]:
    """Tables of PART rows each, and what is left."""
    import pyarrow as pa

    waiting: list[Any] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= PART:
            table = pa.Table.from_batches(waiting)
            while count >= PART:
                yield table.slice(0, PART)
                table = table.slice(PART)
                count -= PART
            waiting = table.to_batches()
    if count:
        yield pa.Table.from_batches(waiting)


def read_arrow(dataset: Any, replacements: Names = None, id_key: str | None = None) -> Table:
    """The rows of an Arrow table or data set, or of a data set that has ``column_names``."""
    if hasattr(dataset, "to_batches"):  # pyarrow's Table and Dataset
        return arrow_rows(dataset.to_batches(), id_key, replacements, "arrow data set")
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "__getitem__"):
        raise ManifestError(
            "an Arrow data set is a pyarrow Table or Dataset, or has column_names and rows by "
            f"number, as those of Hugging Face have; {type(dataset).__name__} is none of these"
        )
    if replacements or id_key is not None or "id" in dataset.column_names:
        table = dataset.with_format("arrow")[:]
        return arrow_rows(table.to_batches(), id_key, replacements, "arrow data set")
    return ForeignRows(dataset)
