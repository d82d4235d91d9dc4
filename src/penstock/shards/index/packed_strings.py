"""Many texts in two flat buffers: a tenth of what Python objects take, and nothing to count.

A forked process that reads them changes no page of them, so they are never copied.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_WIDE = 1 << 32


class Texts(Sequence[str]):
    """A sequence of texts that makes each one when it is asked for.

    ``starts`` says where in ``data`` (UTF-8) each text begins, and at last where all end.

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
        """Those texts; a lone surrogate is a UnicodeEncodeError."""
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
        """The text of a row that is known to exist, a little faster."""
        item = self._starts.item
        return str(self._data[item(row) : item(row + 1)], "utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        data, start = self._data, 0
        for block in range(1, len(self._starts), 65536):
            for stop in self._starts[block : block + 65536].tolist():
                yield str(data[start:stop], "utf-8", "surrogateescape")
                start = stop

    def _table(self) -> tuple[Array, Array]:
        if self._hashes is None:  # 12 bytes a text, where a dict would take 150
            values = np.fromiter(map(hash, self), np.int64, len(self))
            order = np.argsort(values, kind="stable")
            rows = order.astype(np.uint32) if len(order) < _WIDE else order
            self._hashes = values[order], rows
        return self._hashes

    def find(self, key: str) -> int | None:
        """The row of the first text that is this one, or None."""
        values, order = self._table()
        wanted = hash(key)
        place = int(np.searchsorted(values, wanted))
        while place < len(values) and values[place] == wanted:
            row = int(order[place])
            if self[row] == key:
                return row
            place += 1
        return None

    def duplicate(self) -> int | None:
        """The row of a text that has stood before, or None where all differ."""
        values, order = self._table()
        for place in np.flatnonzero(values[1:] == values[:-1]).tolist():
            row = int(order[place + 1])
            if self.find(self[row]) != row:
                return row
        return None

    def add_to(self, digest: Any) -> None:
        """Put all texts into a digest of :mod:`hashlib`."""
        digest.update(self._starts.astype(self._starts.dtype.newbyteorder("<"), copy=False).data)
        digest.update(self._data)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.find(key) is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_hashes": None}  # a text's hash differs between processes


def buffer_for(data: Any, protocol: Any) -> Any:
    """The bytes as pickle takes them: from protocol 5 on they can travel beside the pickle,
    so that loader workers share their memory.

    >>> buffer_for(b"abc", 4)
    b'abc'
    """
    return pickle.PickleBuffer(data) if int(protocol) >= 5 else bytes(data)


def pack(pieces: Sequence[bytes]) -> tuple[Array, bytes]:
    """Where each piece begins and the last ends, and all of them in one.

    >>> pack([b"ab", b"c"])
    (array([0, 2, 3]), b'abc')
    """
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)), out=starts[1:])
    return starts, b"".join(pieces)
