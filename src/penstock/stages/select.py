"""Choosing samples."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from penstock.context import Context
from penstock.errors import PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.run import Run, State
from penstock.stages.stage import Each, Stage

T = TypeVar("T")


class select(Each[T, T]):
    """Keeps the samples for which ``predicate`` is true.

    >>> list(select(lambda x: x > 1)([1, 2, 3]))
    [2, 3]
    """

    keeps_count = False

    def __init__(self, predicate: Callable[[T], Any], handler: Handler = reraise_exception) -> None:
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
    """:class:`rsample` at work: keeps how many it has drawn for."""

    source: Run[T]
    resumable = True

    def __init__(self, stage: rsample[T], source: Run[T], context: Context) -> None:
        super().__init__(stage, source, context)
        self.draws = context.draws("rsample", self.depth, *self.place)

    def __iter__(self) -> Iterator[T]:
        p, draw = self.stage.p, self.draws.random
        for item in self.source:
            if draw() < p:
                yield item

    def state(self) -> State:
        return [self.draws.count, self.source.saved()]

    def restore(self, state: State) -> None:
        self.draws.count, source = state
        self.source.take(source)


class slice(Stage[T, T]):
    """Items ``start`` to ``stop`` by ``step``, as ``itertools.islice`` takes them.

    >>> list(slice(1, 4, 2)(iter("abcdef")))
    ['b', 'd']
    """

    def __init__(self, *args: int | None) -> None:
        if not 1 <= len(args) <= 3:
            raise PipelineError("slice takes one to three numbers: stop; start, stop; or with step")
        if any(bound is not None and bound < (place == 2) for place, bound in enumerate(args)):
            raise PipelineError(f"slice: {args}: bounds must not be negative, the step at least 1")
        self.bounds = args

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return SliceRun(self, source, context)


class SliceRun(Run[T]):
    """:class:`slice` at work: keeps how many items it has seen."""

    source: Run[T]
    resumable = True
    seen = 0

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

    def state(self) -> State:
        return [self.seen, self.source.saved()]

    def restore(self, state: State) -> None:
        self.seen, source = state
        self.source.take(source)
