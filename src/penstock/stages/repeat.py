"""The stage that repeats everything before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeVar

from penstock.context import Context
from penstock.errors import Origin
from penstock.stages.drop_guard import check_empty_pass
from penstock.stages.run import Run, State, Ticket, as_count
from penstock.stages.stage import Stage

T = TypeVar("T")
ENDLESS_PASSES = 1_000_000
"""Numbers of epochs that an endless repeat reserves for the passes of each of its epochs."""


class repeat(Stage[T, T]):
    """Repeats everything before it, ``nepochs`` times or without end.

    Each pass is a new epoch with a new order. Stages after it see one long stream, so that a
    batch may hold the end of one pass and the beginning of the next. ``nbatches`` ends the
    stream after this many items.

    >>> from penstock import DataPipeline
    >>> list(DataPipeline([1, 2].__iter__, repeat(2)))
    [1, 2, 1, 2]
    """

    keeps_ranks_equal = True

    def __init__(self, nepochs: int = -1, nbatches: int = -1) -> None:
        self.nepochs, self.nbatches = nepochs, nbatches

    @property
    def endless(self) -> bool:
        """True if the stream has no end."""
        return self.nepochs <= 0 and self.nbatches < 0

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return RepeatRun(self, source, context)


class PassesRun(Run[T]):
    """A run of several passes over the same stages. A ticket is (number of the pass, ticket)."""

    resumable = True
    passes = 0
    given = 0
    gave = False
    _earlier: tuple[int, Run[T]] | None = None

    def current(self) -> Run[T]:
        """Return the run of the current pass."""
        raise NotImplementedError

    def start_pass(self, number: int, counts_drops: bool = False) -> Run[T]:
        """Return a new run of that pass."""
        raise NotImplementedError

    def begin_pass(self, counts_drops: bool = False) -> None:
        """Replace the current run by one of pass number ``passes``."""
        raise NotImplementedError

    def run_of(self, number: int) -> Run[T]:
        """Return the run of a pass: the current one, or an earlier one with items in buffers."""
        if number == self.passes:
            return self.current()
        if self._earlier is None or self._earlier[0] != number:
            self._earlier = (number, self.start_pass(number))
        return self._earlier[1]

    def is_empty(self) -> bool:
        return self.given == 0 and self.current().is_empty()

    def state(self) -> State:
        return [self.passes, self.given, self.gave, self.current().saved()]

    def restore(self, state: State) -> None:
        passes, given, gave, current = state
        self.passes, self.given, self.gave = as_count(passes), as_count(given), bool(gave)
        if self.passes:
            self.begin_pass()
        self.current().take(current)

    def fetch(self, ticket: Ticket) -> T:
        item: T = self.run_of(ticket[0]).fetch(ticket[1])
        return item

    def origin(self, ticket: Ticket) -> Origin | None:
        return self.run_of(ticket[0]).origin(ticket[1]) if ticket is not None else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.run_of(ticket[0]).origins(ticket[1]) if ticket is not None else []


class RepeatRun(PassesRun[T]):
    """Runs :class:`repeat`."""

    source: Run[T]

    def __init__(self, stage: repeat[T], source: Run[T], context: Context) -> None:
        super().__init__(stage, source, context)
        # Each pass gets an epoch number that no other epoch of the pipeline uses.
        self.endless = stage.nbatches < 0 and (stage.nepochs <= 0 or source.endless)
        self.first = context.epoch * (stage.nepochs if stage.nepochs > 0 else ENDLESS_PASSES)
        if self.first != context.epoch:
            self.begin_pass()

    def __iter__(self) -> Iterator[T]:
        nepochs, nbatches = self.stage.nepochs, self.stage.nbatches
        empty = 0  # consecutive passes that yielded nothing
        while not self.ended:
            for item in () if self.given == nbatches else self.source:
                self.gave = True
                self.given += 1
                yield item
                if self.given == nbatches:
                    break
            self.passes += 1
            over = self.passes == nepochs or self.given == nbatches
            if over or (not self.gave and self.source.is_empty()):
                self.ended = True
                return
            empty = 0 if self.gave else empty + 1
            if empty and nepochs <= 0:
                check_empty_pass(self.source, empty)
            self.gave = False
            self.begin_pass(counts_drops=empty > 0)

    def current(self) -> Run[T]:
        return self.source

    def begin_pass(self, counts_drops: bool = False) -> None:
        old = self.source
        self.source = self.start_pass(self.passes, counts_drops)
        for before, after in zip(old.chain(), self.source.chain()):
            after.on_skip, after.on_error = before.on_skip, before.on_error

    def start_pass(self, number: int, counts_drops: bool = False) -> Run[T]:
        epoch = self.first + number
        context = dataclasses.replace(self.context, epoch=epoch, counts_drops=counts_drops)
        return self.source.again(context)

    def full_passes(self) -> int | None:
        inside = self.source.full_passes() if self.stage.nbatches < 0 else None
        return self.passes if self.stage.endless and inside is None else inside

    @property
    def ticket(self) -> Ticket:
        return (self.passes, self.source.ticket)
