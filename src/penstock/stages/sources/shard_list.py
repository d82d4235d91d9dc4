"""The list of shards at the beginning of a pipeline."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from penstock.context import Context, epoch_seed
from penstock.errors import Origin
from penstock.stages.run import Run, State, Ticket, as_count
from penstock.stages.stage import Source
from penstock.storage.listing import is_pattern, look_up
from penstock.storage.urls import expand_urls

Shard = dict[str, Any]
Urls = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class ShardListRun(Run[Shard]):
    """Yields the URLs of a list in a given order. The ticket is the URL's number in the list."""

    resumable = True

    def __init__(self, stage: Any, context: Context, order: Iterable[int]) -> None:
        super().__init__(stage, None, context)
        self.order = order
        self.current = -1
        self.given = 0
        self.endless = getattr(stage, "endless", False)

    def __iter__(self) -> Iterator[Shard]:
        urls = self.stage.urls
        for self.current in islice(self.order, self.given, None):
            self.given += 1
            yield {"url": urls[self.current]}

    def state(self) -> State:
        return self.given

    def restore(self, state: State) -> None:
        self.given = as_count(state)

    def full_passes(self) -> int | None:
        return self.given // len(self.stage.urls) if self.endless else None

    def is_empty(self) -> bool:
        return self.given == 0

    def fetch(self, ticket: Ticket) -> Shard:
        return {"url": self.stage.urls[as_count(ticket)]}

    @property
    def ticket(self) -> Ticket:
        return self.current

    def origin(self, ticket: Ticket) -> Origin | None:
        return Origin(self.stage.urls[ticket]) if ticket is not None and ticket >= 0 else None


class ListedUrls:
    """The ``urls`` of a shard list. Remote patterns are looked up on first use."""

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
    """Replace an iterator in a stage's arguments by its URLs: it is used up, and not picklable."""
    if isinstance(urls, Iterator):
        named = {name: value for name, value in stage.kwargs.items() if name != "urls"}
        stage.args, stage.kwargs = (stage.urls, *stage.args[1:]), named


class SimpleShardList(Source[Shard], ListedUrls):
    """Yields the shards of ``urls``, one after another, as ``{"url": …}``.

    ``urls`` is a string with ``{000..099}``, ``::`` and ``${VAR}``, or a list. Remote patterns
    (``s3://bucket/train/*.tar``, or a folder ending in ``/``) are looked up on first use.
    With a ``seed`` the shards are shuffled, in another order every epoch. If the attribute
    ``seed`` is assigned later, the order is that of this seed until it is assigned again.

    >>> list(SimpleShardList(["a.tar", "b.tar"]))
    [{'url': 'a.tar'}, {'url': 'b.tar'}]
    """

    def __init__(self, urls: Urls, seed: int | None = None) -> None:
        self.urls = expand_urls(urls)
        self._seed, self._assigned = seed, False
        keep_urls(self, urls)

    @property
    def seed(self) -> int | None:
        return self._seed

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self._seed, self._assigned = seed, True
        if type(self).__init__ is SimpleShardList.__init__:  # for repr and saved states
            urls = self.args[0] if self.args else self.kwargs["urls"]
            self.args, self.kwargs = (urls,), {"seed": seed}

    def start(self, source: Run[None] | None, context: Context) -> Run[Shard]:
        order = list(range(len(self.urls)))
        if self._seed is not None:
            seed = int(self._seed)
            order_seed = seed if self._assigned else epoch_seed(seed, context.epoch)
            random.Random(order_seed).shuffle(order)
        return ShardListRun(self, context, order)

    def __len__(self) -> int:
        return len(self.urls)
