"""Where a pipeline begins: the list of shards."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.context import Context, epoch_seed
from penstock.errors import Origin
from penstock.stages.stage import Run, Source, Ticket
from penstock.urls import expand_urls

Shard = dict[str, Any]
Urls = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class ShardListRun(Run[Shard]):
    """A list of URLs at work, in the order given. The ticket is the URL's number in the list."""

    def __init__(self, stage: Any, context: Context, order: Iterable[int]) -> None:
        super().__init__(stage, None, context)
        self.order = order
        self.current = -1

    def __iter__(self) -> Iterator[Shard]:
        urls = self.stage.urls
        for self.current in self.order:
            yield {"url": urls[self.current]}

    @property
    def ticket(self) -> Ticket:
        return self.current

    def origin(self, ticket: Ticket) -> Origin | None:
        return Origin(self.stage.urls[ticket])


class SimpleShardList(Source[Shard]):
    """The shards of ``urls``, one after another, as ``{"url": …}``.

    ``urls`` is a string with ``{000..099}``, ``::`` and ``${VAR}``, or a list.
    With a ``seed`` the shards are shuffled, in another order every epoch.

    >>> list(SimpleShardList(["a.tar", "b.tar"]))
    [{'url': 'a.tar'}, {'url': 'b.tar'}]
    """

    def __init__(self, urls: Urls, seed: int | None = None) -> None:
        self.urls = expand_urls(urls)
        self.seed = seed

    def start(self, source: Run[None] | None, context: Context) -> Run[Shard]:
        order = list(range(len(self.urls)))
        if self.seed is not None:
            random.Random(epoch_seed(int(self.seed), context.epoch)).shuffle(order)
        return ShardListRun(self, context, order)

    def __len__(self) -> int:
        return len(self.urls)
