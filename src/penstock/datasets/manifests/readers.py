"""Reads manifest files into columns: JSON, JSON lines, CSV, Parquet and Arrow tables.

All are read in parts, so memory holds the columns and a few thousand rows, never the whole file as
Python objects.
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
from penstock.datasets.manifests.row_table import ForeignRows, RowTable, TableBuilder, TableSource
from penstock.errors import ManifestError, Origin, UnknownKeyError, parsing
from penstock.shards.index.parquet_schema import arrow
from penstock.storage.schemes import open_url

Path = str | os.PathLike[str]
Names = Mapping[str, Any] | None


def _parsing(name: str) -> contextlib.AbstractContextManager[None]:
    """Convert exceptions of reading a damaged manifest to ManifestError."""
    return parsing(lambda why: ManifestError(f"cannot be read: {why}", origin=Origin(name)))


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    with _parsing(os.fspath(path)), open_url(path, buffer_bytes=1 << 20) as stream:
        text = io.TextIOWrapper(cast(Any, stream), "utf-8-sig", newline="")
        try:
            yield text
        except UnicodeDecodeError as error:
            raise ManifestError(
                f"a manifest must be UTF-8 text: {error}", origin=Origin(os.fspath(path))
            ) from error


def read_json(path: Path, replacements: Names = None) -> RowTable:
    """Read the rows of ``{"id": {"key": value, …}, …}``."""
    name = os.fspath(path)
    with _open_text(path) as text:
        builder = TableBuilder(Replacements(replacements, "{}", name), name)
        for pairs in JsonPairs(text, name):
            builder.add_rows(*zip(*pairs))
        return builder.build()


def read_jsonl(path: Path, replacements: Names = None, id_key: str | None = "id") -> RowTable:
    """Read a file with a JSON object in each line, its id under ``id_key``.

    With ``id_key=None`` the ids are the row numbers.
    """
    name = os.fspath(path)
    builder = TableBuilder(Replacements(replacements, "{}", name), name, numbered=id_key is None)
    with _open_text(path) as text:
        number = 0
        while lines := list(islice(text, PART)):
            ids: list[Any] = []
            rows: list[Any] = []
            for number, line in enumerate(lines, number + 1):
                if line.strip():
                    uid, row = _parse_line(line, number, id_key, name)
                    ids.append(uid)
                    rows.append(row)
            builder.add_rows(ids, rows)
        return builder.build()


def _parse_line(line: str, number: int, id_key: str | None, name: str) -> tuple[Any, Any]:
    """Return id and row of a line of JSON."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ManifestError(f"line {number}: {error.msg}", origin=Origin(name)) from None
    except (ValueError, RecursionError) as error:  # a number too long, or nested too deep
        raise ManifestError(f"line {number}: {error}", origin=Origin(name)) from None
    if not isinstance(row, dict):
        raise ManifestError(f"line {number}: a row must be a JSON object", origin=Origin(name))
    if id_key is None:
        return number, row
    if id_key not in row:
        raise UnknownKeyError(
            f"line {number}: a row must have its id under {id_key!r}", origin=Origin(name)
        )
    uid = row.pop(id_key)
    if not isinstance(uid, (str, int)):
        raise ManifestError(
            f"line {number}: an id must be a string or an integer, not {uid!r}",
            origin=Origin(name),
        )
    return uid, row


def read_csv(path: Path, replacements: Names = None) -> RowTable:
    """Read a table with a column ``ID``; ``duration`` is a number, the rest are strings."""
    name = os.fspath(path)
    builder = TableBuilder(Replacements(replacements, "$", name), name)
    with _open_text(path) as text:
        reader = csv.reader(text, skipinitialspace=True)
        try:
            header = next(reader, [])
            _check_header(header, name)
            for lines, rows in _read_csv_parts(reader, len(header), name):
                columns: dict[str, Sequence[Any]] = dict(zip(header, zip(*rows)))
                ids = columns.pop("ID")
                if "duration" in columns:
                    columns["duration"] = _parse_floats(columns["duration"], lines, name)
                builder.add(ids, columns, dense=True)
        except csv.Error as error:
            raise ManifestError(f"line {reader.line_num}: {error}", origin=Origin(name)) from error
        return builder.build()


def _check_header(header: list[str], name: str) -> None:
    if "ID" not in header:
        raise UnknownKeyError(
            f"a CSV manifest must have a column 'ID' (its columns: {', '.join(header) or 'none'})",
            origin=Origin(name),
        )
    if "id" in header or len(set(header)) < len(header):
        raise ManifestError(
            f"columns must have different names, none of them 'id': {', '.join(header)}",
            origin=Origin(name),
        )


def _read_csv_parts(
    reader: Any, width: int, name: str
) -> Iterator[tuple[list[int], list[list[str]]]]:
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


def _parse_floats(values: Sequence[str], lines: list[int], name: str) -> list[float]:
    try:
        return list(map(float, values))
    except ValueError:
        for line, value in zip(lines, values):
            with contextlib.suppress(ValueError):
                float(value)
                continue
            raise ManifestError(
                f"line {line}: a duration must be a number, not {value!r}", origin=Origin(name)
            ) from None
        raise


def read_parquet(path: Path, replacements: Names = None, id_key: str | None = "id") -> RowTable:
    """Read a Parquet file with the ids in the column ``id_key`` (None: row numbers)."""
    open_parquet = arrow().parquet.ParquetFile
    name = os.fspath(path)
    with (
        _parsing(name),
        open_url(path, buffer_bytes=1 << 20) as stream,
        open_parquet(stream, page_checksum_verification=True) as file,
    ):
        return read_record_batches(file.iter_batches(PART), id_key, replacements, name)


def read_record_batches(
    batches: Iterable[Any], id_key: str | None, replacements: Names, name: str
) -> RowTable:
    """Read the rows of Arrow record batches."""
    builder = TableBuilder(Replacements(replacements, "{}", name), name, numbered=id_key is None)
    with _parsing(name):
        for table in _regroup(batches):
            ids, columns = _split_columns(table, id_key, name)
            builder.add(ids, columns, dense=True)
        return builder.build()


def _split_columns(table: Any, id_key: str | None, name: str) -> tuple[Any, dict[str, list[Any]]]:
    """Return the ids of a table, and its columns as Python values."""
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
            "the key 'id' is reserved for the id of the row: give id_key='id' or rename it",
            origin=Origin(name),
        )
    return ids, columns


def _regroup(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield tables of PART rows each; the last one may be shorter."""
    pa = arrow()
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


def read_arrow(dataset: Any, replacements: Names = None, id_key: str | None = None) -> TableSource:
    """Read an Arrow table or data set, or a data set that has ``column_names``."""
    if hasattr(dataset, "to_batches"):  # pyarrow's Table and Dataset
        return read_record_batches(dataset.to_batches(), id_key, replacements, "arrow data set")
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "__getitem__"):
        raise ManifestError(
            "an Arrow data set must be a pyarrow Table or Dataset, or have column_names and rows "
            f"by number, as Hugging Face's do, not {type(dataset).__name__}"
        )
    if replacements or id_key is not None or "id" in dataset.column_names:
        table = dataset.with_format("arrow")[:]
        return read_record_batches(table.to_batches(), id_key, replacements, "arrow data set")
    return ForeignRows(dataset)
