"""Starting over: repeat at its place in a pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeVar

from penstock.context import Context
from penstock.errors import Origin
from penstock.stages.run import Run, State, Ticket
from penstock.stages.stage import Stage

T = TypeVar("T")


class repeat(Stage[T, T]):
    """Runs everything before it again and again: ``nepochs`` times, or without end.

    Each pass is a new epoch with a new order. Stages behind it see one long stream, so that a
    batch may hold the end of one pass and the beginning of the next. ``nbatches`` ends
    the stream after so many items.

    >>> from penstock import DataPipeline
    >>> list(DataPipeline([1, 2].__iter__, repeat(2)))
    [1, 2, 1, 2]
    """

    def __init__(self, nepochs: int = -1, nbatches: int = -1) -> None:
        self.nepochs, self.nbatches = nepochs, nbatches

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return RepeatRun(self, source, context)


class RepeatRun(Run[T]):
    """:class:`repeat` at work. A ticket is (which pass, the item's ticket)."""

    source: Run[T]
    resumable = True
    passes = 0
    given = 0
    gave = False

    def __init__(self, stage: repeat[T], source: Run[T], context: Context) -> None:
        super().__init__(stage, source, context)
        # Each pass gets an epoch number of its own, in no other epoch of the pipeline used again.
        self.first = context.epoch * (stage.nepochs if stage.nepochs > 0 else 1_000_000)
        self._earlier: tuple[int, Run[T]] | None = None
        if self.first != context.epoch:
            self._restart()

    def __iter__(self) -> Iterator[T]:
        nepochs, nbatches = self.stage.nepochs, self.stage.nbatches
        while not self.ended:
            for item in () if self.given == nbatches else self.source:
                self.gave = True
                self.given += 1
                yield item
                if self.given == nbatches:
                    break
            self.passes += 1
            if not self.gave or self.passes == nepochs or self.given == nbatches:
                self.ended = True
                return
            self.gave = False
            self._restart()

    def _restart(self) -> None:
        old = self.source
        self.source = self._pass(self.passes)
        for before, after in zip(old.chain(), self.source.chain()):
            after.on_skip = before.on_skip

    def _pass(self, number: int) -> Run[T]:
        return self.source.again(dataclasses.replace(self.context, epoch=self.first + number))

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self._run_of(ticket[0]).origins(ticket[1])

    def state(self) -> State:
        return [self.passes, self.given, self.gave, self.source.saved()]

    def restore(self, state: State) -> None:
        self.passes, self.given, self.gave, source = state
        if self.passes:
            self._restart()
        self.source.take(source)

    def fetch(self, ticket: Ticket) -> T:
        return self._run_of(ticket[0]).fetch(ticket[1])  # type: ignore[no-any-return]

    def _run_of(self, number: int) -> Run[T]:
        """The stages of a pass: the one at hand, or an earlier one whose items still wait."""
        if number == self.passes:
            return self.source
        if self._earlier is None or self._earlier[0] != number:
            self._earlier = (number, self._pass(number))
        return self._earlier[1]

    @property
    def ticket(self) -> Ticket:
        return (self.passes, self.source.ticket)

    def origin(self, ticket: Ticket) -> Origin | None:
        return self._run_of(ticket[0]).origin(ticket[1]) if ticket is not None else None
