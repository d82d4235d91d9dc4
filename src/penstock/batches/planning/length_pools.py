"""The sequence that planned batches are cut from: like lengths side by side, in random company.

Examples in random order are dealt to pools, and every pool is sorted by length, up and down in
turn: where one pool ends the next begins, so no batch ends early because its pool does. A
large pool has many like lengths, hence little padding, and meets the same company again sooner.

How large a pool is depends on the lengths in it. Few examples are very short or very long, and
their pools must be larger for the same padding. Shares of the data are cut by length, at bounds
that move with every epoch, and each share has as many pools as makes the padding least for one
given chance to meet again.
"""

from __future__ import annotations

import numpy as np

from penstock.batches.planning.cost import Array, Cost
from penstock.context import Draws, mixed

CUTS = 12
"""The data is cut by length at most so often. More fold too often, fewer adapt less."""
BATCHES = 5
"""A pool of a share should fill so many batches: small pools are for mixing, whatever it costs."""
FINER = 1.2
"""So many more pools than the size given says: the shares cost some of the randomness."""


def sequence(
    lengths: Array,
    cost: Cost,
    budget: float,
    *,
    pool: int,
    windows: Array | None,
    key: tuple[int, int],
) -> Array:
    """Places into ``lengths``, whose rows are in random order, as batches are to be cut from them.

    ``windows`` are bounds of places; what is in one is not mixed with the others.

    >>> rows = np.array([[3.0], [1.0], [2.0], [4.0]])
    >>> sequence(rows, Cost(None), 8.0, pool=100, windows=None, key=(0, 0)).tolist()
    [1, 2, 0, 3]
    """
    count = len(lengths)
    if count == 0:
        return np.zeros(0, np.int64)
    bounds = np.array([0, count]) if windows is None else np.asarray(windows)
    window = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    size = lengths.sum(axis=1)
    ranked = np.argsort(size, kind="stable")
    each = np.minimum(cost(np.ones(count), *lengths.T), budget)  # above it, it is alone anyway
    share, pools = _shares(size, ranked, each, budget, pool, key)
    # A window has its part of each share's pools, at least one.
    group = window * len(pools) + share
    held = np.bincount(group, minlength=(len(bounds) - 1) * len(pools)).reshape(-1, len(pools))
    wanted = np.maximum(np.rint(pools * np.diff(bounds)[:, None] / count), 1)
    here = np.minimum(wanted, np.maximum(held, 1)).astype(np.int64).ravel()
    pooled, first = _pooled(group, held.ravel(), here)
    # The last pool of a share rises: there the next share, of longer ones, begins.
    falls = (np.repeat(first + here, here) - np.arange(here.sum())) % 2 == 0
    if lengths.shape[1] == 1:
        found = _sorted(ranked, pooled, falls)
    else:
        # How many strips are best depends on how the two lengths are related: it is tried.
        tries = (1, 2, 4, 8, 16, 32, 64)
        strips = min(tries, key=lambda number: _tried(lengths, pooled, number, cost, budget))
        found = _in_strips(lengths, pooled, falls[pooled], strips)
    for number in range(1, len(bounds) - 1, 2):
        # Every other window backwards: it begins with the long ones that the last one ended with.
        inside = found[bounds[number] : bounds[number + 1]]
        inside[:] = inside[::-1].copy()
    return found


def _shares(
    size: Array, ranked: Array, each: Array, budget: float, pool: int, key: tuple[int, int]
) -> tuple[Array, Array]:
    """The share that each example is in, and how many pools each share has."""
    count = len(size)
    costs = np.cumsum(each[ranked])
    shift = Draws(mixed("shares", *key)).random()
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
    # Padding grows by batch · pools · width, the chance to meet again by weight / pools: the sum is
    # least where pools are as the root of their quotient. The chance is that of a pair of
    # examples in one batch, so every example counts once for each other of its batch.
    weight = within * batch
    pools = np.sqrt(weight / (batch * width))
    pools *= FINER * (weight / pools).sum() / weight.sum() * count / pool
    return share, np.maximum(pools, 1.0)


def _pooled(group: Array, held: Array, pools: Array) -> tuple[Array, Array]:
    """The number of each example's pool, and that of each group's first one."""
    ranked = np.argsort(_small(group), kind="stable")
    before = np.cumsum(held) - held
    rank = np.empty(len(group), np.int64)
    rank[ranked] = np.arange(len(group)) - before[group[ranked]]
    first = np.cumsum(pools) - pools
    return first[group] + rank * pools[group] // np.maximum(held, 1)[group], first


def _sorted(ranked: Array, pooled: Array, falls: Array) -> Array:
    """The examples pool by pool, each sorted by length, rising or falling."""
    found = ranked[np.argsort(_small(pooled[ranked]), kind="stable")]
    ends = np.cumsum(np.bincount(pooled, minlength=len(falls)))
    for number in np.flatnonzero(falls).tolist():
        begin, end = ends[number - 1] if number else 0, ends[number]
        found[begin:end] = found[begin:end][::-1].copy()
    return found


def _small(numbers: Array) -> Array:
    """In 16 bits where they fit: numpy sorts those several times faster."""
    return numbers.astype(np.uint16) if numbers.max() < 1 << 16 else numbers


def _in_strips(lengths: Array, pooled: Array, falls: Array, strips: int) -> Array:
    """With two lengths: a pool is cut into strips of like first lengths, sorted by the second."""
    first, second = lengths[:, 0], lengths[:, 1:].sum(axis=1)
    ranked = np.lexsort((np.where(falls, -first, first), pooled))
    counts = np.bincount(pooled)
    place = np.empty(len(pooled), np.int64)
    place[ranked] = np.arange(len(pooled)) - (np.cumsum(counts) - counts)[pooled[ranked]]
    strip = place * strips // counts[pooled]
    down = (strip % 2 == 1) ^ falls
    return np.lexsort((np.where(down, -second, second), strip, pooled))


def _tried(lengths: Array, pooled: Array, strips: int, cost: Cost, budget: float) -> float:
    """The cost of all batches cut from the first few pools with so many strips."""
    few = pooled <= pooled[0] + 8 if len(pooled) > 20_000 else np.ones(len(pooled), bool)
    some, numbers = lengths[few], np.unique(pooled[few], return_inverse=True)[1]
    ordered = some[_in_strips(some, numbers, np.zeros(len(some), bool), strips)]
    starts = cut(ordered, cost, budget, None)
    tops = np.maximum.reduceat(ordered, starts[:-1], axis=0)
    return float(cost(np.diff(starts), *tops.T).sum())


def cut(lengths: Array, cost: Cost, budget: float, most: int | None) -> Array:
    """Where batches start, and the end: each takes what comes as long as the budget allows.

    An example that is above the budget by itself gets a batch of its own.

    >>> cut(np.array([[1.0], [2.0], [3.0], [9.0]]), Cost(None), 6.0, None).tolist()
    [0, 2, 3, 4]
    """
    count, columns = len(lengths), np.ascontiguousarray(lengths.T)
    limit = budget * (1 + 1e-9)  # 0.1 + 0.2 is within 0.3
    starts, at, guess = [0], 0, 64
    numbers = np.arange(1, count + 1)
    while at < count:
        while True:
            stop = min(at + guess, count)
            tops = [np.maximum.accumulate(column[at:stop]) for column in columns]
            # A user's function may fall where it should not; the batch has ended by then.
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
