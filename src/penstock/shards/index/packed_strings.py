"""Store many strings in two flat buffers, with a tenth of the memory of Python objects.

Reading them changes no reference counts, so a forked process never copies their pages.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_WIDE = 1 << 32


class Texts(Sequence[str]):
    """A sequence of strings that creates each one on access.

    ``starts`` has the offset of each string in ``data`` (UTF-8), and finally the end of the last.

    >>> texts = Texts.packed(["a", "", "ö"])
    >>> len(texts), texts[-1], list(texts), texts.find("ö")
    (3, 'ö', ['a', '', 'ö'], 2)
    """

    def __init__(self, starts: Array, data: Any) -> None:
        self._hashes: tuple[Array, Array] | None = None
        total = len(data)
        self._starts: Array = starts.astype(np.uint32, copy=False) if total < _WIDE else starts
        self._data = data

    @classmethod
    def packed(cls, texts: Iterable[str]) -> Self:
        """Pack strings. Raise UnicodeEncodeError for a lone surrogate."""
        return cls(*pack(list(map(str.encode, texts))))

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
        """Return the string of a row without checking the bounds, for speed."""
        item = self._starts.item
        return str(self._data[item(row) : item(row + 1)], "utf-8", "surrogateescape")

    def take(self, rows: Array) -> list[str]:
        """Return the strings of several rows without checking the bounds."""
        data, bounds = self._data, zip(self._starts[rows].tolist(), self._starts[rows + 1].tolist())
        return [str(data[begin:end], "utf-8", "surrogateescape") for begin, end in bounds]

    def __iter__(self) -> Iterator[str]:
        data, start = self._data, 0
        for block in range(1, len(self._starts), 65536):
            for stop in self._starts[block : block + 65536].tolist():
                yield str(data[start:stop], "utf-8", "surrogateescape")
                start = stop

    def _hash_table(self) -> tuple[Array, Array]:
        if self._hashes is None:  # 12 bytes per string; a dict would take 150
            values = np.fromiter(map(hash, self), np.int64, len(self))
            order = np.argsort(values, kind="stable")
            rows = order.astype(np.uint32) if len(order) < _WIDE else order
            self._hashes = values[order], rows
        return self._hashes

    def find(self, key: str) -> int | None:
        """Return the row of the first string that equals ``key``, or None."""
        values, order = self._hash_table()
        wanted = hash(key)
        index = int(np.searchsorted(values, wanted))
        while index < len(values) and values[index] == wanted:
            row = int(order[index])
            if self[row] == key:
                return row
            index += 1
        return None

    def duplicate(self) -> int | None:
        """Return the row of a string that occurs in an earlier row, or None if all differ."""
        values, order = self._hash_table()
        for index in np.flatnonzero(values[1:] == values[:-1]).tolist():
            row = int(order[index + 1])
            if self.find(self[row]) != row:
                return row
        return None

    def flat(self) -> tuple[Array, Any]:
        """Return where each text begins in the data (and the last ends), and the data (UTF-8)."""
        return self._starts, self._data

    def add_to(self, digest: Any) -> None:
        """Update a :mod:`hashlib` digest with all strings."""
        digest.update(self._starts.astype(self._starts.dtype.newbyteorder("<"), copy=False).data)
        digest.update(self._data)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hashes": None}  # hashes of strings differ between processes


def buffer_for(data: Any, protocol: Any) -> Any:
    """Return the bytes for pickling: out of band from protocol 5 on, so that workers share memory.

    >>> buffer_for(b"abc", 4)
    b'abc'
    """
    return pickle.PickleBuffer(data) if int(protocol) >= 5 else bytes(data)


def pack(pieces: Sequence[bytes]) -> tuple[Array, bytes]:
    """Return the offset of each piece, with the end of the last, and all pieces joined.

    >>> pack([b"ab", b"c"])
    (array([0, 2, 3]), b'abc')
    """
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)), out=starts[1:])
    return starts, b"".join(pieces)
