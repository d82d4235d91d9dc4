"""Orders examples so that neighbours have similar lengths and differ from epoch to epoch.

Planned batches are cut from this order. Examples in random order are assigned to pools, and every
pool is sorted by length, alternately rising and falling: the next pool begins at the length where
one ends, so no batch ends early because its pool does. In a large pool many lengths are similar:
it needs little padding, but the same examples meet again sooner.

The size of a pool depends on the lengths in it. Few examples are very short or very long, and
their pools must be larger for the same padding. The data is divided into shares by length, at
bounds that move with every epoch. The number of pools of each share minimizes the padding for a
given probability that two examples meet again.
"""

from __future__ import annotations

import numpy as np

from penstock.batches.planning.cost import Array, Cost
from penstock.rng import CounterRng, stable_hash

CUTS = 12
"""The most bounds between shares. More would reverse too often, fewer adapt less."""
BATCHES = 5
"""Batches that a pool should fill; a user's smaller pool mixes more, at the cost of padding."""
FINER = 1.2
"""Factor on the number of pools that follows from ``pool``: shares cost some randomness."""


def order_by_pools(
    lengths: Array,
    cost: Cost,
    budget: float,
    *,
    pool: int,
    windows: Array | None,
    key: tuple[int, int],
) -> Array:
    """Return indices into ``lengths``, whose rows are in random order, to cut batches from.

    ``windows`` are bounds of indices; examples of one window are not mixed with those of others.

    >>> rows = np.array([[3.0], [1.0], [2.0], [4.0]])
    >>> order_by_pools(rows, Cost(None), 8.0, pool=100, windows=None, key=(0, 0)).tolist()
    [1, 2, 0, 3]
    """
    count = len(lengths)
    if count == 0:
        return np.zeros(0, np.int64)
    bounds = np.array([0, count]) if windows is None else np.asarray(windows)
    window = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    size = lengths.sum(axis=1)
    ranked = np.argsort(size, kind="stable")
    each = np.minimum(cost(np.ones(count), *lengths.T), budget)  # longer ones are alone anyway
    share, pools = _divide_by_length(size, ranked, each, budget, pool, key)
    # A window has a proportional part of each share's pools, at least one.
    group = window * len(pools) + share
    held = np.bincount(group, minlength=(len(bounds) - 1) * len(pools)).reshape(-1, len(pools))
    wanted = np.maximum(np.rint(pools * np.diff(bounds)[:, None] / count), 1)
    here = np.minimum(wanted, np.maximum(held, 1)).astype(np.int64).ravel()
    pooled, first = _assign_pools(group, held.ravel(), here)
    # The last pool of a share rises, because the next share has longer examples.
    falls = (np.repeat(first + here, here) - np.arange(here.sum())) % 2 == 0
    if lengths.shape[1] == 1:
        found = _sort_pools(ranked, pooled, falls)
    else:
        # The best number of strips depends on how the two lengths are related: try several.
        tries = (1, 2, 4, 8, 16, 32, 64)
        strips = min(tries, key=lambda number: _try_strips(lengths, pooled, number, cost, budget))
        found = _sort_strips(lengths, pooled, falls[pooled], strips)
    for number in range(1, len(bounds) - 1, 2):
        # Reverse every other window: it begins with long ones, as the one before it ended.
        inside = found[bounds[number] : bounds[number + 1]]
        inside[:] = inside[::-1].copy()
    return found


def _divide_by_length(
    size: Array, ranked: Array, each: Array, budget: float, pool: int, key: tuple[int, int]
) -> tuple[Array, Array]:
    """Return the share that each example is in, and the number of pools of each share."""
    count = len(size)
    costs = np.cumsum(each[ranked])
    shift = CounterRng(stable_hash("shares", *key)).random()
    number = min(int(pool * costs[-1] / count / budget / BATCHES), CUTS)
    cuts = np.searchsorted(costs, costs[-1] * (np.arange(number) + shift) / max(number, 1))
    bounds = np.unique(size[ranked[np.minimum(cuts, count - 1)]])
    share = np.searchsorted(bounds, size, side="left")
    total = len(bounds) + 1
    held = np.bincount(share, minlength=total).astype(float)
    within = np.maximum(held, 1)
    mean = np.maximum(np.bincount(share, weights=size, minlength=total) / within, 1e-12)
    costly = np.maximum(np.bincount(share, weights=each, minlength=total) / within, 1e-12)
    low, high = np.append(size.min(), bounds), np.append(bounds, size.max())
    width = np.maximum(high - low, 1e-3 * mean) / mean * costly
    batch = np.maximum(budget / costly, 1.0)
    # Padding grows with batch · pools · width, the probability to meet again with weight / pools.
    # Their sum is least if pools are proportional to the root of the quotient. The probability is
    # that of a pair in one batch, so an example counts once for each other example of its batch.
    weight = within * batch
    pools = np.sqrt(weight / (batch * width))
    pools *= FINER * (weight / pools).sum() / weight.sum() * count / pool
    return share, np.maximum(pools, 1.0)


def _assign_pools(group: Array, held: Array, pools: Array) -> tuple[Array, Array]:
    """Return the number of each example's pool, and that of each group's first pool."""
    ranked = np.argsort(_narrow(group), kind="stable")
    before = np.cumsum(held) - held
    rank = np.empty(len(group), np.int64)
    rank[ranked] = np.arange(len(group)) - before[group[ranked]]
    first = np.cumsum(pools) - pools
    return first[group] + rank * pools[group] // np.maximum(held, 1)[group], first


def _sort_pools(ranked: Array, pooled: Array, falls: Array) -> Array:
    """Return the examples pool by pool, each sorted by length, rising or falling."""
    found = ranked[np.argsort(_narrow(pooled[ranked]), kind="stable")]
    ends = np.cumsum(np.bincount(pooled, minlength=len(falls)))
    for number in np.flatnonzero(falls).tolist():
        begin, end = ends[number - 1] if number else 0, ends[number]
        found[begin:end] = found[begin:end][::-1].copy()
    return found


def _narrow(numbers: Array) -> Array:
    """Return the numbers in 16 bits if they fit: numpy sorts those several times faster."""
    return numbers.astype(np.uint16) if numbers.max() < 1 << 16 else numbers


def _sort_strips(lengths: Array, pooled: Array, falls: Array, strips: int) -> Array:
    """Cut each pool into strips of similar first lengths, and sort those by the second length."""
    first, second = lengths[:, 0], lengths[:, 1:].sum(axis=1)
    ranked = np.lexsort((np.where(falls, -first, first), pooled))
    counts = np.bincount(pooled)
    rank = np.empty(len(pooled), np.int64)
    rank[ranked] = np.arange(len(pooled)) - (np.cumsum(counts) - counts)[pooled[ranked]]
    strip = rank * strips // counts[pooled]
    down = (strip % 2 == 1) ^ falls
    return np.lexsort((np.where(down, -second, second), strip, pooled))


def _try_strips(lengths: Array, pooled: Array, strips: int, cost: Cost, budget: float) -> float:
    """Return the cost of all batches cut from the first few pools with ``strips`` strips."""
    few = pooled <= pooled[0] + 8 if len(pooled) > 20_000 else np.ones(len(pooled), bool)
    some, numbers = lengths[few], np.unique(pooled[few], return_inverse=True)[1]
    ordered = some[_sort_strips(some, numbers, np.zeros(len(some), bool), strips)]
    starts = cut(ordered, cost, budget, None)
    tops = np.maximum.reduceat(ordered, starts[:-1], axis=0)
    return float(cost(np.diff(starts), *tops.T).sum())


def cut(lengths: Array, cost: Cost, budget: float, most: int | None) -> Array:
    """Return where batches start, and the end: each takes examples while the budget allows.

    An example that alone is above the budget gets a separate batch.

    >>> cut(np.array([[1.0], [2.0], [3.0], [9.0]]), Cost(None), 6.0, None).tolist()
    [0, 2, 3, 4]
    """
    count, columns = len(lengths), np.ascontiguousarray(lengths.T)
    limit = budget * (1 + 1e-9)  # 0.1 + 0.2 counts as within 0.3
    starts, at, guess = [0], 0, 64
    numbers = np.arange(1, count + 1)
    while at < count:
        while True:
            stop = min(at + guess, count)
            tops = [np.maximum.accumulate(column[at:stop]) for column in columns]
            # If a user's function falls, against the rule, the batch has ended before that.
            costs = np.maximum.accumulate(cost(numbers[: stop - at], *tops))
            fits = int(costs.searchsorted(limit, side="right"))
            if fits < stop - at or stop == count or (most is not None and fits >= most):
                break
            guess *= 2
        fits = max(fits if most is None else min(fits, most), 1)
        at += fits
        starts.append(at)
        guess = 2 * fits + 8
    return np.array(starts, np.int64)
