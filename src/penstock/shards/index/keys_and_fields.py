"""Store the keys and fields of all samples of an index in a few flat arrays.

Looking up a key or a field's offset takes about a microsecond; Python objects would take ten times
the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.shards.index.packed_strings import Texts
from penstock.shards.index.parquet_schema import split_fields

Array = np.ndarray[Any, np.dtype[Any]]


class Keys(Texts):
    """The keys of all samples: a sequence that creates each string on access."""

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
    """Return the end of each string of a string array, and all strings in one."""
    if len(chunk) == 0:
        return np.zeros(0, np.int64), b""
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    first, last = int(ends[0]), int(ends[-1])
    text = bytes(data[first:last]) if data is not None else b""
    return ends[1:].astype(np.int64) - first, text


class Fields:
    """The fields of all samples: names, offsets and sizes.

    Sample ``row`` has the fields ``names[codes[row]]``. The first of them has the index
    ``starts[row]`` in the flat arrays ``offsets`` (offsets of the data, relative to the sample) and
    ``sizes``. Numbers are 32 bits wide unless a sample is too large for that. Fields that are not
    inside their sample raise ValueError.
    """

    def __init__(self, names: Iterable[Any], numbers: Iterable[Any], offset: Array, size: Array):
        self.codes, self.names = _encode_names(names, len(offset))
        counts = np.array([len(fields) for fields in self.names] or [0], np.int64)[self.codes]
        total = int(counts.sum())
        self.starts: Array = np.zeros(len(offset) + 1, np.uint32 if total < _WIDE else np.int64)
        np.cumsum(counts, out=self.starts[1:])
        wide = np.uint32 if len(size) == 0 or size.max() < _WIDE else np.int64
        self.offsets: Array = np.empty(total, wide)
        self.sizes: Array = np.empty(total, wide)
        row = at = 0
        for piece in numbers:
            stop = row + len(piece)
            own = counts[row:stop]
            offsets = _flatten(piece.column("field_offsets"), own)
            relative = offsets - np.repeat(offset[row:stop], own)
            sizes = _flatten(piece.column("field_sizes"), own)
            end = at + len(relative)
            if len(relative) and (
                min(relative.min(), sizes.min()) < 0
                or (relative > np.repeat(size[row:stop], own) - sizes).any()
            ):
                raise ValueError("a field that is not inside its sample")
            self.offsets[at:end], self.sizes[at:end] = relative, sizes
            row, at = stop, end


_WIDE = 1 << 32


def _encode_names(pieces: Iterable[Any], count: int) -> tuple[Array, list[tuple[str, ...]]]:
    """Return a code for each sample's set of fields, and the fields of each code."""
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


def _flatten(column: Any, counts: Array) -> Array:
    """Return the numbers of all lists of a column. Raise ValueError if a list's length differs."""
    found, row = [np.zeros(0, np.int64)], 0
    for chunk in column.chunks:
        lengths = chunk.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != counts[row : row + len(lengths)]).any():
            raise ValueError("a sample that has more or fewer offsets than fields")
        found.append(_numbers(chunk))
        row += len(lengths)
    return np.concatenate(found)


def _numbers(chunk: Any) -> Array:
    array: Array = chunk.flatten().to_numpy(zero_copy_only=False)
    if array.dtype != np.int64:
        raise ValueError("a field without an offset")  # Arrow returns floats if there are nulls
    return array
