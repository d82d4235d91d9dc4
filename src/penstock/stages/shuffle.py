"""Stages that shuffle through a buffer."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import TypeVar

from penstock.context import Context, epoch_seed
from penstock.errors import Origin, PipelineError
from penstock.handlers import Handler
from penstock.rng import Generator, MersenneRng, rng_state, set_rng_state
from penstock.stages.run import Run, State, Ticket, fetch_again
from penstock.stages.stage import Stage

T = TypeVar("T")


class shuffle(Stage[T, T]):
    """Yields the items in random order, through a buffer of ``bufsize`` items.

    The first item comes when the buffer has ``initial`` items; it then grows by taking two items
    for each one yielded. The order differs in every epoch and depends only on the seed, the epoch
    and the position in the pipeline. With ``seed`` the first epoch is in WebDataset's order.
    ``rng`` is a ``random.Random`` to use instead.

    >>> list(shuffle(bufsize=2, seed=0)(iter(range(6))))
    [1, 2, 0, 4, 5, 3]
    """

    keeps_count = True

    def __init__(
        self,
        bufsize: int = 1000,
        initial: int = 100,
        rng: random.Random | None = None,
        seed: int | None = None,
        handler: Handler | None = None,
        *,
        size: int | None = None,
    ) -> None:
        if rng is not None and seed is not None:
            raise PipelineError("shuffle: pass a seed or an rng, not both")
        self.bufsize = int(bufsize if size is None else size)
        self.initial = min(initial, self.bufsize)
        self.rng, self.seed = rng, seed

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return ShuffleRun(self, source, context)


class detshuffle(shuffle[T]):
    """A shuffle whose order follows from ``seed`` plus the number of the epoch.

    A pipeline counts the epochs; called on an iterator, the stage counts its calls, from
    ``epoch + 1``. The attribute ``epoch`` is the number of the last pass begun. It follows the
    pipeline: to choose the epoch, call the pipeline's ``set_epoch``.

    >>> twice = detshuffle(5)
    >>> list(twice(iter(range(10)))), list(twice(iter(range(10))))
    ([3, 4, 0, 2, 8, 5, 9, 1, 7, 6], [1, 5, 0, 2, 6, 3, 9, 4, 7, 8])
    """

    def __init__(
        self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1
    ) -> None:
        super().__init__(bufsize, initial)
        # A pipeline counts the epochs, also across the workers of a loader.
        self.det_seed, self.first, self.epoch = int(seed), epoch + 1, epoch

    def call_context(self) -> Context:
        if self._context is not None:
            return super().call_context()
        self.epoch += 1
        return dataclasses.replace(super().call_context(), epoch=self.epoch - self.first)


class ShuffleRun(Run[T]):
    """Runs a shuffle: keeps items with their tickets, and the state of its generator.

    A saved state has only the tickets; after a resume, an item is read again when it is chosen.
    """

    source: Run[T]
    resumable = True
    _ticket: Ticket = None

    def __init__(self, stage: shuffle[T], source: Run[T], context: Context) -> None:
        super().__init__(stage, source, context)
        self.buffer: list[tuple[T | Absent, Ticket]] = []
        # A buffer's size is that of all lanes together, once the data is split between them.
        lanes = context.lanes or 1 if self.stream_id else 1
        self.bufsize = max(stage.bufsize // lanes, min(stage.bufsize, 1))
        self.initial = min(max(stage.initial // lanes, 1), self.bufsize)
        self.rng: Generator
        if isinstance(stage, detshuffle):
            self.rng = MersenneRng(random.Random(stage.det_seed + stage.first + context.epoch))
        elif stage.seed is not None:
            self.rng = MersenneRng(random.Random(epoch_seed(int(stage.seed), context.epoch)))
        elif stage.rng is not None:
            self.rng = MersenneRng(stage.rng)
        else:
            self.rng = context.draws("shuffle", self.depth, *self.stream_id)

    def __iter__(self) -> Iterator[T]:
        if isinstance(self.stage, detshuffle):
            self.stage.epoch = self.stage.first + self.context.epoch
        source, buffer, below = self.source, self.buffer, self.rng.below
        bufsize, initial = self.bufsize, self.initial
        if bufsize < 2:
            for item in source:
                self._ticket = source.ticket
                yield item
            return
        items = iter(source)
        for item in items:
            buffer.append((item, source.ticket))
            if len(buffer) < bufsize:
                for item in items:
                    buffer.append((item, source.ticket))
                    break
            if len(buffer) >= initial:
                yield self._pick(below(len(buffer)))
        while buffer:
            yield self._pick(below(len(buffer)))

    def _pick(self, index: int) -> T:
        buffer = self.buffer
        item, self._ticket = buffer[index]
        buffer[index] = buffer[-1]
        buffer.pop()
        return fetch_again(self.source, self._ticket) if item is ABSENT else item  # type: ignore[return-value]

    def defer(self) -> Run[T] | None:
        return self.source.defer()

    @property
    def ticket(self) -> Ticket:
        return self._ticket

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.source.origins(ticket)

    def state(self) -> State:
        tickets = [ticket for _, ticket in self.buffer]
        return {"rng": rng_state(self.rng), "buffer": tickets, "source": self.source.saved()}

    def restore(self, state: State) -> None:
        set_rng_state(self.rng, state["rng"])
        self.buffer[:] = [(ABSENT, ticket) for ticket in state["buffer"]]
        self.source.take(state["source"])


class Absent:
    """Marks an item that is read again when it is needed."""


ABSENT = Absent()
