"""The rows of a manifest: ids and columns, built a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from penstock.datasets.manifests import worker_sharing as sharing
from penstock.datasets.manifests.columns import MISSING, PART, SHIFT, Column
from penstock.datasets.manifests.item_pipeline import lacks
from penstock.errors import ManifestError, Origin, UnknownKeyError
from penstock.shards.index.packed_strings import Array, Texts, buffer_for

Row = Mapping[str, Any]


class Table(Protocol):
    """Rows with ids, by number: what a manifest data set stands on."""

    ids: Any

    @property
    def keys(self) -> list[str]:
        """The keys of all rows together."""

    def value(self, row: int, key: str) -> Any:
        """One value; MISSING where the row has not the key."""

    def values(self, row: int, keys: Iterable[str]) -> dict[str, Any]:
        """Several values, of which "id" may be one; a row without the key is an error."""

    def find(self, uid: Any) -> int | None:
        """The row with that id, or None."""

    def numbers(self, key: str) -> Array | None:
        """A key's values over all rows, or None where they are not all numbers."""

    def has_gaps(self, key: str) -> bool:
        """Whether some row may lack the key, or have None."""


class TextIds(Texts):
    """The ids of all rows, packed."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return TextIds, (self._starts, buffer_for(self._data, protocol))


class AnyIds(Sequence[Any]):
    """Ids of other types than text: the objects, and a dict to find them."""

    def __init__(self, values: list[Hashable]) -> None:
        self._values = values
        self._rows = {uid: row for row, uid in enumerate(values)}

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        return self._values[row]

    def find(self, uid: Any) -> int | None:
        """The row with that id (the last, where it stands twice), or None."""
        return self._rows.get(uid)


class Rows:
    """Rows in columns. Loader workers share them: forked ones as they are, spawned ones by a map
    of the same memory (:mod:`penstock.datasets.manifests.worker_sharing`).

    >>> rows = rows_of({"a": {"x": 1}, "b": {"x": 2, "y": "z"}}.items())
    >>> rows.keys, rows.find("b"), rows.value(1, "y"), rows.value(0, "y")
    (['x', 'y'], 1, 'z', MISSING)
    """

    def __init__(self, ids: Any, columns: dict[str, Column]) -> None:
        self.ids, self.columns = ids, columns
        self._shared: Any = None
        self._id: Callable[[int], Any] = getattr(ids, "at", ids.__getitem__)

    @property
    def keys(self) -> list[str]:
        """The keys of all rows together."""
        return list(self.columns)

    def value(self, row: int, key: str) -> Any:
        """One value; MISSING where the row has not the key."""
        column = self.columns.get(key)
        return MISSING if column is None else column.at(row)

    def values(self, row: int, keys: Iterable[str]) -> dict[str, Any]:
        """Several values, of which "id" may be one; a row without the key is an error."""
        number, place = row >> SHIFT, row & (PART - 1)
        found: dict[str, Any] = {}
        for key in keys:
            if key == "id":
                found[key] = self._id(row)
                continue
            column = self.columns.get(key)
            part = None if column is None else column.parts[number]
            value = MISSING if part is None else part.at(place)
            if value is MISSING:
                raise lacks(key, self._id(row))
            found[key] = value
        return found

    def find(self, uid: Any) -> int | None:
        """The row with that id, or None."""
        if isinstance(self.ids, range):
            return uid if isinstance(uid, int) and uid in self.ids else None
        if isinstance(self.ids, TextIds) and not isinstance(uid, str):
            return None
        found: int | None = self.ids.find(uid)
        return found

    def numbers(self, key: str) -> Array | None:
        """A key's values over all rows, or None where they are not all numbers."""
        return self.columns[key].numbers()

    def has_gaps(self, key: str) -> bool:
        """Whether some row may lack the key, or have None."""
        return self.columns[key].has_gaps

    def __reduce__(self) -> Any:
        shared = sharing.for_child(self, (self.ids, self.columns))
        return shared if shared is not None else (Rows, (self.ids, self.columns))


class Builder:
    """Takes rows and makes columns of them, part by part.

    ``change`` is applied to a key and its values before they are packed; ``name`` is what errors
    call the manifest. Of ``numbered`` rows the ids are the numbers, whatever is given.
    """

    def __init__(self, change: Any = None, name: str = "manifest", numbered: bool = False) -> None:
        self.numbered = numbered
        self._change, self._name = change, name
        self._waiting_ids: list[Any] = []
        self._waiting: list[Row] = []
        self._ids: list[bytes] = []
        self._starts: list[Array] = [np.zeros(1, np.int64)]
        self._others: list[Hashable] | None = None
        self._columns: dict[str, Column] = {}
        self._count = 0

    def add_rows(self, ids: Sequence[Hashable], rows: Sequence[Row]) -> None:
        """The next rows, any number of them."""
        self._waiting_ids.extend(ids)
        self._waiting.extend(rows)
        start = 0
        while len(self._waiting) - start >= PART:
            self._take(slice(start, start + PART))
            start += PART
        del self._waiting_ids[:start], self._waiting[:start]

    def _take(self, part: slice) -> None:
        ids, rows = self._waiting_ids[part], self._waiting[part]
        self._check(ids, rows)
        keys = rows[0].keys()
        try:  # all rows with the same keys, as nearly always
            if set(map(len, rows)) != {len(keys)}:
                raise KeyError
            self.add(ids, {key: list(map(itemgetter(key), rows)) for key in keys}, dense=True)
        except KeyError:
            keys = dict.fromkeys(key for row in rows for key in row).keys()
            self.add(ids, {key: [row.get(key, MISSING) for row in rows] for key in keys})

    def _check(self, ids: Sequence[Any], rows: Sequence[Row]) -> None:
        if set(map(type, rows)) != {dict}:
            for uid, row in zip(ids, rows):
                if not isinstance(row, Mapping):
                    raise ManifestError(
                        f"a row is a dict of values by key, not {type(row).__name__}",
                        origin=Origin(self._name, str(uid)),
                    )
        for uid, row in zip(ids, rows):
            if "id" in row:
                raise ManifestError(
                    "the key 'id' is kept for the id of the row: rename it",
                    origin=Origin(self._name, str(uid)),
                )

    def add(
        self, ids: Sequence[Hashable], values: Mapping[str, Sequence[Any]], dense: bool = False
    ) -> None:
        """The next PART rows, or the last ones, with the values of each key in a list.

        ``dense`` says that no value is MISSING.
        """
        self._add_ids(ids)
        for key, found in values.items():
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = Column()
                column.append_missing(self._count)
            if self._change is not None:
                found = self._change(key, found)
            column.append(found, dense)
        self._count += len(ids)
        for column in self._columns.values():
            column.append_missing(self._count - len(column))

    def _add_ids(self, ids: Sequence[Hashable]) -> None:
        if self.numbered:
            return
        if self._others is None:
            if set(map(type, ids)) == {str}:
                try:
                    packed = [str(uid).encode() for uid in ids]
                except UnicodeEncodeError:
                    packed = []
                if packed:
                    sizes = np.fromiter(map(len, packed), np.int64, len(packed))
                    self._starts.append(np.cumsum(sizes) + self._starts[-1][-1])
                    self._ids.append(b"".join(packed))
                    return
            self._others = list(self._texts())
        self._others.extend(ids)

    def _texts(self) -> TextIds:
        return TextIds(np.concatenate(self._starts), b"".join(self._ids))

    def rows(self) -> Rows:
        """All rows that were added. An id that stands twice is a ManifestError."""
        if self._waiting:
            self._take(slice(None))
            self._waiting_ids, self._waiting = [], []
        if self.numbered:
            return Rows(range(self._count), self._columns)
        if self._others is None:
            texts = self._texts()
            self._ids, self._starts = [], []
            twice = texts.duplicate()
            ids: TextIds | AnyIds = texts
        else:
            ids = AnyIds(self._others)
            twice = next((row for row, uid in enumerate(ids) if ids.find(uid) != row), None)
        if twice is not None:
            raise ManifestError(
                f"an id stands for one row, but this one stands again in row {twice + 1}",
                origin=Origin(self._name, str(ids[twice])),
            )
        return Rows(ids, self._columns)


def rows_of(pairs: Iterable[tuple[Any, Row]]) -> Rows:
    """The rows of pairs (id, row). What is no dict, and a key 'id', is a ManifestError."""
    builder = Builder()
    source = iter(pairs)
    while part := list(islice(source, PART)):
        ids, rows = zip(*part)
        builder.add_rows(ids, rows)
    return builder.rows()


class RowsView(Mapping[Any, dict[str, Any]]):
    """The rows by id, as a dict of dicts would give them; each is made when it is asked for.

    Changing what it gives changes nothing here.

    >>> view = RowsView(rows_of({"a": {"x": 1}}.items()))
    >>> view["a"], list(view), "b" in view
    ({'x': 1}, ['a'], False)
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def __getitem__(self, uid: Any) -> dict[str, Any]:
        row = self.table.find(uid)
        if row is None:
            raise UnknownKeyError(f"the manifest has no row {uid!r} (it has {len(self)} rows)")
        return self.row(row)

    def row(self, number: int) -> dict[str, Any]:
        """A row by its number."""
        values = ((key, self.table.value(number, key)) for key in self.table.keys)
        return {key: value for key, value in values if value is not MISSING}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.table.ids)

    def __len__(self) -> int:
        return len(self.table.ids)

    def __contains__(self, uid: object) -> bool:
        return self.table.find(uid) is not None

    def __repr__(self) -> str:
        return f"<{len(self)} rows with {self.table.keys}>"


class RowIds(Sequence[Any]):
    """The ids of some rows, in their order: like a list, but nothing is copied."""

    def __init__(self, ids: Any, rows: Array | None) -> None:
        self._ids, self._rows = ids, rows

    def __len__(self) -> int:
        return len(self._ids) if self._rows is None else len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return self._ids[place if self._rows is None else int(self._rows[place])]

    def __iter__(self) -> Iterator[Any]:
        if self._rows is None:
            return iter(self._ids)
        return (self._ids[row] for row in self._rows.tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, tuple, RowIds)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3])) + (", …" if len(self) > 3 else "")
        return f"<{len(self)} ids: {shown}>"


class ForeignRows:
    """Rows of a data set that is Arrow-backed itself, such as one of Hugging Face's ``datasets``.

    They stay where they are; ids are the numbers of the rows.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.ids = range(len(dataset))
        self.keys = list(dataset.column_names)
        self._last: tuple[int, Any] = (-1, None)

    def value(self, row: int, key: str) -> Any:
        """One value; MISSING where the row has not the key."""
        number, found = self._last
        if number != row:
            found = self.dataset[row]
            self._last = (row, found)
        return found.get(key, MISSING)

    def values(self, row: int, keys: Iterable[str]) -> dict[str, Any]:
        """Several values, of which "id" may be one; a row without the key is an error."""
        found = {key: row if key == "id" else self.value(row, key) for key in keys}
        for key, value in found.items():
            if value is MISSING:
                raise lacks(key, row)
        return found

    def find(self, uid: Any) -> int | None:
        """The row with that id, or None."""
        return uid if isinstance(uid, int) and uid in self.ids else None

    def numbers(self, key: str) -> Array | None:
        """A key's values over all rows, or None where they are not all numbers."""
        array = np.asarray(self.dataset[key][:])
        return array if array.dtype.kind in "iufb" and array.ndim == 1 else None

    def has_gaps(self, key: str) -> bool:
        """Whether some row may lack the key, or have None: then :meth:`numbers` says so too."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": (-1, None)}
