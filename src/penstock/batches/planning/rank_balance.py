"""Orders planned batches, and makes their number equal on all ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.batches.planning.cost import Array
from penstock.rng import CounterRng, stable_hash
from penstock.stages.sources.epoch_order import keyed_order


def order_batches(lengths: Array, window: Array, group: int, key: tuple[int, int]) -> Array:
    """Return the order of batches: groups of similar length in random order, window by window.

    If the number of ranks divides ``group``, the batches of every step are neighbours in length.
    Batches that do not fill a group come last.

    >>> order = order_batches(np.array([5.0, 1.0, 6.0, 2.0]), np.zeros(4, int), 2, (0, 0))
    >>> sorted(map(sorted, order.reshape(2, 2).tolist()))
    [[0, 2], [1, 3]]
    """
    count = len(lengths)
    if count == 0:
        return np.zeros(0, np.int64)
    # Every other window falls, so a group across two windows also has similar lengths.
    ranked = np.lexsort((np.where(window % 2 == 1, -lengths, lengths), window))
    full, rest = divmod(count, group)
    if rest:
        # The rest is taken from a random position of the last window: else always the longest.
        last = int(np.searchsorted(window[ranked], window[ranked[-1]]))
        first_group = -(-last // group)
        at = first_group + CounterRng(stable_hash("rest", *key)).below(full - first_group + 1)
        at = min(at, full) * group
        ranked = np.concatenate([ranked[:at], ranked[at + rest :], ranked[at : at + rest]])
    groups = ranked[: full * group].reshape(full, group)
    random = keyed_order(full, stable_hash("groups", *key))
    groups = groups[random][np.argsort(window[groups[random, 0]], kind="stable")]
    inside = np.empty(count, np.int64)  # a random number for each batch, to shuffle its group
    inside[keyed_order(count, stable_hash("inside", *key))] = np.arange(count)
    mixing = np.argsort(inside[: full * group].reshape(full, group), axis=1)
    mixed_up = np.take_along_axis(groups, mixing, axis=1).ravel()
    tail = ranked[full * group :]
    return np.concatenate([mixed_up, tail[np.argsort(inside[full * group :])]])


class BalancedBatches(NamedTuple):
    """Batches as rows and starts, and how many examples were repeated or dropped."""

    rows: Array
    starts: Array
    repeated: int = 0
    dropped: int = 0


def balance_ranks(
    rows: Array, starts: Array, ranks: int, ends: str, given: int = 0
) -> BalancedBatches:
    """Return batches of which all ranks get equally many after the first ``given``.

    >>> batches = balance_ranks(np.arange(5), np.array([0, 2, 5]), 4, "split")
    >>> batches.starts.tolist()
    [0, 1, 2, 4, 5]
    """
    count = len(starts) - 1
    short = (count - given) % ranks
    if ends == "exact" or not short:
        return BalancedBatches(rows, starts)
    begin = count - short
    if ends == "drop":
        end = int(starts[begin])
        return BalancedBatches(rows[:end], starts[: begin + 1], dropped=len(rows) - end)
    whole = begin + ranks  # the number of batches afterwards
    if ends == "split":
        # Batches of one example cannot be split: split earlier ones instead, if there are any.
        while begin - ranks >= given and len(rows) - starts[begin] < whole - begin:
            begin -= ranks
    pieces = [rows[starts[n] : starts[n + 1]] for n in range(begin, count)]
    if ends == "split":
        pieces = _split(pieces, whole - begin)
    # If nothing is left to split, some of these are repeated; with "pad", the epoch's first.
    first = (
        pieces
        if ends == "split"
        else [rows[starts[n] : starts[n + 1]] for n in range(min(count, ranks))]
    )
    again = [first[n % len(first)] for n in range(whole - begin - len(pieces))]
    pieces = pieces + again
    tail = starts[begin] + np.cumsum([len(piece) for piece in pieces])
    return BalancedBatches(
        np.concatenate([rows[: starts[begin]], *pieces]),
        np.concatenate([starts[: begin + 1], tail]),
        repeated=sum(map(len, again)),
    )


def _split(pieces: list[Array], wanted: int) -> list[Array]:
    """Return ``wanted`` pieces, or one per example if fewer: the largest is halved repeatedly."""
    while len(pieces) < wanted:
        at = max(range(len(pieces)), key=lambda n: len(pieces[n]))
        if len(pieces[at]) < 2:
            break
        half = (len(pieces[at]) + 1) // 2
        pieces[at : at + 1] = [pieces[at][:half], pieces[at][half:]]
    return pieces
