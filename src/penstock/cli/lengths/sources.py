"""Where lengths come from: a manifest's column, an index's column, or reading the shards."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.batches.lengths import Floats
from penstock.cli.progress import track
from penstock.errors import MissingPackage, PipelineError
from penstock.index.columns import Measure
from penstock.storage.listing import find_shards

MANIFESTS = (".json", ".jsonl", ".csv", ".parquet")
USUAL = ("duration", "length", "seconds", "num_frames")
"""Columns that are taken for the length where nobody says which."""
SOUND = ("wav", "flac", "mp3", "ogg", "opus", "m4a", "sph")


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Lengths, where they come from, and how many samples have none that can be used."""

    source: str
    lengths: Floats
    bad: int

    @classmethod
    def of(cls, source: str, values: Any) -> Measured:
        """Missing, infinite and non-positive lengths are left out, and counted."""
        try:
            found = np.asarray(values, np.float64)
        except (TypeError, ValueError) as error:
            raise PipelineError(f"{source}: not all values are numbers: {error}") from error
        good = np.isfinite(found) & (found > 0)
        return cls(source, found[good], int(len(found) - good.sum()))

    def told(self) -> str:
        """In words."""
        left = f"; {self.bad:,} without a length above 0 are left out" if self.bad else ""
        return f"{len(self.lengths):,} samples, {self.source}{left}"


def measured(data: Sequence[str], column: str | None, field: str | None) -> Measured:
    """The lengths of shards or of a manifest; of an index beside the shards where there is one."""
    if len(data) == 1 and data[0].lower().endswith(MANIFESTS):
        if field is not None:
            raise PipelineError("--field is for shards: a manifest has --column NAME")
        return _of_manifest(data[0], column)
    shards = [url for text in data for url in find_shards(text)]
    if field is None:
        indexed = _of_index(shards, column)
        if indexed is not None:
            return indexed
    return _of_shards(shards, field)


def _of_manifest(path: str, column: str | None) -> Measured:
    if path.lower().endswith(".parquet"):
        return _of_parquet(path, column)
    with open(path, newline="", encoding="utf-8") as file:
        if path.lower().endswith(".csv"):
            rows: Iterable[Any] = list(csv.DictReader(file, skipinitialspace=True))
        elif path.lower().endswith(".jsonl"):
            rows = [json.loads(line) for line in track(file, "Reading rows", unit="rows")]
        else:
            rows = _json_rows(path, file)
    rows = list(rows)
    known = [name for row in rows[:1] for name in row]
    name = _column(path, column, known) if rows else column or USUAL[0]
    values = [row.get(name) if row.get(name) != "" else None for row in rows]
    return Measured.of(f"column {name!r} of {path}", values)


def _json_rows(path: str, file: Any) -> list[Any]:
    try:
        found = json.load(file)
    except json.JSONDecodeError as error:
        raise PipelineError(f"{path} is no JSON: {error}") from error
    rows = list(found.values()) if isinstance(found, Mapping) else found
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise PipelineError(f"{path} is no manifest: it has rows, by id or in a list")
    return rows


def _of_parquet(path: str, column: str | None) -> Measured:
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage.of("reading .parquet", "pyarrow", "index") from None
    name = _column(path, column, parquet.read_schema(path).names)
    values = parquet.read_table(path, columns=[name]).column(name).to_numpy()
    return Measured.of(f"column {name!r} of {path}", values)


def _column(path: str, column: str | None, known: Sequence[str]) -> str:
    name = column or next((usual for usual in USUAL if usual in known), None)
    if name is None or name not in known:
        which = f"no column {column!r}" if column else "no column with a usual name"
        raise PipelineError(f"{path} has {which} (it has: {', '.join(known)}): say --column NAME")
    return name


def _of_index(shards: list[str], column: str | None) -> Measured | None:
    """From the index, if there is one that has the column; None if shards are to be read."""
    from penstock.index import default_index_path, open_index

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
    """What to measure, as the first sample shows it where nobody says."""
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
