"""The values of one key over all rows of a manifest, in flat buffers instead of Python objects.

A column is a list of parts of :data:`PART` rows each. What a part is made of depends on the values
in it: numbers are an array, texts are packed, plain nested values are packed as bytes,
and only what is none of these is kept as the objects themselves. So no row is a dict,
a column grows without being copied, and a forked process that reads it changes no page of it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from penstock.shards.index.packed_strings import Array, Texts, buffer_for, pack

SHIFT = 16
PART = 1 << SHIFT
"""Rows in a part: enough that its two or three objects weigh nothing, few enough to build fast."""

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""What a column gives for a row that has not the key."""

_EXACT = 1 << 53  # whole numbers up to here are themselves as floats
_ATOMS = (str, int, float, bool, bytes, type(None))


class Part(Protocol):
    """Some consecutive values of a column."""

    def __len__(self) -> int: ...

    def at(self, place: int) -> Any:
        """The value there, as it was given."""

    def numbers(self) -> Array | None:
        """All values as an array of numbers, or None where they are no numbers."""


class Numbers:
    """Numbers of one type, in an array; ``boxed`` ones are numpy's own scalars."""

    def __init__(self, array: Array, boxed: bool = False) -> None:
        self.array, self.boxed = array, boxed

    def __len__(self) -> int:
        return len(self.array)

    def at(self, place: int) -> Any:
        return self.array[place] if self.boxed else self.array.item(place)

    def numbers(self) -> Array | None:
        return self.array


class MixedNumbers:
    """Whole numbers and floats: an array of floats, and which of them were whole."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.array = np.array(values, np.float64)
        self.whole = np.fromiter((type(v) is int for v in values), np.bool_, len(values))

    def __len__(self) -> int:
        return len(self.array)

    def at(self, place: int) -> Any:
        value = self.array.item(place)
        return int(value) if self.whole[place] else value

    def numbers(self) -> Array | None:
        return self.array


class TextPart(Texts):
    """Texts, packed."""

    def numbers(self) -> Array | None:
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return TextPart, (self._starts, buffer_for(self._data, protocol))


class Plain:
    """Nested plain values, each packed by itself: dicts, lists, None, mixtures."""

    def __init__(self, starts: Array, data: Any) -> None:
        self.starts, self.data = starts, data

    @classmethod
    def packed(cls, values: Sequence[Any]) -> Plain:
        """Those values, which must be plain."""
        return cls(*pack([pickle.dumps(value, 5) for value in values]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def at(self, place: int) -> Any:
        item = self.starts.item
        # These bytes were made above and never left the program: it is no pickle from outside.
        return pickle.loads(self.data[item(place) : item(place + 1)])

    def numbers(self) -> Array | None:
        return None

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Plain, (self.starts, buffer_for(self.data, protocol))


class Objects:
    """Values of any other type, as they are."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)

    def __len__(self) -> int:
        return len(self.values)

    def at(self, place: int) -> Any:
        return self.values[place]

    def numbers(self) -> Array | None:
        return None


class Sparse:
    """A part in which some rows have no value: the values there are, and where each stands.

    For the others it gives ``None`` where ``null`` is true, else MISSING.
    """

    def __init__(self, values: Part, present: Array, null: bool = False) -> None:
        self.values, self.present, self.null = values, present, null
        self.places = (np.cumsum(present) - 1).astype(np.int32)

    def __len__(self) -> int:
        return len(self.present)

    def at(self, place: int) -> Any:
        if self.present[place]:
            return self.values.at(self.places.item(place))
        return None if self.null else MISSING

    def numbers(self) -> Array | None:
        found = self.values.numbers()
        if found is None:
            return None
        array: Array = np.full(len(self.present), np.nan)
        array[self.present] = found
        return array


def make_part(values: Sequence[Any]) -> Part:
    """The smallest part that gives these values back exactly as they are.

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
                return Plain.packed(values)
        if kind in (float, bool):
            return Numbers(np.array(values, np.float64 if kind is float else np.bool_))
        if kind is int:
            try:
                return Numbers(np.array(values, np.int64))
            except OverflowError:
                return Plain.packed(values)
        if issubclass(kind, (np.number, np.bool_)):
            return Numbers(np.array(values), boxed=True)
    elif kinds == {int, float} and all(-_EXACT <= v <= _EXACT for v in values if type(v) is int):
        return MixedNumbers(values)
    return Plain.packed(values) if all(map(_is_plain, values)) else Objects(values)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return kind in (list, tuple, set, frozenset) and all(map(_is_plain, value))


class Column:
    """The values of one key, for rows 0, 1, 2 …; a row may lack it.

    >>> column = Column()
    >>> column.append([1, MISSING, 3])
    >>> column.at(2), column.at(1), column.numbers()
    (3, MISSING, array([ 1., nan,  3.]))
    """

    def __init__(self) -> None:
        self.parts: list[Part | None] = []  # None: no row of the part has the key
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, values: Sequence[Any], dense: bool = False) -> None:
        """The next part; only the last one may be shorter than the others.

        ``dense`` says that no value is MISSING.
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
        """The next rows, none of which has the key."""
        while count > 0:
            self.parts.append(None)
            self._length += min(count, PART)
            count -= PART

    def at(self, row: int) -> Any:
        """The value of a row, or MISSING."""
        part = self.parts[row >> SHIFT]
        return MISSING if part is None else part.at(row & (PART - 1))

    def numbers(self) -> Array | None:
        """All values as one array, NaN where there is none; None where not all are numbers."""
        arrays = []
        for place, part in enumerate(self.parts):
            if part is None:
                count = min(PART, self._length - (place << SHIFT))
                arrays.append(np.full(count, np.nan))
            elif (array := part.numbers()) is None:
                return None
            else:
                arrays.append(array)
        return np.concatenate(arrays) if arrays else np.zeros(0)

    @property
    def has_gaps(self) -> bool:
        """Whether some row may lack the key, or have None."""
        return any(part is None or isinstance(part, Sparse) for part in self.parts)

    def __iter__(self) -> Iterator[Any]:
        return (self.at(row) for row in range(self._length))
