"""Shuffling through a buffer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeVar

from penstock.context import Context, epoch_seed
from penstock.errors import PipelineError
from penstock.handlers import Handler
from penstock.stages.stage import Run, Stage, Ticket

T = TypeVar("T")


class shuffle(Stage[T, T]):
    """Gives the items in random order, through a buffer of ``bufsize`` items.

    The first item comes when ``initial`` items are there; the buffer then grows by taking two for
    each one given. The order is another one every epoch and depends only on the
    seed, the epoch and the place in the pipeline. With ``seed`` the first epoch is that of
    WebDataset. ``rng`` is a ``random.Random`` of one's own instead, used as it comes.

    >>> list(shuffle(bufsize=2, seed=0)(iter(range(6))))
    [1, 2, 0, 4, 5, 3]
    """

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
            raise PipelineError("shuffle: give a seed or an rng, not both")
        self.bufsize = int(bufsize if size is None else size)
        self.initial = min(initial, self.bufsize)
        self.rng, self.seed = rng, seed

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return ShuffleRun(self, source, context)


class detshuffle(shuffle[T]):
    """A shuffle whose epochs are numbered by the stage itself: ``epoch + 1`` is the next one.

    >>> twice = detshuffle(5)
    >>> list(twice(iter(range(10)))), list(twice(iter(range(10))))
    ([3, 4, 0, 2, 8, 5, 9, 1, 7, 6], [1, 5, 0, 2, 6, 3, 9, 4, 7, 8])
    """

    def __init__(
        self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1
    ) -> None:
        super().__init__(bufsize, initial)
        self.det_seed, self.epoch = seed, epoch

    def start(self, source: Run[T], context: Context) -> Run[T]:
        # In a pipeline the pipeline counts the epochs, also across the workers of a loader.
        self.epoch = max(self.epoch + 1, context.epoch)
        return ShuffleRun(self, source, context)


class ShuffleRun(Run[T]):
    """A shuffle at work: keeps items with their tickets, and the generator."""

    source: Run[T]
    _ticket: Ticket = None

    def __init__(self, stage: shuffle[T], source: Run[T], context: Context) -> None:
        super().__init__(stage, source, context)
        if isinstance(stage, detshuffle):
            self.rng = random.Random(int(stage.det_seed) + stage.epoch)
        elif stage.seed is not None:
            self.rng = random.Random(epoch_seed(int(stage.seed), context.epoch))
        else:
            self.rng = stage.rng or context.rng("shuffle", self.depth, *self.place)

    def __iter__(self) -> Iterator[T]:
        source, bufsize, initial = self.source, self.stage.bufsize, self.stage.initial
        if bufsize < 2:
            for item in source:
                self._ticket = source.ticket
                yield item
            return
        draw = self.rng.getrandbits
        buffer: list[tuple[T, Ticket]] = []
        items = iter(source)
        for item in items:
            buffer.append((item, source.ticket))
            if len(buffer) < bufsize:
                for item in items:
                    buffer.append((item, source.ticket))
                    break
            if len(buffer) >= initial:
                yield self._pick(buffer, draw)
        while buffer:
            yield self._pick(buffer, draw)

    def _pick(self, buffer: list[tuple[T, Ticket]], draw: object) -> T:
        size = len(buffer)
        place = self.rng.randrange(size)
        item, self._ticket = buffer[place]
        buffer[place] = buffer[-1]
        buffer.pop()
        return item

    @property
    def ticket(self) -> Ticket:
        return self._ticket
