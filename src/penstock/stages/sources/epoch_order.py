"""The order of an epoch, decided before anything is read.

Shards are put in random order, and cut into windows of ``window`` shards; inside a window all
samples are in random order. So reading touches only a window's shards at a time, and no sample
waits in a buffer. Both orders are keyed permutations: the samples sorted by a hash of (seed,
epoch, number), the same on every machine and in every version of numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.rng import stable_hash

Rows = np.ndarray[Any, np.dtype[np.int64]]
KEPT_WINDOWS = 4


def keyed_order(count: int, key: int) -> Rows:
    """Return a permutation of ``count`` numbers that depends only on the key.

    >>> keyed_order(5, 1).tolist() == keyed_order(5, 1).tolist(), sorted(keyed_order(5, 2).tolist())
    (True, [0, 1, 2, 3, 4])
    """
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(z ^ (z >> np.uint64(31)), kind="stable")


class Order:
    """Position in the epoch → row of the index.

    ``starts`` are the first rows of the shards, and the end. ``window`` is the number of
    shards whose samples are mixed; 0 keeps the order of the shards. ``kept`` are the rows that
    take part, None for all.

    >>> order = Order(np.array([0, 2, 4]), window=2, seed=0, epoch=0)
    >>> sorted(order.row(position) for position in range(len(order)))
    [0, 1, 2, 3]
    """

    def __init__(
        self, starts: Rows, *, window: int, seed: int, epoch: int, kept: Rows | None = None
    ) -> None:
        self.key, self.window, self.kept = (seed, epoch), window, kept
        self.starts = starts if kept is None else np.searchsorted(kept, starts)
        self.count = int(self.starts[-1])
        shards = len(starts) - 1
        self.shards = (
            keyed_order(shards, stable_hash("shards", seed, epoch)) if window else np.arange(shards)
        )
        groups = [self.shards[at : at + window] for at in range(0, shards, window or shards or 1)]
        sizes = np.diff(self.starts)
        ends = np.cumsum([int(sizes[group].sum()) for group in groups])
        self._groups = groups
        self._bounds: Rows = np.concatenate([[0], ends]).astype(np.int64)
        self._windows: dict[int, Rows] = {}
        self._last: tuple[int, int, Rows | None] = (0, 0, None)  # begin, end, rows

    def __len__(self) -> int:
        return self.count

    def row(self, position: int) -> int:
        """Return the row of the index at a position of the epoch."""
        if not self.window:
            return int(self.kept[position]) if self.kept is not None else position
        begin, end, rows = self._last
        if rows is None or not begin <= position < end:
            begin, end, rows = self._find_window(position)
        return rows.item(position - begin)

    def rows(self, positions: Rows) -> Rows:
        """Return the rows at ascending positions of the epoch."""
        if not self.window:
            return positions if self.kept is None else self.kept[positions]
        parts: list[Rows] = []
        while len(positions):
            begin, end, rows = self._find_window(positions.item(0))
            count = len(positions)
            if positions.item(-1) >= end:
                count = int(np.searchsorted(positions, end))
            parts.append(rows[positions[:count] - begin])
            positions = positions[count:]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])

    def _find_window(self, position: int) -> tuple[int, int, Rows]:
        """Return the first position of the window that contains a position, the end, and its
        rows."""
        begin, end, rows = self._last
        if rows is None or not begin <= position < end:
            number = int(np.searchsorted(self._bounds, position, side="right")) - 1
            begin, end = int(self._bounds[number]), int(self._bounds[number + 1])
            rows = self._rows(number)
            self._last = (begin, end, rows)
        return begin, end, rows

    def all_rows(self) -> tuple[Rows, Rows]:
        """Return the rows of the whole epoch in order, and the bounds of the windows among them."""
        if not self.window:
            rows = np.arange(self.count) if self.kept is None else self.kept
            return rows, np.array([0, self.count])
        parts = [self._rows(number) for number in range(len(self._groups))]
        return np.concatenate([np.zeros(0, np.int64), *parts]), self._bounds

    def _rows(self, number: int) -> Rows:
        """Return the rows of a window in their order; the last few windows are cached."""
        rows = self._windows.get(number)
        if rows is None:
            parts = [np.arange(self.starts[s], self.starts[s + 1]) for s in self._groups[number]]
            rows = np.concatenate(parts)
            rows = rows[keyed_order(len(rows), stable_hash("window", *self.key, number))]
            if self.kept is not None:
                rows = self.kept[rows]
            # A new dict: other threads may still read the old one.
            kept = list(self._windows.items())[1 - KEPT_WINDOWS :]
            self._windows = {**dict(kept), number: rows}
        return rows
