"""The rows of a manifest as ids and columns, built a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from penstock.datasets.manifests import worker_sharing as sharing
from penstock.datasets.manifests.columns import MISSING, PART, SHIFT, Column
from penstock.datasets.manifests.item_pipeline import make_missing_key_error
from penstock.errors import ManifestError, Origin, UnknownKeyError
from penstock.shards.index.packed_strings import Array, Texts, buffer_for

Row = Mapping[str, Any]


class TableSource(Protocol):
    """Rows with ids, by number: what a manifest data set reads from."""

    ids: Any

    @property
    def keys(self) -> list[str]:
        """The keys of all rows."""

    def value(self, row: int, key: str) -> Any:
        """Return one value; MISSING if the row does not have the key."""

    def values(self, row: int, keys: Iterable[str]) -> dict[str, Any]:
        """Return several values, "id" among them if in ``keys``; raise if the row lacks a key."""

    def find(self, uid: Any) -> int | None:
        """Return the row with an id, or None."""

    def numbers(self, key: str) -> Array | None:
        """Return a key's values over all rows, or None if they are not all numbers."""

    def has_gaps(self, key: str) -> bool:
        """Return whether some row may lack the key or have None."""


class TextIds(Texts):
    """The ids of all rows, packed into one buffer."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return TextIds, (self._starts, buffer_for(self._data, protocol))


class AnyIds(Sequence[Any]):
    """Ids of other types than str: the objects, and a dict to find them."""

    def __init__(self, values: list[Hashable]) -> None:
        self._values = values
        self._rows = {uid: row for row, uid in enumerate(values)}

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        return self._values[row]

    def find(self, uid: Any) -> int | None:
        """Return the row with an id (the last one if there are several), or None."""
        return self._rows.get(uid)


class RowTable:
    """Rows stored as columns. Loader workers share them: forked ones directly, spawned ones by
    mapping the same memory (:mod:`penstock.datasets.manifests.worker_sharing`).

    >>> rows = make_table({"a": {"x": 1}, "b": {"x": 2, "y": "z"}}.items())
    >>> rows.keys, rows.find("b"), rows.value(1, "y"), rows.value(0, "y")
    (['x', 'y'], 1, 'z', MISSING)
    """

    def __init__(self, ids: Any, columns: dict[str, Column]) -> None:
        self.ids, self.columns = ids, columns
        self._shared: Any = None
        self._id: Callable[[int], Any] = getattr(ids, "at", ids.__getitem__)

    @property
    def keys(self) -> list[str]:
        """The keys of all rows."""
        return list(self.columns)

    def value(self, row: int, key: str) -> Any:
        """Return one value; MISSING if the row does not have the key."""
        column = self.columns.get(key)
        return MISSING if column is None else column.at(row)

    def values(self, row: int, keys: Iterable[str]) -> dict[str, Any]:
        """Return several values, "id" among them if in ``keys``; raise if the row lacks a key."""
        number, index = row >> SHIFT, row & (PART - 1)
        found: dict[str, Any] = {}
        for key in keys:
            if key == "id":
                found[key] = self._id(row)
                continue
            column = self.columns.get(key)
            part = None if column is None else column.parts[number]
            value = MISSING if part is None else part.at(index)
            if value is MISSING:
                raise make_missing_key_error(key, self._id(row))
            found[key] = value
        return found

    def find(self, uid: Any) -> int | None:
        """Return the row with an id, or None."""
        if isinstance(self.ids, range):
            return uid if isinstance(uid, int) and uid in self.ids else None
        if isinstance(self.ids, TextIds) and not isinstance(uid, str):
            return None
        found: int | None = self.ids.find(uid)
        return found

    def numbers(self, key: str) -> Array | None:
        """Return a key's values over all rows, or None if they are not all numbers."""
        return self.columns[key].numbers()

    def has_gaps(self, key: str) -> bool:
        """Return whether some row may lack the key or have None."""
        return self.columns[key].has_gaps

    def __reduce__(self) -> Any:
        shared = sharing.reduce_for_child(self, (self.ids, self.columns))
        return shared if shared is not None else (RowTable, (self.ids, self.columns))


class TableBuilder:
    """Builds columns from rows, part by part.

    ``change`` is applied to a key and its values before they are packed; ``name`` is the manifest's
    name in errors. If ``numbered``, the ids are the row numbers and given ids are ignored.
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
        """Add the next rows, any number of them."""
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
        try:  # nearly always all rows have the same keys
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
                    "the key 'id' is reserved for the id of the row: rename it",
                    origin=Origin(self._name, str(uid)),
                )

    def add(
        self, ids: Sequence[Hashable], values: Mapping[str, Sequence[Any]], dense: bool = False
    ) -> None:
        """Add the next PART rows, or the last ones, with the values of each key as a list.

        ``dense`` means that no value is MISSING.
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

    def build(self) -> RowTable:
        """Return all rows that were added. Raise a ManifestError if two have the same id."""
        if self._waiting:
            self._take(slice(None))
            self._waiting_ids, self._waiting = [], []
        if self.numbered:
            return RowTable(range(self._count), self._columns)
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
                f"ids must be unique, but this one occurs again in row {twice + 1}",
                origin=Origin(self._name, str(ids[twice])),
            )
        return RowTable(ids, self._columns)


def make_table(pairs: Iterable[tuple[Any, Row]]) -> RowTable:
    """Build a table of pairs (id, row). A row must be a dict without the key 'id'."""
    builder = TableBuilder()
    source = iter(pairs)
    while part := list(islice(source, PART)):
        ids, rows = zip(*part)
        builder.add_rows(ids, rows)
    return builder.build()


class RowsView(Mapping[Any, dict[str, Any]]):
    """The rows by id, like a dict of dicts; each row is created when it is accessed.

    Modifying a returned row does not change the table.

    >>> view = RowsView(make_table({"a": {"x": 1}}.items()))
    >>> view["a"], list(view), "b" in view
    ({'x': 1}, ['a'], False)
    """

    def __init__(self, table: TableSource) -> None:
        self.table = table

    def __getitem__(self, uid: Any) -> dict[str, Any]:
        row = self.table.find(uid)
        if row is None:
            raise UnknownKeyError(f"the manifest has no row {uid!r} (it has {len(self)} rows)")
        return self.row(row)

    def row(self, number: int) -> dict[str, Any]:
        """Return a row by its number."""
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
    """The ids of some rows in order, like a list, but without a copy."""

    def __init__(self, ids: Any, rows: Array | None) -> None:
        self._ids, self._rows = ids, rows

    def __len__(self) -> int:
        return len(self._ids) if self._rows is None else len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._ids[index if self._rows is None else int(self._rows[index])]

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
    """Rows of a data set that is itself backed by Arrow, such as Hugging Face's ``datasets``.

    They are not copied; ids are the row numbers.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.ids = range(len(dataset))
        self.keys = list(dataset.column_names)
        self._last: tuple[int, Any] = (-1, None)

    def value(self, row: int, key: str) -> Any:
        """Return one value; MISSING if the row does not have the key."""
        number, found = self._last
        if number != row:
            found = self.dataset[row]
            self._last = (row, found)
        return found.get(key, MISSING)

    def values(self, row: int, keys: Iterable[str]) -> dict[str, Any]:
        """Return several values, "id" among them if in ``keys``; raise if the row lacks a key."""
        found = {key: row if key == "id" else self.value(row, key) for key in keys}
        for key, value in found.items():
            if value is MISSING:
                raise make_missing_key_error(key, row)
        return found

    def find(self, uid: Any) -> int | None:
        """Return the row with an id, or None."""
        return uid if isinstance(uid, int) and uid in self.ids else None

    def numbers(self, key: str) -> Array | None:
        """Return a key's values over all rows, or None if they are not all numbers."""
        array = np.asarray(self.dataset[key][:])
        return array if array.dtype.kind in "iufb" and array.ndim == 1 else None

    def has_gaps(self, key: str) -> bool:
        """Return False: with missing values :meth:`numbers` returns None anyway."""
        return False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": (-1, None)}
