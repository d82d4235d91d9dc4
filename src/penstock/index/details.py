"""Keys and fields of all samples of an index, in a few flat arrays.

A key or a field's place is taken out of them in about a microsecond; as Python objects
they would take ten times the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from penstock.index.layout import split_fields

Array = np.ndarray[Any, np.dtype[Any]]


class Keys(Sequence[str]):
    """The keys of all samples: a sequence that makes each text when it is asked for."""

    def __init__(self, pieces: Iterable[Any], count: int) -> None:
        starts = np.zeros(count + 1, np.int64)
        data: list[bytes] = []
        row = total = 0
        self._hashes: tuple[Array, Array] | None = None
        for piece in pieces:
            for chunk in piece.column("key").chunks:
                ends, text = _flat_strings(chunk)
                starts[row + 1 : row + 1 + len(ends)] = ends + total
                data.append(text)
                row, total = row + len(ends), total + len(text)
        self._starts: Array = starts.astype(np.uint32) if total < _WIDE else starts
        self._data = b"".join(data)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if row < 0:
            row += len(self)
        if not 0 <= row < len(self):
            raise IndexError(f"sample {row} of {len(self)}")
        return self.at(row)

    def at(self, row: int) -> str:
        """The key of a row that is known to exist, a little faster."""
        item = self._starts.item
        return self._data[item(row) : item(row + 1)].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        data, start = self._data, 0
        for block in range(1, len(self._starts), 65536):
            for stop in self._starts[block : block + 65536].tolist():
                yield data[start:stop].decode("utf-8", "surrogateescape")
                start = stop

    def find(self, key: str) -> int | None:
        """The row of the first sample with that key, or None."""
        if self._hashes is None:  # 16 bytes a sample, where a dict would take 150
            values = np.fromiter(map(hash, self), np.int64, len(self))
            order = np.argsort(values, kind="stable")
            self._hashes = values[order], order
        values, order = self._hashes
        wanted = hash(key)
        place = int(np.searchsorted(values, wanted))
        while place < len(values) and values[place] == wanted:
            row = int(order[place])
            if self[row] == key:
                return row
            place += 1
        return None

    def add_to(self, digest: Any) -> None:
        """Put all keys into a digest of :mod:`hashlib`."""
        digest.update(self._starts.astype(self._starts.dtype.newbyteorder("<"), copy=False).data)
        digest.update(self._data)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hashes": None}  # a text's hash differs between processes


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
