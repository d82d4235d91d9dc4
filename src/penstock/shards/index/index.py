"""The index of a data set, in memory."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.errors import Origin, SampleError, StaleIndexError
from penstock.notebook import html_table
from penstock.redact import redact
from penstock.shards.index.keys_and_fields import Fields, Keys
from penstock.shards.index.parquet_schema import (
    OWN_COLUMNS,
    IndexedShard,
    arrow,
    damage_of,
    damaged,
)
from penstock.shards.index.part_files import place_of, places_of
from penstock.shards.index.row_source import FileRowSource, MemoryRowSource, Range, RowSource
from penstock.shards.index.shard_stamps import ends_of, stamp_of
from penstock.storage.urls import local_path

Array = np.ndarray[Any, np.dtype[Any]]

logger = logging.getLogger("penstock.shards.index")

_unchecked: set[str] = set()  # files without a checksum that were already logged


class Index:
    """All samples of a data set: where each is stored, and its columns.

    ``shards`` is the list of :class:`IndexedShard`; the rows of shard number ``n`` are those from
    ``starts[n]`` to ``starts[n + 1]``. ``offset`` and ``size`` (arrays of int64) say where
    each sample is in its shard. Keys, fields and the user's columns are read from the file
    on first use.

    >>> import os, tempfile, penstock
    >>> from penstock.shards.index import open_index
    >>> folder = tempfile.mkdtemp()
    >>> with penstock.ShardWriter(os.path.join(folder, "train-%04d.tar"), maxcount=2) as sink:
    ...     for i in range(3):
    ...         size = sink.write({"__key__": str(i), "cls": i, "txt": "hello"})
    >>> index = open_index(os.path.join(folder, "train-{0000..0001}.tar"), True)
    >>> len(index), index.starts.tolist(), index.keys[2], index.fields_of(2)
    (3, [0, 2, 3], '2', {'cls': (512, 1), 'txt': (1536, 5)})
    """

    def __init__(
        self,
        shards: Sequence[IndexedShard],
        source: RowSource,
        ranges: Sequence[Range] | None = None,
    ) -> None:
        self.shards = list(shards)
        self._source = source
        counts = np.array([shard.samples for shard in self.shards], np.int64)
        self.starts: Array = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self.starts[1:])
        bounds = self.starts.tolist()
        self._ranges = list(ranges) if ranges is not None else list(itertools.pairwise(bounds))
        with damage_of(self.path):
            self.offset, self.size = self._arrays(["offset", "size"])
        self._check_places()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Index:
        """Read the index in that file. One that is damaged is a StaleIndexError.

        The names of its shards are relative to the file's folder. A file of an earlier
        version has no checksum: it is read, and that is logged to "penstock.shards.index".
        """
        name = os.path.abspath(local_path(os.fspath(path)) or os.fspath(path))
        source = FileRowSource.shared(name)
        if source.checksum is None and name not in _unchecked:
            _unchecked.add(name)
            logger.warning(
                "the index %s was made by an earlier version and has no checksum, so damage to it "
                "may go unnoticed: run 'penstock index' over the shards again",
                name,
            )
        return cls(source.about.shards, source)

    @classmethod
    def of_table(cls, shards: Sequence[IndexedShard], table: Any) -> Index:
        """Return an index whose rows are an Arrow table."""
        return cls(shards, MemoryRowSource(table))

    @property
    def path(self) -> str | None:
        """The file it was loaded from; None if it is in memory."""
        return self._source.path

    @property
    def places(self) -> dict[str, int]:
        """The canonical name of each shard → its number."""
        source = self._source
        if isinstance(source, FileRowSource) and source.about.shards == self.shards:
            return places_of(source)
        return {place_of(shard.url): number for number, shard in enumerate(self.shards)}

    @property
    def group(self) -> str:
        """How members were grouped into samples: "key" or "dashed"."""
        return self._source.group

    def check_group(self, group: str) -> None:
        """Raise StaleIndexError unless samples were grouped in this way."""
        if self.group != group:
            raise StaleIndexError(
                f"the index holds samples with group={self.group!r}, not {group!r}: read them with "
                f"group={self.group!r}, or run 'penstock index --group {group}' over the shards",
                origin=None if self.path is None else Origin(self.path),
            )

    def __len__(self) -> int:
        return len(self.offset)

    def __repr__(self) -> str:
        return (
            f"Index({self.path or 'in memory'}: {len(self)} samples in {len(self.shards)} shards)"
        )

    def _repr_html_(self) -> str:
        header = ["shard", "samples", "bytes"]
        sizes = ("" if s.size_bytes is None else f"{s.size_bytes:,}" for s in self.shards)
        rows = ([redact(s.name), f"{s.samples:,}", size] for s, size in zip(self.shards, sizes))
        return html_table(repr(self), header, rows)

    @functools.cached_property
    def shard(self) -> Array:
        """The number of each sample's shard (int32)."""
        return np.repeat(np.arange(len(self.shards), dtype=np.int32), np.diff(self.starts))

    @functools.cached_property
    def keys(self) -> Keys:
        """The keys of all samples: a sequence, with ``find(key)``."""
        with damage_of(self.path):
            return Keys(self._source.pieces(["key"], self._ranges), len(self))

    @functools.cached_property
    def fields(self) -> Fields:
        """The fields of all samples as flat arrays; one sample's: :meth:`fields_of`."""
        names = self._source.pieces(["fields"], self._ranges)
        numbers = self._source.pieces(["field_offsets", "field_sizes"], self._ranges)
        with damage_of(self.path):
            return Fields(names, numbers, self.offset, self.size)

    def fields_of(self, row: int) -> dict[str, tuple[int, int]]:
        """Return the offset in the shard and the size of each field of a sample."""
        fields, offset = self.fields, self.offset.item(row)
        start, stop = fields.starts.item(row), fields.starts.item(row + 1)
        offsets = [offset + relative for relative in fields.offsets[start:stop].tolist()]
        found = zip(offsets, fields.sizes[start:stop].tolist())
        return dict(zip(fields.names[fields.codes[row]], found))

    @property
    def columns(self) -> list[str]:
        """The names of the user's columns."""
        return [name for name in self._source.names() if name not in OWN_COLUMNS]

    def column(self, name: str) -> Array:
        """Return the values of a column, one per sample: numbers (NaN where there is none) or
        objects."""
        if name not in self._source.names():
            raise SampleError(
                f"the index has no column {name!r} (it has: {', '.join(self.columns) or 'none'}): "
                f"add it with 'penstock index --column {name}=FIELD:MEASURE'"
            )
        with damage_of(self.path):
            pieces = self._source.pieces([name], self._ranges)
            values = [piece.column(name).to_numpy() for piece in pieces]
            return np.concatenate(values) if values else np.zeros(0)

    def arrow_column(self, name: str) -> Any:
        """Return a column of the file, the user's or one of ours, as an Arrow ``ChunkedArray``."""
        with damage_of(self.path):
            pieces = self._source.pieces([name], _joined(self._ranges))
            chunks = [chunk for piece in pieces for chunk in piece.column(name).chunks]
            return arrow().chunked_array(chunks, self._source.schema.field(name).type)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest that identifies the data: the shards' names, sizes and counts, and the samples'
        keys and offsets."""
        described = [(shard.name, shard.size_bytes, shard.samples) for shard in self.shards]
        digest = hashlib.blake2b(json.dumps(described).encode(), digest_size=16)
        for array in (self.offset, self.size):
            digest.update(array.astype("<i8", copy=False).data)
        self.keys.add_to(digest)
        return digest.hexdigest()

    def check(self, number: int) -> None:
        """Raise StaleIndexError if a shard has changed since the index was made."""
        shard = self.shards[number]
        shard.check(stamp_of(shard.url), lambda: ends_of(shard.url))

    def select(self, numbers: Sequence[int], urls: Sequence[str] | None = None) -> Index:
        """Return the index of some of the shards, in that order, with other URLs if ``urls`` is
        set."""
        shards = [self.shards[number] for number in numbers]
        if urls is not None:
            shards = [replace(shard, url=url) for shard, url in zip(shards, urls)]
        if list(numbers) == list(range(len(self.shards))):
            same = object.__new__(Index)
            same.__dict__.update(self.__dict__, shards=shards)
            return same
        return Index(shards, self._source, [self._ranges[number] for number in numbers])

    def _arrays(self, names: list[str]) -> list[Array]:
        arrays: list[Array] = [np.empty(int(self.starts[-1]), np.int64) for _ in names]
        row = 0
        for piece in self._source.pieces(names, _joined(self._ranges)):
            for array, name in zip(arrays, names):
                array[row : row + len(piece)] = piece.column(name).to_numpy()
            row += len(piece)
        return arrays

    def _check_places(self) -> None:
        """Raise StaleIndexError if a sample is not inside its shard."""
        filled = np.flatnonzero(np.diff(self.starts))
        if not len(filled):
            return
        # The offsets of a compressed shard are those of the uncompressed tar.
        limits = [
            _ANYWHERE if shard.size_bytes is None or shard.compressed else shard.size_bytes
            for shard in self.shards
        ]
        ends = self.offset + self.size
        lowest = min(array.min() for array in (self.offset, self.size, ends))  # no sum overflows
        last = np.maximum.reduceat(ends, self.starts[filled])
        beyond = np.flatnonzero(last > np.array(limits, np.int64)[filled])
        if lowest < 0 or len(beyond):
            shard = self.shards[filled[beyond[0]] if len(beyond) else 0]
            raise damaged(f"a sample that is not inside its shard ({shard.name})", self.path)

    def __reduce__(self) -> Any:
        # From a file: every process reads it again, which is faster than sending it.
        if isinstance(self._source, FileRowSource):
            source = self._source
            return _again, (source.path, self.shards, self._ranges, source.checksum)
        return Index, (self.shards, self._source, self._ranges)


_ANYWHERE = np.iinfo(np.int64).max


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Merge adjacent ranges.

    >>> _joined([(0, 2), (2, 5), (7, 9)])
    [(0, 5), (7, 9)]
    """
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _again(
    path: str, shards: list[IndexedShard], ranges: list[Range], checksum: str | None
) -> Index:
    there = FileRowSource(path)
    known = {_identity(shard) for shard in there.about.shards}
    if there.checksum != checksum or not known.issuperset(map(_identity, shards)):
        raise StaleIndexError(
            "the index was rebuilt while it was in use: start again", origin=Origin(path)
        )
    return Index(shards, there, ranges)


def _identity(shard: IndexedShard) -> tuple[Any, ...]:
    return (shard.name, shard.samples, shard.stamp)
