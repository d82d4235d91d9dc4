"""The values of one key over all rows of a manifest, in flat buffers instead of Python objects.

A column is a list of parts of :data:`PART` rows each. The type of a part depends on its values:
numbers are an array, strings and plain nested values are packed into one buffer, and only other
values are kept as objects. So no row is a dict, a column grows without being copied, and a forked
process that reads it does not write to its pages.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from penstock.shards.index.packed_strings import Array, Texts, buffer_for, pack

SHIFT = 16
PART = 1 << SHIFT
"""Rows in a part: enough to make the overhead negligible, few enough to build fast."""

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""The value of a row that does not have the key."""

_EXACT = 1 << 53  # integers up to here are exact as floats
_ATOMS = (str, int, float, bool, bytes, type(None))


class ColumnPart(Protocol):
    """Some consecutive values of a column."""

    def __len__(self) -> int: ...

    def at(self, index: int) -> Any:
        """Return the value at an index, exactly as it was added."""

    def numbers(self) -> Array | None:
        """Return all values as an array, or None if they are not numbers."""


class Numbers:
    """Numbers of one type in an array; ``boxed``: numpy scalars instead of Python numbers."""

    def __init__(self, array: Array, boxed: bool = False) -> None:
        self.array, self.boxed = array, boxed

    def __len__(self) -> int:
        return len(self.array)

    def at(self, index: int) -> Any:
        return self.array[index] if self.boxed else self.array.item(index)

    def numbers(self) -> Array | None:
        return self.array


class MixedNumbers:
    """Integers and floats: an array of floats, and which of them are integers."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.array = np.array(values, np.float64)
        self.whole = np.fromiter((type(v) is int for v in values), np.bool_, len(values))

    def __len__(self) -> int:
        return len(self.array)

    def at(self, index: int) -> Any:
        value = self.array.item(index)
        return int(value) if self.whole[index] else value

    def numbers(self) -> Array | None:
        return self.array


class TextPart(Texts):
    """Strings, packed into one buffer."""

    def numbers(self) -> Array | None:
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return TextPart, (self._starts, buffer_for(self._data, protocol))


class PlainColumn:
    """Nested plain values, each pickled separately: dicts, lists, None, mixtures."""

    def __init__(self, starts: Array, data: Any) -> None:
        self.starts, self.data = starts, data

    @classmethod
    def packed(cls, values: Sequence[Any]) -> PlainColumn:
        """Pack values, which must be plain."""
        return cls(*pack([pickle.dumps(value, 5) for value in values]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def at(self, index: int) -> Any:
        item = self.starts.item
        # Safe: these bytes were pickled above and never left the program.
        return pickle.loads(self.data[item(index) : item(index + 1)])

    def numbers(self) -> Array | None:
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return PlainColumn, (self.starts, buffer_for(self.data, protocol))


class Objects:
    """Values of any other type, as Python objects."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)

    def __len__(self) -> int:
        return len(self.values)

    def at(self, index: int) -> Any:
        return self.values[index]

    def numbers(self) -> Array | None:
        return None


class Sparse:
    """A part in which some rows have no value: the present values, and the index of each.

    The others are ``None`` if ``null`` is true, else MISSING.
    """

    def __init__(self, values: ColumnPart, present: Array, null: bool = False) -> None:
        self.values, self.present, self.null = values, present, null
        self.indices = (np.cumsum(present) - 1).astype(np.int32)

    def __len__(self) -> int:
        return len(self.present)

    def at(self, index: int) -> Any:
        if self.present[index]:
            return self.values.at(self.indices.item(index))
        return None if self.null else MISSING

    def numbers(self) -> Array | None:
        found = self.values.numbers()
        if found is None:
            return None
        array: Array = np.full(len(self.present), np.nan)
        array[self.present] = found
        return array


def make_part(values: Sequence[Any]) -> ColumnPart:
    """Return the smallest part that restores these values exactly.

    >>> make_part([1, 2.5]).at(0), make_part(["a", "b"]).at(1), make_part([None, [1, "x"]]).at(1)
    (1, 'b', [1, 'x'])
    """
    kinds = set(map(type, values))
    if type(None) in kinds and len(kinds) > 1:
        present = np.fromiter((v is not None for v in values), np.bool_, len(values))
        return Sparse(make_part([v for v in values if v is not None]), present, null=True)
    if len(kinds) == 1:
        (kind,) = kinds
        if kind is str:
            try:
                return TextPart.packed(values)
            except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
                return PlainColumn.packed(values)
        if kind in (float, bool):
            return Numbers(np.array(values, np.float64 if kind is float else np.bool_))
        if kind is int:
            try:
                return Numbers(np.array(values, np.int64))
            except OverflowError:
                return PlainColumn.packed(values)
        if issubclass(kind, (np.number, np.bool_)):
            return Numbers(np.array(values), boxed=True)
    elif kinds == {int, float} and all(-_EXACT <= v <= _EXACT for v in values if type(v) is int):
        return MixedNumbers(values)
    return PlainColumn.packed(values) if all(map(_is_plain, values)) else Objects(values)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return kind in (list, tuple, set, frozenset) and all(map(_is_plain, value))


class Column:
    """The values of one key for rows 0, 1, 2, …; a row may lack it.

    >>> column = Column()
    >>> column.append([1, MISSING, 3])
    >>> column.at(2), column.at(1), column.numbers()
    (3, MISSING, array([ 1., nan,  3.]))
    """

    def __init__(self) -> None:
        self.parts: list[ColumnPart | None] = []  # None: no row of the part has the key
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, values: Sequence[Any], dense: bool = False) -> None:
        """Append a part; only the last one may be shorter than PART.

        ``dense`` means that no value is MISSING.
        """
        if dense:
            self.parts.append(make_part(values))
            self._length += len(values)
            return
        present = np.fromiter((v is not MISSING for v in values), np.bool_, len(values))
        self._length += len(values)
        if present.all():
            self.parts.append(make_part(values))
        elif not present.any():
            self.parts.append(None)
        else:
            found = make_part([v for v in values if v is not MISSING])
            self.parts.append(Sparse(found, present))

    def append_missing(self, count: int) -> None:
        """Append rows that do not have the key."""
        while count > 0:
            self.parts.append(None)
            self._length += min(count, PART)
            count -= PART

    def at(self, row: int) -> Any:
        """Return the value of a row, or MISSING."""
        part = self.parts[row >> SHIFT]
        return MISSING if part is None else part.at(row & (PART - 1))

    def numbers(self) -> Array | None:
        """Return all values as one array, NaN if missing; None if not all are numbers."""
        arrays = []
        for index, part in enumerate(self.parts):
            if part is None:
                count = min(PART, self._length - (index << SHIFT))
                arrays.append(np.full(count, np.nan))
            elif (array := part.numbers()) is None:
                return None
            else:
                arrays.append(array)
        return np.concatenate(arrays) if arrays else np.zeros(0)

    @property
    def has_gaps(self) -> bool:
        """True if some row may lack the key or have None."""
        return any(part is None or isinstance(part, Sparse) for part in self.parts)

    def __iter__(self) -> Iterator[Any]:
        return (self.at(row) for row in range(self._length))
