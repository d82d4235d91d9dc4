"""Choosing samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from penstock.context import Context
from penstock.errors import PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.stage import Each, Run, Stage

T = TypeVar("T")


class select(Each[T, T]):
    """Keeps the samples for which ``predicate`` is true.

    >>> list(select(lambda x: x > 1)([1, 2, 3]))
    [2, 3]
    """

    def __init__(
        self, predicate: Callable[[T], Any], handler: Handler = reraise_exception
    ) -> None:
        self.predicate, self.handler = predicate, handler

    def apply(self, item: T) -> T | None:
        return item if self.predicate(item) else None


class rsample(Stage[T, T]):
    """Keeps each sample with probability ``p``, by a generator of the epoch's own.

    >>> list(rsample(1.0)([1, 2])), list(rsample(0.0)([1, 2]))
    ([1, 2], [])
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise PipelineError(f"rsample: p must lie between 0 and 1, not {p}")
        self.p = p

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return RandomSampleRun(self, source, context)


class RandomSampleRun(Run[T]):
    """:class:`rsample` at work."""

    source: Run[T]

    def __iter__(self) -> Iterator[T]:
        p = self.stage.p
        draw = self.context.rng("rsample", self.depth, *self.place).random
        for item in self.source:
            if draw() < p:
                yield item


class slice(Stage[T, T]):
    """Items ``start`` to ``stop`` by ``step``, as ``itertools.islice`` takes them.

    >>> list(slice(1, 4, 2)(iter("abcdef")))
    ['b', 'd']
    """

    def __init__(self, *args: int | None) -> None:
        if not 1 <= len(args) <= 3:
            raise PipelineError("slice takes one to three numbers: stop; start, stop; or with step")
        self.bounds = args

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return SliceRun(self, source, context)


class SliceRun(Run[T]):
    """:class:`slice` at work."""

    source: Run[T]

    def __iter__(self) -> Iterator[T]:
        return islice(iter(self.source), *self.stage.bounds)
