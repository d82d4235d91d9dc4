"""A manifest as a map-style data set: rows by number, and items computed from them on demand."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from penstock.batches.padding.padded_batch import shuffle_groups
from penstock.datasets.manifests import readers as files
from penstock.datasets.manifests.filtering import Selection
from penstock.datasets.manifests.item_pipeline import ItemPipeline, ItemPlan, OutputKeys, run_plan
from penstock.datasets.manifests.items import DynamicItem, Keys
from penstock.datasets.manifests.row_table import (
    ForeignRows,
    RowIds,
    RowsView,
    RowTable,
    TableSource,
    make_table,
)
from penstock.errors import Origin, PipelineError, UnknownKeyError
from penstock.nearest_name import ChecksArguments
from penstock.shards.index.packed_strings import Array
from penstock.stages.sources.data_versions import DataVersion, version_of_rows

Path = str | os.PathLike[str]
Names = Mapping[str, Any] | None
Items = Iterable[Any] | None


class DynamicItemDataset(ChecksArguments):
    """Rows of a manifest, and items that are computed from them when a sample is accessed.

    ``data`` is a dict from id to row, a row a dict of values by key; ``dynamic_items`` and
    ``output_keys`` are as for :class:`~penstock.ItemPipeline`. Every row also has the key ``id``.
    The rows are stored as columns, which all loader workers share: ten million rows fit in memory.
    ``data`` is copied and never modified.

    The attribute ``data`` holds the rows by id, ``data_ids`` the ids in order, ``pipeline`` the
    items; :meth:`column` returns all values of a key as an array. A key that nothing provides
    raises an :class:`~penstock.errors.UnknownKeyError` (a KeyError) when a sample is accessed; an
    exception of an item's function is raised with a note that names item and sample.

    >>> dataset = DynamicItemDataset({"a": {"text": "one two"}, "b": {"text": "three"}})
    >>> dataset.add_dynamic_item(str.split, takes="text", provides="words")
    >>> dataset.set_output_keys(["id", "words"])
    >>> dataset[0], len(dataset)
    ({'id': 'a', 'words': ['one', 'two']}, 2)
    >>> dataset.data["b"]["text"]
    'three'
    """

    def __init__(self, data: Any, dynamic_items: Items = None, output_keys: OutputKeys = None):
        if isinstance(data, RowsView):
            self._table: TableSource = data.table
        elif isinstance(data, (RowTable, ForeignRows)):
            self._table = data
        elif isinstance(data, Mapping):
            self._table = make_table(data.items())
        else:
            raise PipelineError(f"data must be a dict from id to row, not {type(data).__name__}")
        self._rows: Array | None = None  # None: all rows in order
        self.pipeline = ItemPipeline([*self._table.keys, "id"], dynamic_items, output_keys)

    @classmethod
    def from_json(
        cls,
        json_path: Path,
        replacements: Names = None,
        dynamic_items: Items = None,
        output_keys: OutputKeys = None,
    ) -> Self:
        """Read a file ``{"id": {"key": value, …}, …}`` from a path or any URL.

        ``replacements={"data_folder": "/data"}`` replaces ``{data_folder}`` in all strings.
        An invalid file raises a :class:`~penstock.errors.ManifestError` with the line.
        """
        return cls(files.read_json(json_path, replacements), dynamic_items, output_keys)

    @classmethod
    def from_jsonl(
        cls,
        jsonl_path: Path,
        replacements: Names = None,
        dynamic_items: Items = None,
        output_keys: OutputKeys = None,
        id_key: str | None = "id",
    ) -> Self:
        """Read a file with a JSON object per line; ``id_key`` names its id (None: row numbers)."""
        return cls(files.read_jsonl(jsonl_path, replacements, id_key), dynamic_items, output_keys)

    @classmethod
    def from_csv(
        cls,
        csv_path: Path,
        replacements: Names = None,
        dynamic_items: Items = None,
        output_keys: OutputKeys = None,
    ) -> Self:
        """Read a table with a header and a column ``ID``; ``duration`` becomes a number.

        Here replacements replace ``$data_folder``.
        """
        return cls(files.read_csv(csv_path, replacements), dynamic_items, output_keys)

    @classmethod
    def from_parquet(
        cls,
        parquet_path: Path,
        replacements: Names = None,
        dynamic_items: Items = None,
        output_keys: OutputKeys = None,
        id_key: str | None = "id",
    ) -> Self:
        """Read a Parquet file; ``id_key`` names the column of the ids (None: row numbers)."""
        rows = files.read_parquet(parquet_path, replacements, id_key)
        return cls(rows, dynamic_items, output_keys)

    @classmethod
    def from_arrow_dataset(
        cls,
        dataset: Any,
        replacements: Names = None,
        dynamic_items: Items = None,
        output_keys: OutputKeys = None,
        id_key: str | None = None,
    ) -> Self:
        """Use a pyarrow table or data set, or one of Hugging Face's, which is not copied.

        Ids are the row numbers, or the column ``id_key``.
        """
        return cls(files.read_arrow(dataset, replacements, id_key), dynamic_items, output_keys)

    @property
    def data(self) -> RowsView:
        """All rows of the manifest by id, each a new dict."""
        return RowsView(self._table)

    @functools.cached_property
    def data_versions(self) -> dict[str, DataVersion]:
        """The version of the rows, so that a state of other rows is refused. Those of a foreign
        table are not compared: reading them may take long."""
        if isinstance(self._table, ForeignRows):
            return {}
        ids, rows = self.data_ids, self.data
        return {"0": version_of_rows(len(self), lambda n: (ids[n], rows.row(self._row(n))))}

    @property
    def data_ids(self) -> RowIds:
        """The ids of the samples, in order."""
        return RowIds(self._table.ids, self._rows)

    def __len__(self) -> int:
        return len(self._table.ids) if self._rows is None else len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return the output keys of a sample, or for a slice a data set of those samples."""
        if isinstance(index, slice):
            return self._select_rows(self._row_numbers()[index])
        return self._compute(self.pipeline.plan, self._row(operator.index(index)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))

    def _row(self, index: int) -> int:
        count = len(self)
        position = index + count if index < 0 else index
        if not 0 <= position < count:
            raise IndexError(f"there is no sample {index}: the data set has {count}")
        return position if self._rows is None else self._rows.item(position)

    def _row_numbers(self) -> Array:
        return np.arange(len(self)) if self._rows is None else self._rows

    def _compute(self, plan: ItemPlan, row: int) -> dict[str, Any]:
        table = self._table
        return run_plan(plan, table.values(row, plan.static), lambda: table.ids[row])

    def add_dynamic_item(
        self,
        func: DynamicItem | Callable[..., Any],
        takes: str | Keys | None = None,
        provides: str | Keys | None = None,
    ) -> None:
        """Add an item, or a function with the keys that it takes and provides."""
        self.pipeline.add_dynamic_item(func, takes, provides)

    def set_output_keys(self, keys: OutputKeys) -> None:
        """Set the keys that samples have; a dict maps output names to keys."""
        self.pipeline.set_output_keys(keys)

    @contextlib.contextmanager
    def output_keys_as(self, keys: OutputKeys) -> Iterator[Self]:
        """Context manager in which samples have these keys.

        >>> dataset = DynamicItemDataset({"a": {"x": 1, "y": 2}}, output_keys=["x"])
        >>> with dataset.output_keys_as(["y"]):
        ...     dataset[0]
        {'y': 2}
        """
        before = self.pipeline.output_mapping
        self.pipeline.set_output_keys(keys)
        try:
            yield self
        finally:
            self.pipeline.set_output_keys(before)

    def iterate_once(self, output_keys: OutputKeys = None, progressbar: bool = True) -> None:
        """Compute all samples and discard them, for example to fill the cache of an item.

        ``output_keys`` restricts it to some keys. The progress bar appears only on a terminal.
        """
        plan = self.pipeline.plan_for(output_keys) if output_keys else self.pipeline.plan
        numbers: Iterable[int] = range(len(self))
        if progressbar and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import track

            numbers = track(numbers, "samples", console=Console(stderr=True), transient=True)
        for number in numbers:
            self._compute(plan, self._row(number))

    def column(self, key: str) -> Array:
        """Return the values of a key over all samples as an array, numbers as numbers.

        A row without the key, or with None, has NaN. A key of the manifest is read from its column;
        a key of an item is computed for every sample.

        >>> DynamicItemDataset({"a": {"duration": 1.5}, "b": {"duration": 3}}).column("duration")
        array([1.5, 3. ])
        """
        if key in self._table.keys:
            numbers = self._table.numbers(key)
            if numbers is not None:
                return numbers if self._rows is None else numbers[self._rows]
        plan = self.pipeline.plan_for([key])
        values = [self._compute(plan, row)[key] for row in self._row_numbers().tolist()]
        if all(isinstance(value, (int, float, np.number, np.bool_)) for value in values):
            return np.array(values)
        array: Array = np.empty(len(values), object)
        array[:] = values
        return array

    def filtered_sorted(
        self,
        key_min_value: Mapping[str, Any] | None = None,
        key_max_value: Mapping[str, Any] | None = None,
        key_test: Mapping[str, Callable[[Any], Any]] | None = None,
        sort_key: str | None = None,
        reverse: bool = False,
        select_n: int | None = None,
    ) -> FilteredSortedDynamicItemDataset:
        """Return the samples that pass all tests, sorted by a key; the rows are shared.

        A sample passes if each key of ``key_min_value`` is at least, of ``key_max_value`` at most
        the given value, and each function of ``key_test`` returns true. ``select_n`` stops after
        that many samples, which are then sorted. Equal samples keep their order (reversed with
        ``reverse``). Numeric keys of the manifest are compared as arrays; other keys, and those of
        items, one sample at a time.

        >>> dataset = DynamicItemDataset({"a": {"n": 3}, "b": {"n": 1}, "c": {"n": 2}})
        >>> dataset.filtered_sorted(key_min_value={"n": 2}, sort_key="n").data_ids == ["c", "a"]
        True
        """
        select = Selection(
            key_min_value or {}, key_max_value or {}, key_test or {}, sort_key, reverse, select_n
        )
        return self._select_rows(
            select(self._read_numbers, self._prepare_values, self._row_numbers())
        )

    def _read_numbers(self, key: str, rows: Array) -> Array | None:
        """Return the numbers of a manifest's key in these rows, None if not all are numbers."""
        if key not in self._table.keys or self._table.has_gaps(key):
            return None  # one by one, as a missing value is an error that names its sample
        found = self._table.numbers(key)
        return None if found is None else found[rows]

    def _prepare_values(self, keys: Iterable[str]) -> Callable[[int], dict[str, Any]]:
        plan = self.pipeline.plan_for(keys)
        return lambda row: self._compute(plan, row)

    def overfit_test(self, sample_count: int, total_count: int) -> FilteredSortedDynamicItemDataset:
        """Return the first ``sample_count`` samples, repeated up to ``total_count``."""
        if sample_count < 1:
            raise PipelineError(f"an overfit test needs at least one sample, not {sample_count}")
        return self._select_rows(np.resize(self._row_numbers()[:sample_count], total_count))

    def batch_shuffle(self, batch_size: int) -> FilteredSortedDynamicItemDataset:
        """Return the same samples with runs of ``batch_size`` in random order (torch's generator).

        Samples of a run stay together; a shorter rest stays last.
        """
        order, rows = shuffle_groups(len(self), batch_size), self._row_numbers()
        whole = len(order) * batch_size
        runs = rows[:whole].reshape(-1, batch_size)[np.array(order, np.int64)]
        return self._select_rows(np.concatenate([runs.ravel(), rows[whole:]]))

    def _select_rows(self, rows: Array) -> FilteredSortedDynamicItemDataset:
        selected = object.__new__(FilteredSortedDynamicItemDataset)
        selected._table, selected._rows = self._table, rows.astype(np.int64, copy=False)
        selected.pipeline = self.pipeline.copy()
        return selected

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} samples, {self.pipeline!r})"


class FilteredSortedDynamicItemDataset(DynamicItemDataset):
    """Some samples of another data set, in any order; the rows are shared.

    Items and output keys can be changed without affecting the other data set.

    >>> dataset = DynamicItemDataset({"a": {"n": 3}, "b": {"n": 1}}, output_keys=["n"])
    >>> FilteredSortedDynamicItemDataset(dataset, ["b", "a", "b"])[0]
    {'n': 1}
    """

    def __init__(self, from_dataset: DynamicItemDataset, data_ids: Iterable[Any]):
        table, rows = from_dataset._table, []
        for uid in data_ids:
            row = table.find(uid)
            if row is None:
                raise UnknownKeyError("the data set has no such row", origin=Origin("", str(uid)))
            rows.append(row)
        self._table, self._rows = table, np.array(rows, np.int64)
        self.pipeline = from_dataset.pipeline.copy()

    @classmethod
    def from_json(cls, *args: Any, **options: Any) -> Self:
        """Raise: this class is created from another data set."""
        raise TypeError(f"{cls.__name__} is made by filtered_sorted: read a DynamicItemDataset")

    from_csv = from_jsonl = from_parquet = from_arrow_dataset = from_json


def add_dynamic_item(
    datasets: Iterable[DynamicItemDataset],
    func: DynamicItem | Callable[..., Any],
    takes: str | Keys | None = None,
    provides: str | Keys | None = None,
) -> None:
    """Add one item to several data sets.

    >>> dataset = DynamicItemDataset({"a": {"x": 1}})
    >>> add_dynamic_item([dataset], lambda x: -x, "x", "y")
    >>> set_output_keys([dataset], ["y"])
    >>> dataset[0]
    {'y': -1}
    """
    for dataset in datasets:
        dataset.add_dynamic_item(func, takes, provides)


def set_output_keys(datasets: Iterable[DynamicItemDataset], output_keys: OutputKeys) -> None:
    """Give several data sets the same output keys.

    >>> dataset = DynamicItemDataset({"a": {"x": 1}})
    >>> set_output_keys([dataset], ["id"])
    >>> dataset[0]
    {'id': 'a'}
    """
    for dataset in datasets:
        dataset.set_output_keys(output_keys)


def apply_overfit_test(
    overfit_test: bool,
    overfit_test_sample_count: int,
    overfit_test_epoch_data_count: int,
    dataset: DynamicItemDataset,
) -> DynamicItemDataset:
    """Return the data set for an overfit test if ``overfit_test`` is true, else ``dataset``.

    >>> dataset = DynamicItemDataset({"a": {}, "b": {}})
    >>> len(apply_overfit_test(True, 1, 10, dataset))
    10
    """
    if not overfit_test:
        return dataset
    return dataset.overfit_test(overfit_test_sample_count, overfit_test_epoch_data_count)
