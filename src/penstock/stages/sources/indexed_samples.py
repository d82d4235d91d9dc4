"""Samples by index: any order, any place, without a buffer."""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.shards.index import Index, SampleReader, open_index
from penstock.shards.sample_reader import Sample
from penstock.stages.sources.epoch_order import Order, Rows
from penstock.stages.run import Run, State, Ticket
from penstock.stages.sources.shard_list import ListedUrls, Urls
from penstock.stages.stage import Source
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import Patience
from penstock.storage.urls import expand_urls

WINDOW = 16
SOON, SOON_BYTES = 64, 64 << 20
"""Of remote shards so many samples of a lane are read at a time, and so many bytes of all lanes."""
KEPT_ORDERS = 3
"""A buffer behind may hold samples of the epoch before, which are fetched again by their places."""
ENDS = ("exact", "drop", "pad")


class IndexedSamples(Source[Sample], ListedUrls):
    """The samples of indexed shards, in an order decided before reading.

    ``index`` is what :func:`penstock.shards.index.open_index` takes; True finds the index beside the
    shards, or makes it. ``window`` is the number of shards whose samples are mixed at a time: 0
    reads in order, the default of 16 mixes well with few open files.
    ``exclude`` leaves samples out: a collection of keys, or a function of the key.

    ``ends`` says what happens where the ranks' shares would differ in length: ``"exact"`` gives
    every sample once, ``"drop"`` leaves out the last few, ``"pad"`` repeats the first few, marked
    with ``__pad__``. The default is exact on one rank and drop on several. Remote shards are kept
    in ``cache``; without one, samples that come soon are read several at a time. ``patience`` is
    as in :class:`~penstock.tarfile_to_samples`.

    >>> from penstock import DataPipeline
    >>> pipeline = DataPipeline(IndexedSamples("train-{000..099}.tar", window=8))
    """

    def __init__(
        self,
        urls: Urls,
        index: Any = True,
        *,
        window: int = WINDOW,
        ends: str | None = None,
        exclude: Iterable[str] | Callable[[str], bool] | None = None,
        handler: Handler = reraise_exception,
        local_paths: bool = False,
        cache: ShardCache | None = None,
        patience: Patience | None = None,
    ) -> None:
        if ends is not None and ends not in ENDS:
            raise PipelineError(f"ends is one of {ENDS}, not {ends!r}")
        if window < 0:
            raise PipelineError(f"window is a number of shards, not {window}")
        if isinstance(exclude, (str, bytes)):
            raise PipelineError(
                f"exclude is a collection of keys or a function of the key, not {exclude!r}: "
                f"say exclude=[{exclude!r}]"
            )
        self.urls = expand_urls(urls)
        self.given_index, self.window, self.ends = index, window, ends
        self.exclude = exclude if exclude is None or callable(exclude) else frozenset(exclude)
        self.handler, self.local_paths = handler, local_paths
        self.cache, self.patience = cache, patience
        self._opened: tuple[Index, SampleReader, Rows | None] | None = None
        self._orders: dict[tuple[int, int], Order] = {}  # by seed and epoch

    def opened(self) -> tuple[Index, SampleReader, Rows | None]:
        """The index, a reader, and the rows that take part; opened when first needed."""
        if self._opened is None:
            index = open_index(self.urls, self.given_index)
            options: dict[str, Any] = {"cache": self.cache, "patience": self.patience}
            reader = SampleReader(index, local_paths=self.local_paths, **options)
            self._opened = (index, reader, self._kept(index))
        return self._opened

    def _kept(self, index: Index) -> Rows | None:
        if self.exclude is None:
            return None
        out = self.exclude if callable(self.exclude) else self.exclude.__contains__
        left_out = np.fromiter((bool(out(key)) for key in index.keys), bool, len(index))
        if not callable(self.exclude):
            known = {index.keys[row] for row in np.flatnonzero(left_out).tolist()}
            _warn_of_unknown(self.exclude - known)
        return np.flatnonzero(~left_out)

    def order(self, seed: int, epoch: int) -> Order:
        """The order of an epoch, shared by all lanes."""
        order = self._orders.get((seed, epoch))
        if order is None:
            index, _, kept = self.opened()
            order = Order(index.starts, window=self.window, seed=seed, epoch=epoch, kept=kept)
            last = list(self._orders.items())[1 - KEPT_ORDERS :]
            self._orders = {**dict(last), order.key: order}  # threads may look at the old one
        return order

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that differs when the data does."""
        index, _, kept = self.opened()
        if kept is None:
            return index.fingerprint
        left = hashlib.blake2b(kept.tobytes(), digest_size=8).hexdigest()
        return f"{index.fingerprint}-{left}"

    def __len__(self) -> int:
        index, _, kept = self.opened()
        return len(index) if kept is None else len(kept)

    def positions(self, context: Context) -> int:
        """How many positions the epoch has on all ranks together, after dropping or padding."""
        count, unit = len(self), context.run * context.world_size
        ends = self.ends
        if ends is None:
            ends = "drop" if context.world_size > 1 and context.countable else "exact"
        if ends == "drop":
            return count // unit * unit
        return -(-count // unit) * unit if ends == "pad" and count else count

    def start(self, source: Run[None] | None, context: Context) -> Run[Sample]:
        return IndexedRun(self, None, context)

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: v for name, v in self.__dict__.items() if name != "fingerprint"}
        return {**kept, "_opened": None, "_orders": {}}


def _warn_of_unknown(keys: frozenset[str]) -> None:
    if not keys:
        return
    first = ", ".join(sorted(map(repr, keys))[:5]) + (", ..." if len(keys) > 5 else "")
    warnings.warn(
        f"the index does not have {len(keys)} of the keys in exclude: {first}; a key is the "
        "member's name without its field, such as 'train/0001'",
        stacklevel=2,
    )


class IndexedRun(Run[Sample]):
    """Indexed reading at work: keeps how many samples the lane has had. A ticket is a position.

    The positions of the epoch are dealt out to the lanes in runs as long as a batch, so that the
    lanes in turn give the batches of the epoch's own order.
    """

    stage: IndexedSamples
    resumable = True

    def __init__(self, stage: IndexedSamples, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.place = context.place
        self.dealt = True
        if context.lane is not None and context.lanes is not None:
            self.lane, self.lanes = context.lane, context.lanes
        else:
            self.lanes = context.world_size * context.num_workers
            self.lane = context.rank + context.world_size * context.worker
        self.given = 0
        self.position = -1
        self._deferred = False
        self._soon: dict[int, Sample] = {}  # of remote shards: read, but not yet given

    def __iter__(self) -> Iterator[Sample]:
        stage, context, run = self.stage, self.context, self.context.run
        order = stage.order(context.seed, context.epoch)
        count, end = len(order), stage.positions(context)
        reader, row, lane, lanes = stage.opened()[1], order.row, self.lane, self.lanes
        read, later = reader.read, self._deferred
        remote = reader.remote
        while not self.ended:
            try:
                while True:
                    block, within = divmod(self.given, run)
                    position = (block * lanes + lane) * run + within
                    if position >= end:
                        return
                    self.given += 1
                    self.position = position
                    # The sample has no name here: 64 waiting lanes would hold 64 photographs by
                    # it, and every read would have to fault in new memory.
                    if position >= count:
                        yield self.fetch(position)
                    elif remote:
                        yield self._read_ahead(position, count)
                    else:
                        yield read(row(position), later)
            except PenstockError as error:
                if stage.handler(error):
                    self.skip()
                else:
                    self.ended = True

    def _read_ahead(self, position: int, count: int) -> Sample:
        """The sample at a position; the lane's next ones are read along with it."""
        found = self._soon.pop(position, None)
        if found is not None:
            return found
        index, reader, _ = self.stage.opened()
        run, limit = self.context.run, SOON_BYTES // self.lanes
        positions: list[int] = []
        rows: list[int] = []
        for given in range(self.given - 1, self.given - 1 + SOON):
            block, within = divmod(given, run)
            place = (block * self.lanes + self.lane) * run + within
            if place >= count:
                break
            rows.append(self._row(place))
            positions.append(place)
            limit -= index.size.item(rows[-1])
            if limit <= 0:
                break
        try:
            samples = reader.read_many(rows)
        except PenstockError:
            return reader.read(rows[0])  # the one at fault is told of when its turn comes
        self._soon = dict(zip(positions, samples))
        return self._soon.pop(position)

    def defer(self) -> Run[Any] | None:
        self._deferred = True
        return self

    @property
    def ticket(self) -> Ticket:
        return self.position

    def state(self) -> State:
        return self.given

    def restore(self, state: State) -> None:
        self.given = state

    def left(self) -> int | None:
        run, end = self.context.run, self.stage.positions(self.context)
        # Whole rounds of all lanes, then what the last, broken round has for this one.
        rounds, rest = divmod(end, run * self.lanes)
        last = min(max(rest - self.lane * run, 0), run)
        return max(rounds * run + last - self.given, 0)

    def skip_ahead(self, count: int) -> bool:
        self.given += count
        return True

    def _row(self, position: int) -> int:
        order = self.stage.order(self.context.seed, self.context.epoch)
        return order.row(position % len(order))

    def fetch(self, ticket: Ticket) -> Sample:
        sample = self.stage.opened()[1].read(self._row(ticket))
        if ticket >= len(self.stage):
            sample["__pad__"] = True
        return sample

    def origin(self, ticket: Ticket) -> Origin | None:
        if ticket is None or ticket < 0:
            return None
        index, row = self.stage.opened()[0], self._row(ticket)
        url = index.shards[int(index.shard[row])].url
        return Origin(url, index.keys[row], int(index.offset[row]))
