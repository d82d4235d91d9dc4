"""Rows planned before anything is read, where the lengths are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.batches.packing.bin_packing import FITS
from penstock.batches.bucketing.length_buffer import Waiting
from penstock.context import mixed
from penstock.errors import PipelineError, SampleError
from penstock.stages.sources.epoch_order import keyed_order

Array = np.ndarray[Any, np.dtype[Any]]
PLAN_OVER = ("error", "skip", "alone")


@dataclasses.dataclass(frozen=True, eq=False)
class PackingPlan:
    """Which samples share a row. ``plan[n]`` are the numbers of those in the n-th row.

    ``numbers`` are those of all rows, row n has them from ``starts[n]`` to ``starts[n + 1]``;
    ``fill`` is the share of the rows that is filled, ``skipped`` the samples that were too long.
    A plan is a ``batch_sampler`` for torch's loader: iterating gives lists.

    >>> plan = plan_packing([3, 5, 2, 4], 7)
    >>> list(plan), plan.fill
    ([[0, 3], [1, 2]], 1.0)
    """

    numbers: Array
    starts: Array
    capacity: float
    fill: float
    skipped: Array

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> list[int]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        numbers: list[int] = self.numbers[self.starts[row] : self.starts[row + 1]].tolist()
        return numbers

    def __iter__(self) -> Iterator[list[int]]:
        return map(self.__getitem__, range(len(self)))


def plan_packing(
    lengths: Any,
    capacity: float,
    fit: str = "best",
    buffer: int = 2000,
    *,
    seed: int | None = None,
    epoch: int = 0,
    over: str = "error",
) -> PackingPlan:
    """A plan that packs samples of these lengths into rows of ``capacity``.

    The samples come in their order or, with a ``seed``, in a random one that depends on the seed
    and the epoch; each row is chosen among ``buffer`` of them as :class:`penstock.packed` does,
    so rows are as random as that order is. A length above the capacity is a ``SampleError``, or is
    left out (``over="skip"``), or gets a row of its own (``"alone"``); one that is not a number
    above 0 is a ``SampleError``.

    >>> plan_packing([3, 3, 1, 2], 4, seed=1).fill
    0.75
    """
    if fit not in FITS or over not in PLAN_OVER or buffer < 1:
        raise PipelineError(
            f"plan_packing: fit is one of {sorted(FITS)}, over one of {PLAN_OVER}, and buffer at "
            f"least 1: fit={fit!r}, over={over!r}, buffer={buffer}"
        )
    found = np.asarray(lengths)
    if found.dtype == object and None in found.ravel().tolist():
        found = np.where(found == None, np.nan, found).astype(float)  # noqa: E711 - each of them
    order = _order(found, capacity, seed, epoch)
    large = found[order] > capacity
    if over == "error" and large.any():
        first = int(order[large][0])
        raise SampleError(
            f"plan_packing: sample {first} is {found[first]} long, and a row {capacity} "
            f"({int(large.sum())} are too long): over='skip' or 'alone' says what to do"
        )
    skipped = np.sort(order[large]) if over == "skip" else order[:0]
    if over == "skip":
        order = order[~large]
    numbers: list[int] = []
    starts = [0]
    for row in _rows(found[order].tolist(), order.tolist(), capacity, fit, buffer):
        numbers += row
        starts.append(len(numbers))
    used = np.add.reduceat(found[numbers], starts[:-1]) if numbers else np.zeros(0)
    fill = float(used.sum() / np.maximum(used, capacity).sum()) if numbers else 0.0
    plan = PackingPlan(np.array(numbers, int), np.array(starts), capacity, fill, skipped)
    return plan if seed is None else _shuffled(plan, mixed("rows", seed, epoch))


def _order(lengths: Array, capacity: float, seed: int | None, epoch: int) -> Array:
    if not capacity > 0:
        raise PipelineError(f"plan_packing: the capacity must be above 0, not {capacity}")
    if lengths.size and (lengths.ndim != 1 or lengths.dtype.kind not in "iuf"):
        kind = f"{lengths.dtype} of shape {lengths.shape}"
        raise SampleError(f"plan_packing: lengths are one number per sample, not {kind}")
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(wrong):
        raise SampleError(
            f"plan_packing: a length is a number above 0, and sample {wrong[0]} has "
            f"{lengths[wrong[0]]} ({len(wrong)} have no such length)"
        )
    if seed is None:
        return np.arange(len(lengths))
    return keyed_order(len(lengths), mixed("packing", seed, epoch))


def _rows(
    lengths: list[float], numbers: list[int], capacity: float, fit: str, buffer: int
) -> Iterator[list[int]]:
    choose, waiting = FITS[fit], Waiting()
    for length, number in zip(lengths, numbers):
        waiting.add(length, None, number)
        if len(waiting.lengths) >= buffer:
            yield [item.ticket for item in choose(waiting, capacity)]
    while waiting.lengths:
        yield [item.ticket for item in choose(waiting, capacity)]


def _shuffled(plan: PackingPlan, key: int) -> PackingPlan:
    """The rows in random order: those at the end, less full, would always come last."""
    order = keyed_order(len(plan), key)
    sizes = np.diff(plan.starts)[order]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    places = np.repeat(plan.starts[:-1][order] - starts[:-1], sizes) + np.arange(starts[-1])
    return dataclasses.replace(plan, numbers=plan.numbers[places], starts=starts)
