"""Shards drawn with replacement: an endless stream for training without exact epochs."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock import env
from penstock.context import Context
from penstock.errors import PipelineError
from penstock.stages.run import Run, State, Ticket, as_count
from penstock.stages.sources.shard_list import ListedUrls, Shard, ShardListRun, Urls, keep_urls
from penstock.stages.stage import Source, Stage
from penstock.storage.urls import expand_urls

logger = logging.getLogger("penstock.stages")


class ResampledShards(Source[Shard], ListedUrls):
    """Shards drawn with replacement, without end (or ``nshards`` of them).

    Every rank, worker and epoch draws a different sequence, fixed by the seed.
    ``deterministic=True`` draws the numbers that WebDataset draws for the same seed.
    ``worker_seed`` is a function that returns a different number for every worker. The attribute
    ``epoch`` is the number of the last pass begun, -1 before the first. Two lists of equal length
    draw the same numbers for the same seed: use different seeds.

    >>> from itertools import islice
    >>> len(list(islice(ResampledShards(["a.tar", "b.tar"]), 5)))
    5
    """

    splits = True

    def __init__(
        self,
        urls: Urls,
        nshards: int = sys.maxsize,
        seed: int = 0,
        worker_seed: Callable[[], int] | None = None,
        deterministic: bool = False,
        max_urls: int = 1_000_000,
        empty_check: bool = True,
    ) -> None:
        self.urls = expand_urls(urls)
        keep_urls(self, urls)
        if len(self._urls) > max_urls:
            raise PipelineError(f"{len(self._urls)} shards are more than max_urls={max_urls}")
        self.nshards, self.seed, self.worker_seed = nshards, seed, worker_seed
        self.deterministic = deterministic
        self.epoch = -1
        self.endless = nshards == sys.maxsize

    def start(self, source: Run[None] | None, context: Context) -> Run[Shard]:
        apart = self.worker_seed() if self.worker_seed else context.rank * 1000 + context.worker
        if context.lane is not None:
            apart = context.lane
        if self.deterministic:
            rng = random.Random(webdataset_seed(apart, context.epoch, self.seed))
        else:
            rng = context.rng("resample", self.seed, apart)
        if env.flag("WDS_SHOW_SEED"):
            logger.warning("ResampledShards: seed %s, worker %s", self.seed, apart)
        run = ShardListRun(self, context, self._draw(rng, context.epoch))
        run.stream_id, run.dealt = context.stream_id, True
        return run

    def _draw(self, rng: random.Random, epoch: int) -> Iterator[int]:
        self.epoch = epoch
        for _ in range(self.nshards):
            yield rng.randint(0, len(self.urls) - 1)


def webdataset_seed(*numbers: int) -> int:
    """Return the seed that WebDataset computes from a worker's number, the epoch and a seed."""
    seed = 0
    for number in numbers:
        seed = (seed * 31 + hash(number)) & 0x7FFFFFFF
    return seed


class resampled(Stage[Any, Any]):
    """Draws with replacement from the items of its (finite) source, ``n`` times.

    >>> set(resampled(10)(iter("ab"))) <= {"a", "b"}
    True
    """

    keeps_ranks_equal = True

    def __init__(self, n: int = sys.maxsize) -> None:
        self.n = n
        self.endless = n == sys.maxsize

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return ResampledRun(self, source, context)


class ResampledRun(Run[Any]):
    """Runs :class:`resampled`. It reads its whole source first; its state is a number of draws."""

    source: Run[Any]
    resumable = True
    _ticket: Ticket = None
    given = 0
    _size = 1  # the number of items to draw from

    def __init__(self, stage: resampled, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        self.dealt = True  # every lane draws separately
        self.endless = stage.endless

    def __iter__(self) -> Iterator[Any]:
        items = [(item, self.source.ticket) for item in self.source]
        if not items:
            raise PipelineError("resampled: there is nothing to draw from")
        self.stream_id, self._size = self.context.stream_id, len(items)
        draws = self.context.draws("resampled", self.depth, *self.stream_id)
        draws.count = self.given
        for self.given in range(self.given + 1, self.stage.n + 1):
            item, self._ticket = items[draws.below(len(items))]
            yield item

    @property
    def ticket(self) -> Ticket:
        return self._ticket

    def full_passes(self) -> int | None:
        return self.given // self._size if self.endless else None

    def state(self) -> State:
        return self.given

    def restore(self, state: State) -> None:
        self.given = as_count(state)


def non_empty(source: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of the source; raise an error if there is none.

    >>> list(non_empty([1, 2]))
    [1, 2]
    """
    count = 0
    for item in source:
        count += 1
        yield item
    if count == 0:
        raise PipelineError("the pipeline stage returned no item at all")
