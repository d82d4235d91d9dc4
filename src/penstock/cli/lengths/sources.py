"""Read lengths from a manifest's column, an index's column, or reading the shards."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from penstock.batches.lengths import Floats
from penstock.cli.progress import track
from penstock.datasets.manifests.columns import MISSING
from penstock.datasets.manifests.readers import read_json
from penstock.errors import ManifestError, Origin, PipelineError, SampleError, parsing
from penstock.shards.index.columns import Measure
from penstock.storage.schemes import open_url

USUAL = ("duration", "length", "seconds", "num_frames")
"""Columns that are used as the length by default."""
SOUND = ("wav", "flac", "mp3", "ogg", "opus", "m4a", "sph")


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Lengths, their source, and how many samples have no usable one."""

    source: str
    lengths: Floats
    bad: int

    @classmethod
    def of(cls, source: str, values: Any) -> Measured:
        """Leave out and count missing, infinite and non-positive lengths."""
        try:
            found = np.asarray(values, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise SampleError(f"{source}: not all values are numbers: {error}") from error
        good = np.isfinite(found) & (found > 0)
        return cls(source, found[good], int(len(found) - good.sum()))

    def describe(self) -> str:
        """Return a sentence about the lengths."""
        left = f"; {self.bad:,} without a length above 0 are left out" if self.bad else ""
        return f"{len(self.lengths):,} samples, {self.source}{left}"


Names = Mapping[str, str] | None


def measured(
    data: Sequence[str], column: str | None, field: str | None, replacements: Names = None
) -> Measured:
    """Return the lengths of a manifest or of shards, from the shards' index if there is one."""
    if is_manifest(data):
        if field is not None:
            raise PipelineError("--field is for shards: a manifest has --column NAME")
        return _of_manifest(data[0], column, replacements)
    shards = list(data)
    if field is None:
        indexed = _of_index(shards, column)
        if indexed is not None:
            return indexed
    return _of_shards(shards, field)


def is_manifest(data: Sequence[str]) -> bool:
    """Return whether the arguments are one manifest; otherwise they name shards."""
    return len(data) == 1 and data[0].lower().endswith(tuple(f".{form}" for form in READERS))


def _of_manifest(path: str, column: str | None, replacements: Names) -> Measured:
    form = path.lower().rpartition(".")[2]
    if form == "json":  # of the other forms only the column of lengths is looked at
        name, values = _of_json(path, column, replacements)
    else:
        name, values = READERS[form](path, column)
    return Measured.of(f"column {name!r} of {path}", values)


def _of_json(path: str, column: str | None, replacements: Names = None) -> tuple[str, Any]:
    """Read an object of rows by id, a part at a time; or a list of rows."""
    with _text(path) as text:
        listed = text.read(1000).lstrip("\ufeff \t\r\n").startswith("[")
    if not listed:
        rows = read_json(path, replacements)
        name = _column(path, column, rows.keys)
        if name not in rows.keys:  # no rows at all
            return name, []
        numbers = rows.numbers(name)
        column_of = rows.columns[name]
        return name, numbers if numbers is not None else [_present(value) for value in column_of]
    with _text(path) as text:
        try:
            table = json.load(text)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"no JSON: {error}", origin=Origin(path)) from error
    return _of_rows(path, column, table)


def _of_jsonl(path: str, column: str | None) -> tuple[str, Any]:
    with _text(path) as text:
        return _of_rows(path, column, track(_lines(path, text), "Reading rows", unit="rows"))


def _lines(path: str, text: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(text, 1):
        try:
            if line.strip():
                yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ManifestError(
                f"line {number} is no JSON: {error}", origin=Origin(path)
            ) from error


def _of_csv(path: str, column: str | None) -> tuple[str, Any]:
    with _text(path) as text:
        rows = csv.DictReader(text, skipinitialspace=True)
        return _of_rows(path, column, track(rows, "Reading rows", unit="rows"))


def _of_rows(path: str, column: str | None, rows: Iterable[Any]) -> tuple[str, list[Any]]:
    """Return one column of rows and its name; rows are read one at a time."""
    name, values = column or USUAL[0], []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ManifestError(f"row {number} is no object: {row!r}", origin=Origin(path))
        if not number:
            name = _column(path, column, list(row))
        values.append(_present(row.get(name)))
    return name, values


def _present(value: Any) -> Any:
    return None if value is MISSING or value == "" else value


@contextlib.contextmanager
def _text(path: str) -> Iterator[io.TextIOWrapper]:
    with open_url(path, buffer_bytes=1 << 20) as stream:
        yield io.TextIOWrapper(cast(Any, stream), "utf-8-sig", newline="")


def _of_parquet(path: str, column: str | None) -> tuple[str, Any]:
    from penstock.shards.index.parquet_schema import arrow

    parquet = arrow().parquet
    with parsing(lambda why: ManifestError(f"cannot be read: {why}", origin=Origin(path))):
        name = _column(path, column, parquet.read_schema(path).names)
        return name, parquet.read_table(path, columns=[name]).column(name).to_numpy()


READERS = {"json": _of_json, "jsonl": _of_jsonl, "csv": _of_csv, "parquet": _of_parquet}
"""Kind of manifest → a function that returns the name of the column and its values."""


def _column(path: str, column: str | None, known: Sequence[str]) -> str:
    name = column or next((usual for usual in USUAL if usual in known), None)
    if not known:
        return name or USUAL[0]  # no rows: the caller reports that
    if name is None or name not in known:
        which = f"no column {column!r}" if column else "no column with a usual name"
        raise PipelineError(f"{path} has {which} (it has: {', '.join(known)}): say --column NAME")
    return name


def _of_index(shards: list[str], column: str | None) -> Measured | None:
    """Read the column of the index; None if there is none, and shards must be read."""
    from penstock.shards.index import default_index_path, open_index

    path = default_index_path(shards)
    if not os.path.exists(path):
        if column is not None:
            raise PipelineError(
                f"the shards have no index with a column {column!r} ({path}): make it with "
                f"'penstock index --column {column}=FIELD:MEASURE', or say --field FIELD:MEASURE"
            )
        return None
    index = open_index(shards, path)
    name = column or next((usual for usual in USUAL if usual in index.columns), None)
    return None if name is None else Measured.of(f"column {name!r} of {path}", index.column(name))


def _of_shards(shards: list[str], field: str | None) -> Measured:
    from penstock.pipeline.webdataset import WebDataset

    samples = WebDataset(shards, shardshuffle=False, nodesplitter=None)
    measure: Any = None
    values = []
    source = ""
    for sample in track(samples, "Measuring"):
        if measure is None:
            source, measure = _measure(sample, field)
        values.append(measure(sample))
    return Measured.of(f"{source or 'no samples'}, {len(shards):,} shards", values)


def _measure(sample: Mapping[str, Any], field: str | None) -> tuple[str, Any]:
    """Return what to measure: the field given, or by default what the first sample has."""
    if field is None:
        sound = [f for f in sample if f.rpartition(".")[2] in SOUND]
        if not sound:
            return "bytes of each sample", _sample_bytes
        field = sound[0]
    if ":" not in field:
        field += ":seconds" if field.rpartition(".")[2].lower() in SOUND else ":bytes"
    return f"{field.replace(':', ', ', 1)}", Measure(field)


def _sample_bytes(sample: Mapping[str, Any]) -> int:
    return sum(len(value) for value in sample.values() if isinstance(value, bytes))
