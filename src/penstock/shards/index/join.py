"""Join data sets that share keys, such as images, captions and embeddings."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from penstock.errors import DuplicateError, Origin, PipelineError, SampleError
from penstock.redact import redact
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import arrow
from penstock.shards.index.random_access import SampleReader
from penstock.shards.index.resolve import open_index
from penstock.shards.index.subset import Rows, hash_texts
from penstock.shards.sample_reader import Sample

MISSING = ("error", "drop", "fill")
KEPT = os.path.join("~", ".cache", "penstock", "joins")
"""Where the row maps of joins are kept."""


@dataclasses.dataclass(frozen=True)
class Join:
    """Fields of another set of shards, added to the samples with the same keys.

    ``fields`` are those to take (None: all), ``prefix`` is put before their names. ``missing`` says
    what happens to a sample that the other set does not have: ``"error"``, ``"drop"`` (it is left
    out, before the epoch begins) or ``"fill"`` (fields that it lacks are those of ``fill``, others
    None).
    ``index`` is the other set's, as for :class:`~penstock.WebDataset`.

    >>> Join("captions-{000..009}.tar", fields=["txt"], missing="drop").missing
    'drop'
    """

    shards: Any
    fields: Sequence[str] | str | None = None
    prefix: str = ""
    missing: str = "error"
    fill: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    index: Any = True

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            raise PipelineError(f"Join: missing is one of {MISSING}, not {self.missing!r}")
        if isinstance(self.fields, str):
            object.__setattr__(self, "fields", tuple(self.fields.split()))
        elif self.fields is not None:
            object.__setattr__(self, "fields", tuple(self.fields))
        if not isinstance(self.prefix, str) or not isinstance(self.fill, Mapping):
            raise PipelineError("Join: prefix is a text and fill a dict of fields")
        if self.fields is not None and (odd := sorted(set(self.fill) - set(self.fields))):
            raise PipelineError(f"Join: fill has {odd}, which are not among the fields=")
        if self.fill and self.missing != "fill":
            raise PipelineError("Join: fill= needs missing='fill'")


def as_joins(given: Any) -> tuple[Join, ...]:
    """Return one join, or several, as a tuple."""
    joins = (given,) if isinstance(given, (Join, str)) else tuple(given or ())
    for join in joins:
        if not isinstance(join, Join):
            raise PipelineError(f"join is a Join(shards, …) or a list of them, not {join!r}")
    return joins


def join_reader(
    reader: SampleReader, joins: Sequence[Join], kept: Rows | None, options: Mapping[str, Any]
) -> tuple[JoinedReader, Rows | None]:
    """Return a reader of joined samples, and the rows that take part.

    ``kept`` are those of the first set; ``options`` are the ones for readers of the others.
    """
    index = reader.index
    rows = np.arange(len(index)) if kept is None else kept
    taken = _names(index, None)
    sides: list[_Side] = []
    for join in joins:
        other = open_index(join.shards, join.index)
        side = _Side(join, type(reader)(other, **options), map_rows(index, other))
        if join.fields is not None and join.missing != "fill":
            side.leave_incomplete_rows()
        _check_collisions(index, other, join, taken)
        found = side.rows[rows] >= 0
        if join.missing == "drop":
            rows = rows[found]
        elif join.missing == "error" and not found.all():
            _raise_missing(index, other, rows[~found])
        sides.append(side)
    dropped = len(rows) < (len(index) if kept is None else len(kept))
    return JoinedReader(reader, sides), rows if dropped else kept


class _Side:
    """Another set of a join: its reader, and its row for each row of the first set (-1: none)."""

    def __init__(self, join: Join, reader: SampleReader, rows: Rows) -> None:
        self.join, self.reader, self.rows = join, reader, rows
        self.fields = join.fields
        """The fields that every sample gets; None: those that the other sample has."""
        if join.missing == "fill" and join.fields is None:
            self.fields = tuple(sorted({*_names(reader.index, None), *join.fill}))
        plain = not any(name.startswith("__") for name in _names(reader.index, None))
        same = all(names == self.fields for names in reader.index.fields.names)
        self.as_they_are = not join.prefix and (same if self.fields is not None else plain)
        """Whether a sample gets the fields of the other one without a change."""

    def leave_incomplete_rows(self) -> None:
        """Treat samples that lack one of the wanted fields as missing."""
        fields = self.reader.index.fields
        wanted = set(self.join.fields or ())
        complete = np.array([wanted <= set(names) for names in fields.names], bool)
        if complete.all():
            return
        has = complete[fields.codes]
        self.rows = np.where((self.rows >= 0) & has[self.rows], self.rows, -1)

    def add(self, sample: Sample, other: Sample) -> None:
        """Add the fields of another sample, or their substitutes."""
        prefix, fill = self.join.prefix, self.join.fill
        if self.fields is None:
            for name, value in other.items():
                if not name.startswith("__"):
                    sample[prefix + name] = value
        else:
            for name in self.fields:
                sample[prefix + name] = other[name] if name in other else fill.get(name)


class JoinedReader:
    """Reads samples of the first set with the fields of the others, as
    :class:`~penstock.shards.index.SampleReader` reads those of one."""

    def __init__(self, first: SampleReader, sides: Sequence[_Side]) -> None:
        self.first, self.sides = first, list(sides)
        self.index = first.index

    @property
    def fingerprint(self) -> str:
        """A text that differs when the other sets, or what is taken of them, do."""
        digest = hashlib.blake2b(digest_size=8)
        for side in self.sides:
            join = side.join
            described = [join.fields, join.prefix, join.missing, sorted(join.fill)]
            digest.update(json.dumps(described).encode())
            digest.update(side.reader.index.fingerprint.encode())
        return digest.hexdigest()

    @property
    def remote(self) -> bool:
        """Whether a read may cost a round trip."""
        return any(reader.remote for reader in self._readers())

    def _readers(self) -> list[SampleReader]:
        return [self.first, *(side.reader for side in self.sides)]

    def prepare(self) -> None:
        """Load keys and fields now."""
        for reader in self._readers():
            reader.prepare()

    def read(self, row: int, later: bool = False) -> Sample:
        """Read the sample of a row of the first set, with the fields of the others."""
        sample = self.first.read(row, later)
        for side in self.sides:
            other_row: int = side.rows.item(row)
            if other_row < 0:
                side.add(sample, {})
            elif side.as_they_are:
                side.reader.read(other_row, later, sample)
            else:
                side.add(sample, side.reader.read(other_row, later))
        return sample

    def read_many(self, rows: Sequence[int]) -> list[Sample]:
        """Read the samples of several rows, in that order, with one bulk read per set."""
        samples = self.first.read_many(rows)
        for side in self.sides:
            other_rows = [side.rows.item(row) for row in rows]
            found = iter(side.reader.read_many([n for n in other_rows if n >= 0]))
            for sample, other_row in zip(samples, other_rows):
                side.add(sample, next(found) if other_row >= 0 else {})
        return samples

    def close(self) -> None:
        """Close all shards."""
        for reader in self._readers():
            reader.close()


def _names(index: Index, fields: Sequence[str] | None) -> dict[str, str]:
    """Return the fields that samples have, each with the first shard of the set."""
    url = redact(index.shards[0].url) if index.shards else "no shards"
    names = {name for one in index.fields.names for name in one} if fields is None else fields
    return dict.fromkeys(names, url)


def _check_collisions(index: Index, other: Index, join: Join, taken: dict[str, str]) -> None:
    for name, url in _names(other, join.fields).items():
        if join.prefix + name in taken:
            raise PipelineError(
                f"Join: both {taken[join.prefix + name]} and {url} have the field "
                f"{join.prefix + name!r}: choose others with fields=[…], or say prefix='…'"
            )
        taken[join.prefix + name] = url
    if join.fields is not None:
        known = _names(other, None)
        if unknown := [name for name in join.fields if name not in known]:
            url = redact(other.shards[0].url) if other.shards else "the other set"
            raise PipelineError(
                f"Join: no sample of {url} has the field {unknown[0]!r} (there are: "
                f"{', '.join(sorted(known))})"
            )


def _raise_missing(index: Index, other: Index, rows: Rows) -> NoReturn:
    row = int(rows[0])
    first = redact(other.shards[0].url) if other.shards else "no shards"
    raise SampleError(
        f"Join: {len(rows)} of the samples are not in the other set, which begins with {first}: "
        "say missing='drop' or missing='fill'",
        origin=_origin(index, row),
    )


def _origin(index: Index, row: int) -> Origin:
    shard = index.shards[index.shard.item(row)]
    return Origin(shard.url, index.keys[row], index.offset.item(row))


# ── rows ────────────────────────────────────────────────────────────────────────────────


def map_rows(index: Index, other: Index) -> Rows:
    """Return the row of the other index that has the same key as each row of this one, or -1.

    It is kept in the user's cache folder under the fingerprints of both.
    """
    name = hashlib.blake2b(f"{index.fingerprint} {other.fingerprint}".encode(), digest_size=16)
    path = os.path.join(os.path.expanduser(KEPT), f"{name.hexdigest()}.npy")
    with contextlib.suppress(OSError, ValueError, EOFError):
        rows: Rows = np.load(path, allow_pickle=False)
        inside = rows.min(initial=-1) >= -1 and rows.max(initial=-1) < len(other)
        if rows.dtype == np.int64 and rows.shape == (len(index),) and inside:
            return rows
    rows = find_rows(index, other)
    with contextlib.suppress(OSError):  # a full or read-only disk: it is made again next time
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                np.save(file, rows, allow_pickle=False)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
    return rows


def find_rows(index: Index, other: Index) -> Rows:
    """Return the same as :func:`map_rows`, made now: by key hashes, and verified by key."""
    own, theirs = _unique_hashes(index), _unique_hashes(other)
    order = np.argsort(theirs, kind="stable")
    positions = np.searchsorted(theirs[order], own)
    inside = np.minimum(positions, max(len(other) - 1, 0))
    if not len(other):
        return np.full(len(index), -1, np.int64)
    rows: Rows = np.where(theirs[order][inside] == own, order[inside], -1).astype(np.int64)
    found = np.flatnonzero(rows >= 0)
    pa = arrow()
    import pyarrow.compute as pc

    mine = index.arrow_column("key").cast(pa.large_string()).take(pa.array(found))
    keys = other.arrow_column("key").cast(pa.large_string()).take(pa.array(rows[found]))
    same = np.concatenate(
        [np.zeros(0, bool), *(np.asarray(chunk) for chunk in pc.equal(mine, keys).chunks)]
    ).astype(bool)
    for row in found[~same].tolist():  # two keys with one hash
        other_row = other.keys.find(index.keys[row])
        rows[row] = -1 if other_row is None else other_row
    return rows


def _unique_hashes(index: Index) -> Rows:
    """Return the hashes of all keys; a key that occurs twice is an error that names both."""
    hashes = hash_texts(index.keys, 0)
    ordered = np.sort(hashes)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    seen: dict[str, int] = {}
    for row in np.flatnonzero(np.isin(hashes, repeated)).tolist() if len(repeated) else ():
        key = index.keys[row]
        if key in seen:
            first = _origin(index, seen[key])
            raise DuplicateError(
                f"Join: the key {key!r} occurs twice, first in {first}: keys of joined sets occur "
                "once",
                origin=_origin(index, row),
            )
        seen[key] = row
    return hashes
