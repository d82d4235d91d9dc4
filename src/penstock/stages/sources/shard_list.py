"""Where a pipeline begins: the list of shards."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from penstock.context import Context, epoch_seed
from penstock.errors import Origin
from penstock.stages.run import Run, State, Ticket
from penstock.stages.stage import Source
from penstock.storage.listing import is_pattern, look_up
from penstock.storage.urls import expand_urls

Shard = dict[str, Any]
Urls = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class ShardListRun(Run[Shard]):
    """A list of URLs at work, in the order given. The ticket is the URL's number in the list."""

    resumable = True

    def __init__(self, stage: Any, context: Context, order: Iterable[int]) -> None:
        super().__init__(stage, None, context)
        self.order = order
        self.current = -1
        self.given = 0

    def __iter__(self) -> Iterator[Shard]:
        urls = self.stage.urls
        for self.current in islice(self.order, self.given, None):
            self.given += 1
            yield {"url": urls[self.current]}

    def state(self) -> State:
        return self.given

    def restore(self, state: State) -> None:
        self.given = state

    def fetch(self, ticket: Ticket) -> Shard:
        return {"url": self.stage.urls[ticket]}

    @property
    def ticket(self) -> Ticket:
        return self.current

    def origin(self, ticket: Ticket) -> Origin | None:
        return Origin(self.stage.urls[ticket])


class ListedUrls:
    """The ``urls`` of a shard list. Remote patterns are looked up when the list is first needed."""

    _urls: list[str]
    _found = False

    @property
    def urls(self) -> list[str]:
        if not self._found:
            self._urls, self._found = look_up(self._urls), True
        return self._urls

    @urls.setter
    def urls(self, urls: list[str]) -> None:
        self._urls, self._found = urls, not any(map(is_pattern, urls))


def keep_urls(stage: Any, urls: Urls) -> None:
    """Remember the URLs in place of an iterator that gave them: it is used up and cannot travel."""
    if isinstance(urls, Iterator):
        named = {name: value for name, value in stage.kwargs.items() if name != "urls"}
        stage.args, stage.kwargs = (stage.urls, *stage.args[1:]), named


class SimpleShardList(Source[Shard], ListedUrls):
    """The shards of ``urls``, one after another, as ``{"url": …}``.

    ``urls`` is a string with ``{000..099}``, ``::`` and ``${VAR}``, or a list. Remote patterns
    (``s3://bucket/train/*.tar``, or a folder ending in ``/``) are looked up on first use.
    With a ``seed`` the shards are shuffled, in another order every epoch.

    >>> list(SimpleShardList(["a.tar", "b.tar"]))
    [{'url': 'a.tar'}, {'url': 'b.tar'}]
    """

    def __init__(self, urls: Urls, seed: int | None = None) -> None:
        self.urls = expand_urls(urls)
        self.seed = seed
        keep_urls(self, urls)

    def start(self, source: Run[None] | None, context: Context) -> Run[Shard]:
        order = list(range(len(self.urls)))
        if self.seed is not None:
            random.Random(epoch_seed(int(self.seed), context.epoch)).shuffle(order)
        return ShardListRun(self, context, order)

    def __len__(self) -> int:
        return len(self.urls)
