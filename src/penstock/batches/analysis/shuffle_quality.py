"""Measures how well an order is mixed.

A shuffle fails in two ways. Samples may come near the position where they were stored: the epoch
drifts through the data. Or samples that were stored together may come together, wherever that
is: whole shards are moved, and each batch is from one of them. The first shows in ``displacement``
and ``correlation``; the second, which affects training more, in ``spread`` and ``same_shard``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import PipelineError

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """An order compared with a full random permutation of the same samples."""

    displacement: float
    """Distance of samples from their stored position: 0 in stored order, 1 in a permutation."""
    correlation: float
    """Correlation of position and stored position: 1 in stored order, 0 in a permutation."""
    spread: float
    """Distance in storage of a batch's samples: 0 for neighbours, 1 in a permutation."""
    same_shard: float | None
    """Pairs of a batch from one shard, relative to a permutation (1); None without ``shards``."""


def shuffle_quality(
    order: Sequence[int] | Numbers,
    shards: Sequence[int] | Numbers | None = None,
    *,
    batch: int = 64,
) -> ShuffleQuality:
    """Measure how well the samples of an epoch are mixed, from the order in which they came.

    ``order`` has the stored number of each sample in the order of the epoch; samples may be
    missing or occur twice. ``shards`` has the number of samples of each shard. Batches are
    ``batch`` consecutive samples, without the last batch if it is not full. Fewer samples than two
    batches raise a :class:`~penstock.errors.PipelineError`.

    >>> shuffle_quality(range(100), shards=[25] * 4, batch=10)
    ShuffleQuality(displacement=0.0, correlation=1.0, spread=0.109, same_shard=3.67)
    >>> import random
    >>> mixed = random.Random(0).sample(range(10_000), 10_000)
    >>> shuffle_quality(mixed, shards=[100] * 100)
    ShuffleQuality(displacement=1.001, correlation=-0.001, spread=1.0, same_shard=1.02)
    """
    numbers = np.asarray(order, np.int64)
    count = len(numbers)
    if batch < 2 or count < 2 * batch:
        raise PipelineError(
            f"shuffle_quality compares the samples of batches: pass at least two batches of two "
            f"or more samples, not {count} samples in batches of {batch}"
        )
    ranks = np.empty(count, np.int64)  # the stored position among those that came
    ranks[np.argsort(numbers, kind="stable")] = np.arange(count)
    positions = np.arange(count)
    expected = (count * count - 1) / (3 * count)
    distance = float(np.abs(ranks - positions).mean()) / expected
    correlation = float(np.corrcoef(ranks, positions)[0, 1])
    rows = count // batch
    apart = _mean_distance(ranks[: rows * batch].reshape(rows, batch)) / ((count + 1) / 3)
    same = None
    if shards is not None:
        same = round(_same_shard(numbers, np.asarray(shards, np.int64), batch), 2)
    return ShuffleQuality(round(distance, 3), round(correlation, 3), round(apart, 3), same)


def _mean_distance(batches: Numbers) -> float:
    """Return the mean distance of two numbers of a batch."""
    size = batches.shape[1]
    # In sorted order, number i is the larger one of i pairs and the smaller one of the rest.
    signs = 2 * np.arange(size) - size + 1
    return float((np.sort(batches, axis=1) @ signs).mean() / (size * (size - 1) / 2))


def _same_shard(numbers: Numbers, sizes: Numbers, batch: int) -> float:
    """Return the share of pairs from one shard, relative to pairs drawn from all samples."""
    ends = np.cumsum(sizes)
    if numbers.min() < 0 or numbers.max() >= ends[-1]:
        raise PipelineError(
            f"shuffle_quality: the shards have {ends[-1]} samples, but the order has numbers from "
            f"{numbers.min()} to {numbers.max()}"
        )
    shard = np.searchsorted(ends, numbers, side="right")
    rows = len(numbers) // batch
    row = np.repeat(np.arange(rows), batch)
    together = _pairs(row * len(sizes) + shard[: rows * batch]) / (rows * batch * (batch - 1) / 2)
    chance = _pairs(shard) / (len(shard) * (len(shard) - 1) / 2)
    return together / chance if chance else 1.0


def _pairs(labels: Numbers) -> float:
    """Return the number of pairs with the same label."""
    counts = np.unique(labels, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1) / 2).sum())
