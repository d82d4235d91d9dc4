"""Rounds lengths up to one of k levels, which are chosen for least padding."""

from __future__ import annotations

import numpy as np

from penstock.batches.planning.cost import Array

CANDIDATES = 512


def find_levels(lengths: Array, count: int) -> Array:
    """Return at most ``count`` levels such that rounding all lengths up adds least in total.

    >>> find_levels(np.array([1.0, 1.1, 1.2, 5.0, 5.1, 9.0]), 3).tolist()
    [1.2, 5.1, 9.0]
    """
    ranked = np.sort(lengths)
    # Candidates are examples; of much data, evenly spread ones and the longest.
    picks = np.unique(np.linspace(0, len(ranked) - 1, CANDIDATES).astype(np.int64))
    tops = ranked[picks]
    upto = np.searchsorted(ranked, tops, side="right").astype(float)
    # added[j, i]: the cost of all lengths above level j - 1 and up to level i, rounded up to i.
    # The sum of the lengths themselves is the same for every choice.
    below = np.concatenate([[0.0], upto])
    added = tops * (upto - below[:-1, None])
    added = np.where(np.tri(len(tops), k=-1, dtype=bool), np.inf, added)
    total = added[0].copy()
    back = np.full((count, len(tops)), -1)
    for number in range(1, count):
        # level i as the next one after level j - 1, or no further level at all
        trial = np.concatenate([[np.inf], total[:-1]])[:, None] + added
        best = trial.argmin(axis=0)
        better = trial[best, np.arange(len(tops))] < total
        back[number] = np.where(better, best - 1, -2)
        total = np.where(better, trial[best, np.arange(len(tops))], total)
    chosen, at, number = [], len(tops) - 1, count - 1
    while at >= 0:
        while number > 0 and back[number, at] == -2:
            number -= 1
        chosen.append(tops[at])
        at = int(back[number, at]) if number > 0 else -1
        number -= 1
    return np.unique(chosen)


def round_up(lengths: Array, to: Array) -> Array:
    """Return, for each length, the level at or above it.

    >>> round_up(np.array([1.0, 1.3]), np.array([1.2, 5.1])).tolist()
    [1.2, 5.1]
    """
    return to[np.minimum(np.searchsorted(to, lengths, side="left"), len(to) - 1)]
