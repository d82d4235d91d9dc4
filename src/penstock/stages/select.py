"""Stages that choose samples."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from penstock.context import Context
from penstock.errors import PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.drop_guard import Dropping
from penstock.stages.run import CountedRun, Run
from penstock.stages.stage import Each, Stage

T = TypeVar("T")


class select(Each[T, T]):
    """Keeps the samples for which ``predicate(sample)`` is true.

    >>> list(select(lambda x: x > 1)([1, 2, 3]))
    [2, 3]
    """

    keeps_count = False

    def __init__(self, predicate: Callable[[T], Any], handler: Handler = reraise_exception) -> None:
        self.predicate, self.handler = predicate, handler

    def apply(self, item: T) -> T | None:
        return item if self.predicate(item) else None


class rsample(Stage[T, T]):
    """Keeps each sample with probability ``p``; every epoch draws other random numbers.

    >>> list(rsample(1.0)([1, 2])), list(rsample(0.0)([1, 2]))
    ([1, 2], [])
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise PipelineError(f"rsample: p must be between 0 and 1, not {p}")
        self.p = p

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return RandomSampleRun(self, source, context)


class RandomSampleRun(CountedRun[T]):
    """Runs :class:`rsample`: draws one random number for each item, kept or not."""

    def __init__(self, stage: rsample[T], source: Run[T], context: Context) -> None:
        super().__init__(stage, source, context)
        self.draws = context.draws("rsample", self.depth, *self.stream_id)
        self.drops_at_random = stage.p > 0

    def __iter__(self) -> Iterator[T]:
        p, draw, self.draws.count = self.stage.p, self.draws.random, self.seen
        dropping, dropped = Dropping(self), 0
        counts = dropping.counts
        for item in self.source:
            self.seen += 1
            if draw() < p:
                dropped = 0
                yield item
            elif counts:
                dropped = dropping.more(dropped)
        self.dropped = dropped


class slice(Stage[T, T]):
    """Keeps the items ``start`` to ``stop`` by ``step``, as ``itertools.islice`` does.

    >>> list(slice(1, 4, 2)(iter("abcdef")))
    ['b', 'd']
    """

    keeps_ranks_equal = True

    def __init__(self, *args: int | None) -> None:
        if not 1 <= len(args) <= 3:
            raise PipelineError("slice takes one to three numbers: stop; start, stop; or with step")
        if any(bound is not None and bound < (index == 2) for index, bound in enumerate(args)):
            raise PipelineError(f"slice: {args}: bounds must not be negative, the step at least 1")
        self.bounds = args

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return SliceRun(self, source, context)


class SliceRun(CountedRun[T]):
    """Runs :class:`slice`."""

    def __init__(self, stage: slice[T], source: Run[T], context: Context) -> None:
        super().__init__(stage, source, context)
        if (context.lanes or 1) > 1:
            raise PipelineError(
                "slice counts the items of the whole stream, and a pipeline with lanes has as many "
                "streams as lanes: cut the epoch with with_epoch(n), or leave lanes out"
            )

    def __iter__(self) -> Iterator[T]:
        bounds = builtins.slice(*self.stage.bounds)
        start, stop, step = bounds.start or 0, bounds.stop, bounds.step or 1
        if stop is not None and self.seen >= stop:
            return
        for item in self.source:
            self.seen += 1
            if self.seen > start and (self.seen - 1 - start) % step == 0:
                yield item
            if self.seen == stop:
                return
