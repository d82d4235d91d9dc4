"""Selects and sorts the samples of a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from penstock.errors import PipelineError
from penstock.shards.index.packed_strings import Array

NumbersOf = Callable[[str, Array], Array | None]
"""Key and rows → the key's numbers as an array; None if they must be compared one by one."""

ValuesOf = Callable[[Iterable[str]], Callable[[int], Mapping[str, Any]]]
"""Keys → a function from a row to their values."""


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Limits and tests by key, the key to sort by, and the maximum number of samples."""

    at_least: Mapping[str, Any]
    at_most: Mapping[str, Any]
    tests: Mapping[str, Callable[[Any], Any]]
    sort_key: str | None = None
    reverse: bool = False
    limit: int | None = None

    def __call__(self, numbers_of: NumbersOf, values_of: ValuesOf, rows: Array) -> Array:
        """Return the rows that pass, in order.

        >>> lengths = np.array([5, 1, 3])
        >>> select = Selection({}, {"n": 4}, {}, "n")
        >>> select(lambda key, rows: lengths[rows], None, np.arange(3)).tolist()
        [1, 2]
        """
        if self.limit is not None and self.limit < 0:
            raise PipelineError(f"select_n must be None or at least 0, not {self.limit}")
        if not len(rows):
            return rows
        rows, slow = self._compare_at_once(numbers_of, rows)
        one_by_one = slow or self.tests
        rows = self._test_each(values_of, rows, slow) if one_by_one else rows[: self.limit]
        return rows if self.sort_key is None else self._sort(numbers_of, values_of, rows)

    def _compare_at_once(self, numbers_of: NumbersOf, rows: Array) -> tuple[Array, list[str]]:
        """Apply the limits on numeric keys to all rows; return these rows and the other keys."""
        slow: list[str] = []
        keep = np.ones(len(rows), np.bool_)
        for key in dict.fromkeys([*self.at_least, *self.at_most]):
            numbers = numbers_of(key, rows)
            limits = [side[key] for side in (self.at_least, self.at_most) if key in side]
            if numbers is None or not all(isinstance(n, (int, float, np.number)) for n in limits):
                slow.append(key)
                continue
            if key in self.at_least:
                keep &= numbers >= self.at_least[key]
            if key in self.at_most:
                keep &= numbers <= self.at_most[key]
        return rows[keep], slow

    def _test_each(self, values_of: ValuesOf, rows: Array, slow: list[str]) -> Array:
        values = values_of([*slow, *self.tests])
        found: list[int] = []
        for row in rows.tolist():
            if len(found) == self.limit:
                break
            if self._passes(values(row), slow):
                found.append(row)
        return np.array(found, np.int64)

    def _passes(self, values: Mapping[str, Any], slow: list[str]) -> bool:
        for key in slow:
            if key in self.at_least and not values[key] >= self.at_least[key]:
                return False
            if key in self.at_most and not values[key] <= self.at_most[key]:
                return False
        return all(test(values[key]) for key, test in self.tests.items())

    def _sort(self, numbers_of: NumbersOf, values_of: ValuesOf, rows: Array) -> Array:
        key = self.sort_key or ""
        numbers = numbers_of(key, rows)
        if numbers is not None:
            order = np.argsort(numbers, kind="stable")
        else:
            values = values_of([key])
            found = [values(row)[key] for row in rows.tolist()]
            order = np.array(sorted(range(len(found)), key=found.__getitem__), np.int64)
        return rows[order[::-1] if self.reverse else order]
