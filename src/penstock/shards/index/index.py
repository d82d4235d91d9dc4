"""The index of a data set, in memory."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.errors import Origin, SampleError, StaleIndexError
from penstock.shards.index.keys_and_fields import Fields, Keys
from penstock.shards.index.parquet_schema import OWN_COLUMNS, IndexedShard, parse_metadata
from penstock.shards.index.shard_stamps import compare, stamp_of
from penstock.shards.index.row_source import FileSource, Range, Source, TableSource

Array = np.ndarray[Any, np.dtype[Any]]


class Index:
    """All samples of a data set: where each is, and what is known of it.

    ``shards`` is the list of :class:`IndexedShard`; the rows of shard number ``n`` are those from
    ``starts[n]`` to ``starts[n + 1]``. ``offset`` and ``size`` (arrays of int64) say where
    each sample is in its shard. Keys, fields and the user's columns are read from the file
    when they are first asked for.

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
        self, shards: Sequence[IndexedShard], source: Source, ranges: Sequence[Range] | None = None
    ) -> None:
        self.shards = list(shards)
        self._source = source
        counts = np.array([shard.samples for shard in self.shards], np.int64)
        self.starts: Array = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=self.starts[1:])
        bounds = self.starts.tolist()
        self._ranges = list(ranges) if ranges is not None else list(itertools.pairwise(bounds))
        self.offset, self.size = self._arrays(["offset", "size"])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Index:
        """The index in that file. One that cannot be read is a ShardError.

        The names of its shards are taken as seen from the file's folder.
        """
        name = os.path.abspath(os.fspath(path))
        source = FileSource(name)
        shards, _ = parse_metadata(source.metadata, name)
        if sum(shard.samples for shard in shards) != source.rows:
            raise StaleIndexError(
                f"the index has {source.rows} rows, but its list of shards counts "
                f"{sum(shard.samples for shard in shards)}: run 'penstock index' again",
                origin=Origin(name),
            )
        return cls(shards, source)

    @classmethod
    def of_table(cls, shards: Sequence[IndexedShard], table: Any) -> Index:
        """The index whose rows are an Arrow table."""
        return cls(shards, TableSource(table))

    @property
    def path(self) -> str | None:
        """The file it comes from, where there is one."""
        return self._source.path

    def __len__(self) -> int:
        return len(self.offset)

    def __repr__(self) -> str:
        return (
            f"Index({self.path or 'in memory'}: {len(self)} samples in {len(self.shards)} shards)"
        )

    @functools.cached_property
    def shard(self) -> Array:
        """The number of each sample's shard (int32)."""
        return np.repeat(np.arange(len(self.shards), dtype=np.int32), np.diff(self.starts))

    @functools.cached_property
    def keys(self) -> Keys:
        """The keys of all samples: a sequence, with ``find(key)``."""
        return Keys(self._source.pieces(["key"], self._ranges), len(self))

    @functools.cached_property
    def fields(self) -> Fields:
        """The fields of all samples as flat arrays; one sample's: :meth:`fields_of`."""
        names = self._source.pieces(["fields"], self._ranges)
        numbers = self._source.pieces(["field_offsets", "field_sizes"], self._ranges)
        return Fields(names, numbers, self.offset, self.size)

    def fields_of(self, row: int) -> dict[str, tuple[int, int]]:
        """Where in the shard the data of each field of a sample begins, and its size."""
        fields, offset = self.fields, self.offset.item(row)
        start, stop = fields.starts.item(row), fields.starts.item(row + 1)
        places = [offset + place for place in fields.places[start:stop].tolist()]
        found = zip(places, fields.sizes[start:stop].tolist())
        return dict(zip(fields.names[fields.codes[row]], found))

    @property
    def columns(self) -> list[str]:
        """The names of the user's own columns."""
        return [name for name in self._source.names() if name not in OWN_COLUMNS]

    def column(self, name: str) -> Array:
        """The values of a column, one per sample: numbers (NaN where there is none) or objects."""
        if name not in self._source.names():
            raise SampleError(
                f"the index has no column {name!r} (it has: {', '.join(self.columns) or 'none'}): "
                f"add it with 'penstock index --column {name}=FIELD:MEASURE'"
            )
        pieces = self._source.pieces([name], self._ranges)
        values = [piece.column(name).to_numpy() for piece in pieces]
        return np.concatenate(values) if values else np.zeros(0)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells this data from other data: a digest of the shards' names, sizes and counts, and
        of the samples' keys and places."""
        told = [(shard.name, shard.size_bytes, shard.samples) for shard in self.shards]
        digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=16)
        for array in (self.offset, self.size):
            digest.update(array.astype("<i8", copy=False).data)
        self.keys.add_to(digest)
        return digest.hexdigest()

    def check(self, number: int) -> None:
        """Raise StaleIndexError where a shard is not as it was when the index was made."""
        shard = self.shards[number]
        compare(shard.url, shard.stamp, stamp_of(shard.url))

    def select(self, numbers: Sequence[int], urls: Sequence[str] | None = None) -> Index:
        """The index of some of the shards, in that order, under other URLs where they are given."""
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
        for piece in self._source.pieces(names, self._ranges):
            for array, name in zip(arrays, names):
                array[row : row + len(piece)] = piece.column(name).to_numpy()
            row += len(piece)
        return arrays

    def __reduce__(self) -> Any:
        # From a file: every process reads it again, which is faster than sending it.
        if isinstance(self._source, FileSource):
            return _again, (self._source.path, self.shards, self._ranges)
        return Index, (self.shards, self._source, self._ranges)


def _again(path: str, shards: list[IndexedShard], ranges: list[Range]) -> Index:
    there = FileSource(path)
    known, _ = parse_metadata(there.metadata, path)
    counts = {(shard.name, shard.samples, shard.size_bytes, shard.mtime_ns) for shard in known}
    for shard in shards:
        if (shard.name, shard.samples, shard.size_bytes, shard.mtime_ns) not in counts:
            raise StaleIndexError(
                f"the index {path} was made anew while it was in use: start again",
                origin=Origin(shard.url),
            )
    return Index(shards, there, ranges)
