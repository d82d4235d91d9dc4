"""Plans rows of packed samples before anything is read, from known lengths."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.batches.bucketing.length_buffer import LengthBuffer
from penstock.batches.lengths import check_lengths
from penstock.batches.number_format import figure
from penstock.batches.packing.bin_packing import FITS
from penstock.errors import PipelineError, SampleError
from penstock.rng import stable_hash
from penstock.stages.sources.epoch_order import keyed_order

Array = np.ndarray[Any, np.dtype[Any]]
PLAN_OVER = ("error", "skip", "alone")


@dataclasses.dataclass(frozen=True, eq=False)
class PackingPlan:
    """Which samples share a row. ``plan[n]`` are the numbers of the samples in row n.

    ``numbers`` holds the samples of all rows: row n has those from ``starts[n]`` to
    ``starts[n + 1]``. ``fill`` is the filled share of the rows, ``skipped`` the samples that were
    too long. A plan is a ``batch_sampler`` for torch's loader: iterating yields lists.

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
    """Plan how samples of these lengths are packed into rows of ``capacity``.

    Samples are taken in their order or, with a ``seed``, in a random order that depends on the
    seed and the epoch. Each row is chosen from a buffer of ``buffer`` samples, as
    :class:`penstock.packed` does, so rows are as random as the order. A sample longer than the
    capacity raises a ``SampleError``, is left out (``over="skip"``), or gets a separate row
    (``"alone"``). A length that is not a finite number above 0 raises a ``SampleError``.

    >>> plan_packing([3, 3, 1, 2], 4, seed=1).fill
    0.75
    """
    if fit not in FITS or over not in PLAN_OVER or buffer < 1:
        raise PipelineError(
            f"plan_packing: fit is one of {sorted(FITS)}, over one of {PLAN_OVER}, and buffer at "
            f"least 1: fit={fit!r}, over={over!r}, buffer={buffer}"
        )
    if not capacity > 0:
        raise PipelineError(f"plan_packing: the capacity must be above 0, not {capacity}")
    found = check_lengths(lengths)
    order = (
        np.arange(len(found))
        if seed is None
        else keyed_order(len(found), stable_hash("packing", seed, epoch))
    )
    large = found[order] > capacity
    if over == "error" and large.any():
        first = int(order[large][0])
        raise SampleError(
            f"plan_packing: sample {first} has length {figure(found[first])}, above the capacity "
            f"{capacity} of a row ({int(large.sum())} are too long): choose over='skip' or 'alone'"
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
    return plan if seed is None else _shuffle_rows(plan, stable_hash("rows", seed, epoch))


def _rows(
    lengths: list[float], numbers: list[int], capacity: float, fit: str, buffer: int
) -> Iterator[list[int]]:
    choose, waiting = FITS[fit], LengthBuffer()
    for length, number in zip(lengths, numbers):
        waiting.add(length, None, number)
        if len(waiting.lengths) >= buffer:
            yield [item.ticket for item in choose(waiting, capacity)]
    while waiting.lengths:
        yield [item.ticket for item in choose(waiting, capacity)]


def _shuffle_rows(plan: PackingPlan, key: int) -> PackingPlan:
    """Return the plan with its rows in random order: the last ones are less full."""
    order = keyed_order(len(plan), key)
    sizes = np.diff(plan.starts)[order]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    indices = np.repeat(plan.starts[:-1][order] - starts[:-1], sizes) + np.arange(starts[-1])
    return dataclasses.replace(plan, numbers=plan.numbers[indices], starts=starts)
