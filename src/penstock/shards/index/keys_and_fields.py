"""Keys and fields of all samples of an index, in a few flat arrays.

A key or a field's place is taken out of them in about a microsecond; as Python objects
they would take ten times the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.shards.index.parquet_schema import split_fields
from penstock.shards.index.packed_strings import Texts

Array = np.ndarray[Any, np.dtype[Any]]


class Keys(Texts):
    """The keys of all samples: a sequence that makes each text when it is asked for."""

    def __init__(self, pieces: Iterable[Any], count: int) -> None:
        starts = np.zeros(count + 1, np.int64)
        data: list[bytes] = []
        row = total = 0
        for piece in pieces:
            for chunk in piece.column("key").chunks:
                ends, text = _flat_strings(chunk)
                starts[row + 1 : row + 1 + len(ends)] = ends + total
                data.append(text)
                row, total = row + len(ends), total + len(text)
        super().__init__(starts, b"".join(data))


def _flat_strings(chunk: Any) -> tuple[Array, bytes]:
    """Where each text of a string array ends, and all of them in one."""
    if len(chunk) == 0:
        return np.zeros(0, np.int64), b""
    _, places, data = chunk.buffers()
    ends = np.frombuffer(places, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    first, last = int(ends[0]), int(ends[-1])
    text = bytes(data[first:last]) if data is not None else b""
    return ends[1:].astype(np.int64) - first, text


class Fields:
    """The fields of all samples: names, places and sizes.

    Sample ``row`` has the fields ``names[codes[row]]``. The first of them stands at
    ``starts[row]`` in the flat arrays ``places``, where its data begins behind the sample's offset,
    and ``sizes``. Numbers are 32 bits wide unless a sample is too large for that.
    """

    def __init__(self, names: Iterable[Any], numbers: Iterable[Any], offset: Array, size: Array):
        self.codes, self.names = _coded(names, len(offset))
        counts = np.array([len(fields) for fields in self.names] or [0], np.int64)[self.codes]
        total = int(counts.sum())
        self.starts: Array = np.zeros(len(offset) + 1, np.uint32 if total < _WIDE else np.int64)
        np.cumsum(counts, out=self.starts[1:])
        wide = np.uint32 if len(size) == 0 or size.max() < _WIDE else np.int64
        self.places: Array = np.empty(total, wide)
        self.sizes: Array = np.empty(total, wide)
        row = at = 0
        for piece in numbers:
            stop = row + len(piece)
            begins = np.repeat(offset[row:stop], counts[row:stop])
            end = at + len(begins)
            self.places[at:end] = _flat(piece.column("field_offsets")) - begins
            self.sizes[at:end] = _flat(piece.column("field_sizes"))
            row, at = stop, end


_WIDE = 1 << 32


def _coded(pieces: Iterable[Any], count: int) -> tuple[Array, list[tuple[str, ...]]]:
    """A number for each sample that says which fields it has, and what the numbers mean."""
    known: dict[str, int] = {}
    found: list[Array] = []
    for piece in pieces:
        for chunk in piece.column("fields").chunks:
            texts = chunk.dictionary.to_pylist()
            numbers = np.array([known.setdefault(t, len(known)) for t in texts] or [0])
            codes = numbers[chunk.indices.to_numpy(zero_copy_only=False)]
            found.append(codes.astype(np.min_scalar_type(len(known))))
    codes = np.concatenate(found) if found else np.zeros(0, np.uint8)
    return codes, [split_fields(text) for text in known]


def _flat(column: Any) -> Array:
    """The numbers of all lists of a column, one after another."""
    return np.concatenate([np.zeros(0, np.int64), *map(_numbers, column.chunks)])


def _numbers(chunk: Any) -> Array:
    array: Array = chunk.flatten().to_numpy(zero_copy_only=False)
    return array
