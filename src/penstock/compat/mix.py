"""``webdataset.mix``: mixing streams. Lives in :mod:`penstock.stages.sources.mix`.

The module can be called, so that ``penstock.mix([a, b])`` and ``from penstock.mix import
RandomMix`` both work: it is then :func:`penstock.pipeline.mixture.mix`.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.nearest_name import check_arguments
from penstock.pipeline.mixture import mix
from penstock.stages.sources.mix import RandomMix, RoundRobin


def random_samples(
    sources: Sequence[Iterable[Any]], probs: Sequence[float] | None = None, longest: bool = False
) -> Iterator[Any]:
    """Yield items of the sources, each from a source drawn by weight.

    >>> list(random_samples([iter([1, 2])]))
    [1, 2]
    """
    return iter(RandomMix(sources, probs, longest))


def round_robin_shortest(*sources: Iterable[Any]) -> Iterator[Any]:
    """Yield one item of each source in turn, until the first ends.

    >>> list(round_robin_shortest(iter([1, 2]), iter("a")))
    [1, 'a', 2]
    """
    return iter(RoundRobin(sources))


def round_robin_longest(*sources: Iterable[Any]) -> Iterator[Any]:
    """Yield one item of each source in turn, until all have ended.

    >>> list(round_robin_longest(iter([1, 2, 3]), iter("a")))
    [1, 'a', 2, 3]
    """
    return iter(RoundRobin(sources, longest=True))


class CallableMix(types.ModuleType):
    """The module as the function of the same name."""

    __signature__ = inspect.signature(mix)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_arguments(mix, kwargs)
        return mix(*args, **kwargs)

    def __reduce__(self) -> Any:  # code that holds it must reach other processes
        return (_function, ())


def _function() -> Any:
    return mix


sys.modules[__name__].__class__ = CallableMix

__all__ = [
    "RandomMix",
    "RoundRobin",
    "mix",
    "random_samples",
    "round_robin_longest",
    "round_robin_shortest",
]
