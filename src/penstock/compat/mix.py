"""``webdataset.mix``: mixing streams. Lives in :mod:`penstock.stages.sources.mix`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.stages.sources.mix import RandomMix, RoundRobin


def random_samples(
    sources: Sequence[Iterable[Any]], probs: Sequence[float] | None = None, longest: bool = False
) -> Iterator[Any]:
    """Items of the sources, each from one drawn by weight.

    >>> list(random_samples([iter([1, 2])]))
    [1, 2]
    """
    return iter(RandomMix(sources, probs, longest))


def round_robin_shortest(*sources: Iterable[Any]) -> Iterator[Any]:
    """One item of each source in turn, until the first ends.

    >>> list(round_robin_shortest(iter([1, 2]), iter("a")))
    [1, 'a', 2]
    """
    return iter(RoundRobin(sources))


def round_robin_longest(*sources: Iterable[Any]) -> Iterator[Any]:
    """One item of each source in turn, until all have ended.

    >>> list(round_robin_longest(iter([1, 2, 3]), iter("a")))
    [1, 'a', 2, 3]
    """
    return iter(RoundRobin(sources, longest=True))


__all__ = [
    "RandomMix",
    "RoundRobin",
    "random_samples",
    "round_robin_longest",
    "round_robin_shortest",
]
