"""Shard lists of version 0.1: they shuffle the shards and split them by rank and worker."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.compat.chains import Composable
from penstock.context import Context
from penstock.redact import canonical_url
from penstock.stages.run import IterableRun, Run, Ticket
from penstock.stages.sources.shard_list import Shard, ShardListRun, Urls
from penstock.stages.sources.split import split_by_node, split_by_worker
from penstock.stages.stage import Source, Stage
from penstock.storage.urls import expand_urls

logger = logging.getLogger("penstock.stages")


class PytorchShardList(Source[Shard], Composable):
    """The shards of ``urls`` that belong to this rank and this worker.

    With ``epoch_shuffle`` all ranks shuffle all shards in the same way before they are split; with
    ``shuffle`` each worker then shuffles its own. Both orders change every epoch.

    >>> len(list(PytorchShardList("train-{000..009}.tar")))
    10
    """

    splits = True

    def __init__(
        self,
        urls: Urls,
        epoch_shuffle: bool = False,
        shuffle: bool = True,
        split_by_worker: bool = True,
        split_by_node: bool = True,
        verbose: bool = False,
    ) -> None:
        self.urls = expand_urls(urls)
        self.epoch_shuffle, self.shuffle, self.verbose = epoch_shuffle, shuffle, verbose
        self.splitters: list[Any] = choose_splitters(split_by_node, split_by_worker)
        self.epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Use the order of this epoch instead of the pipeline's epoch."""
        self.epoch = epoch

    def shard(self, url: str, context: Context) -> Shard:
        """Return the item for a URL: its location, and who reads it."""
        return {
            "url": url,
            "__url__": canonical_url(url),
            "__worker__": str((context.worker, context.num_workers)),
            "__rank__": str((context.rank, context.world_size)),
            "__nodeinfo__": str((socket.gethostname(), os.getpid())),
        }

    def start(self, source: Run[None] | None, context: Context) -> Run[Shard]:
        return SplitListRun(self, context, self.order(context))

    def order(self, context: Context) -> list[int]:
        """Return the indices of the URLs of this rank and worker, in the epoch's order."""
        epoch = context.epoch if self.epoch is None else self.epoch
        common = Context(context.seed, epoch)
        order = list(range(len(self.urls)))
        if self.epoch_shuffle:
            common.rng("shards").shuffle(order)
        for splitter in self.splitters:
            order = self._apply_splitter(splitter, order, context)
        if self.shuffle:
            common.rng("shards", context.rank, context.worker).shuffle(order)
        if self.verbose:
            logger.info("%s: epoch %s, %s shards for %s", self.name, epoch, len(order), context)
        return order

    def _apply_splitter(self, splitter: Any, order: list[int], context: Context) -> list[int]:
        if isinstance(splitter, Stage):
            return list(splitter.start(IterableRun(order, None, context), context))
        indices = {url: index for index, url in enumerate(self.urls)}
        chosen: Iterable[str] = splitter([self.urls[index] for index in order])
        return [indices[url] for url in chosen]

    def __len__(self) -> int:
        return len(self.urls)


class ShardList(PytorchShardList):
    """The shards of ``urls`` that belong to this rank and this worker.

    ``nodesplitter`` and ``splitter`` are True, False, or functions that select from an iterator.
    A number as ``length`` is returned by ``len()``.

    >>> list(ShardList("dataset-{000..001}.tar")) == list(
    ...     ShardList(["dataset-000.tar", "dataset-001.tar"])
    ... )
    True
    """

    def __init__(
        self,
        urls: Urls,
        shuffle: bool = False,
        nodesplitter: Any = True,
        splitter: Any = True,
        length: int | None = None,
    ) -> None:
        self.urls = expand_urls(urls)
        self.epoch_shuffle, self.shuffle, self.verbose = False, shuffle, False
        self.splitters = choose_splitters(nodesplitter, splitter)
        self.epoch = None
        self.length = length

    def shard(self, url: str, context: Context) -> Shard:
        return {"url": url}

    def __len__(self) -> int:
        return len(self.urls) if self.length is None else self.length


def choose_splitters(by_node: Any, by_worker: Any) -> list[Any]:
    """Return the splitters: the library's for True, none for a false value."""
    chosen = ((by_node, split_by_node), (by_worker, split_by_worker))
    return [own if given is True else given for given, own in chosen if given]


class SplitListRun(ShardListRun):
    """A run of a shard list that has been split."""

    def __init__(self, stage: PytorchShardList, context: Context, order: list[int]) -> None:
        super().__init__(stage, context, order)
        self.stream_id = (context.rank, context.worker)

    def __iter__(self) -> Iterator[Shard]:
        for shard in super().__iter__():
            yield self.stage.shard(shard["url"], self.context)

    def fetch(self, ticket: Ticket) -> Shard:
        shard: Shard = self.stage.shard(self.stage.urls[ticket], self.context)
        return shard
