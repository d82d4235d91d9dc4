"""Read samples by index: in any order, from any position, without a buffer."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError, StaleIndexError
from penstock.handlers import Handler, ask, reraise_exception
from penstock.shards.index import Fold, Index, Join, SampleReader, Subset, open_index
from penstock.shards.index.join import as_joins, join_reader
from penstock.shards.index.random_access import FilePool
from penstock.shards.sample_reader import Sample, check_group
from penstock.stages.reading import tar_samples
from penstock.stages.run import Run, State, Ticket, as_count
from penstock.stages.sources.data_versions import DataVersion, version_of_index
from penstock.stages.sources.epoch_order import Order, Rows
from penstock.stages.sources.shard_list import ListedUrls, Urls
from penstock.stages.stage import Source
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.urls import expand_urls

WINDOW = 16
SOON, SOON_BYTES = 64, 64 << 20
"""For remote shards, the samples of a lane read at a time, and the bytes of all lanes together."""
KEPT_ORDERS = 3
"""A later buffer may hold samples of the previous epoch, which are fetched again by position."""
LOAD_ATTEMPTS = 10
ENDS = ("exact", "drop", "pad")
_MISSING: Sample = {}


class IndexedSamples(Source[Sample], ListedUrls):
    """The samples of indexed shards, in an order decided before reading.

    ``index`` is what :func:`penstock.shards.index.open_index` takes; True finds the index beside
    the shards, or makes it. ``window`` is the number of shards whose samples are mixed at a time: 0
    reads in order, the default of 16 mixes well with few open files.

    ``where``, ``keys``, ``fraction``, ``fold`` and ``exclude`` choose samples before anything is
    read. ``where`` is an expression over the columns of the index (:mod:`the language
    <penstock.shards.index.where>`). ``keys`` is a list of keys, a pattern such as ``"train/*"``, or
    a file with one key on each line. ``fraction`` is a share of the samples, chosen by a hash of
    the key, and ``fold`` a :class:`~penstock.Fold`. ``exclude`` leaves samples out: a collection of
    keys, or a function of the key. ``join`` adds fields of other shards with the same keys: a
    :class:`~penstock.Join`, or several.

    ``ends`` says what happens where the ranks' shares would differ in length: ``"exact"`` yields
    every sample once, ``"drop"`` leaves out the last few, ``"pad"`` repeats the first few: as many
    as give all ranks equally many samples. With ``"pad"`` every sample has a field ``__pad__``,
    True for the repeated ones. The default is exact on one rank and drop on several, unless a stage
    changes the number of samples. Remote shards are kept in ``cache``; without one, samples that
    come soon are read several at a time. ``patience`` is as in
    :class:`~penstock.tarfile_to_samples`, and so is ``group``, which must be that of the index.

    >>> from penstock import DataPipeline
    >>> pipeline = DataPipeline(IndexedSamples("train-{000..099}.tar", window=8))
    """

    shortens = True
    """True if padding makes the ranks' last batches equally short; False: it completes them."""

    def __init__(
        self,
        urls: Urls,
        index: Any = True,
        *,
        window: int = WINDOW,
        ends: str | None = None,
        where: str | None = None,
        keys: Iterable[str] | str | os.PathLike[str] | None = None,
        fraction: float | None = None,
        fold: Fold | None = None,
        exclude: Iterable[str] | Callable[[str], bool] | None = None,
        join: Join | Sequence[Join] = (),
        handler: Handler = reraise_exception,
        local_paths: bool = False,
        cache: ShardCache | None = None,
        patience: RetryPolicy | None = None,
        group: str = "key",
    ) -> None:
        if ends is not None and ends not in ENDS:
            raise PipelineError(f"ends is one of {ENDS}, not {ends!r}")
        if window < 0:
            raise PipelineError(f"window is a number of shards, not {window}")
        self.urls = expand_urls(urls)
        self.given_index, self.window, self.ends = index, window, ends
        self.subset = Subset(where, keys, fraction, fold, exclude)
        self.join = as_joins(join)
        self.handler, self.local_paths = handler, local_paths
        self.cache, self.patience, self.group = cache, patience, check_group(group)
        self.keeps_ranks_equal = ends != "exact"
        self.pool: FilePool | None = None  # shared with the other sources of a mixture
        self._opened: tuple[Index, SampleReader, Rows | None] | None = None
        self._orders: dict[tuple[int, int], Order] = {}  # by seed and epoch

    def opened(self) -> tuple[Index, SampleReader, Rows | None]:
        """Return the index, a reader, and the rows that take part; open them on first use."""
        if self._opened is None:
            index = open_index(self.urls, self.given_index, group=self.group)
            options: dict[str, Any] = {"cache": self.cache, "patience": self.patience}
            options |= {"local_paths": self.local_paths, "pool": self.pool}
            kept = self.subset.rows(index)
            reader: Any = SampleReader(index, **options)
            if self.join:
                with self.subset.located("join"):
                    reader, kept = join_reader(reader, self.join, kept, options)
            self._opened = (index, reader, kept)
        return self._opened

    def load(self) -> None:
        """Load the whole index, keys and fields included.

        The file may be shared with other shards of its folder, for which this or another process
        extends it: it is then opened again.
        """
        for _ in range(LOAD_ATTEMPTS - 1):
            with contextlib.suppress(StaleIndexError):
                self.reader.prepare()
                return
            self._opened, self._orders = None, {}
        self.reader.prepare()

    @property
    def reader(self) -> SampleReader:
        """Reads the samples of rows."""
        return self.opened()[1]

    def order(self, seed: int, epoch: int) -> Order:
        """Return the order of an epoch, shared by all lanes."""
        order = self._orders.get((seed, epoch))
        if order is None:
            index, _, kept = self.opened()
            order = Order(index.starts, window=self.window, seed=seed, epoch=epoch, kept=kept)
            last = list(self._orders.items())[1 - KEPT_ORDERS :]
            self._orders = {**dict(last), order.key: order}  # threads may still read the old one
        return order

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that differs when the data does."""
        self.load()
        index, reader, kept = self.opened()
        parts = [index.fingerprint]
        if kept is not None:
            parts.append(hashlib.blake2b(kept.tobytes(), digest_size=8).hexdigest())
        if self.join:
            parts.append(getattr(reader, "fingerprint", ""))
        return "-".join(parts)

    @functools.cached_property
    def data_versions(self) -> dict[str, DataVersion]:
        """The versions of the shards, and of the other sets of a join, as they were indexed."""
        _, reader, _ = self.opened()
        indexes = [reader.index, *(side.reader.index for side in getattr(reader, "sides", ()))]
        return {str(number): version_of_index(index) for number, index in enumerate(indexes)}

    def size_of(self, row: int) -> int:
        """Return the bytes that a row's sample takes in its shard, and in those of a join."""
        index, reader, _ = self.opened()
        size: int = index.size.item(row)
        for side in getattr(reader, "sides", ()):
            if (other := side.rows.item(row)) >= 0:
                size += side.reader.index.size.item(other)
        return size

    def sizes_of(self, rows: Rows) -> Rows:
        """Return what :meth:`size_of` does for several rows."""
        index, reader, _ = self.opened()
        sizes: Rows = index.size[rows]
        for side in getattr(reader, "sides", ()):  # of a join
            others = side.rows[rows]
            found = others >= 0
            sizes[found] += side.reader.index.size[others[found]]
        return sizes

    def origin_of(self, row: int) -> Origin:
        """Return the shard, key and byte of a row's sample."""
        index = self.opened()[0]
        url = index.shards[int(index.shard[row])].url
        return Origin(url, index.keys[row], int(index.offset[row]))

    def __len__(self) -> int:
        index, _, kept = self.opened()
        return len(index) if kept is None else len(kept)

    def count(self, context: Context) -> int:
        """Return the number of samples in the epoch."""
        return len(self)

    def positions(self, context: Context) -> int:
        """Return the number of positions in the epoch on all ranks, after dropping or padding."""
        count, unit = self.count(context), context.run * context.world_size
        ends = self.ends
        if ends is None:
            ends = "drop" if context.world_size > 1 and context.countable else "exact"
        rest = 0 if ends == "exact" else count % unit
        if ends == "pad":
            step = context.world_size if self.shortens else unit
            return count - rest + -(-rest // step) * step
        return count - rest

    def last_step(self, context: Context) -> tuple[int, int]:
        """Return the first position of a last step that ranks share equally, and the positions of
        each rank in it. Without such a step, that is the end, and 0."""
        end, unit = self.positions(context), context.run * context.world_size
        rest = end % unit if self.ends == "pad" and self.shortens else 0
        return end - rest, rest // context.world_size

    def start(self, source: Run[None] | None, context: Context) -> Run[Sample]:
        return IndexedRun(self, None, context)

    def __getstate__(self) -> dict[str, Any]:
        found = ("fingerprint", "data_versions")
        kept = {name: v for name, v in self.__dict__.items() if name not in found}
        return {**kept, "_opened": None, "_orders": {}}


class IndexedRun(Run[Sample]):
    """A run of :class:`IndexedSamples`; counts the samples of its lane. A ticket is a position.

    The positions of the epoch are distributed to the lanes in runs as long as a batch, so that the
    lanes in turn yield the batches in the epoch's order.
    """

    stage: IndexedSamples
    resumable = True

    def __init__(self, stage: IndexedSamples, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.stream_id = context.stream_id
        self.dealt = True
        if context.lane is not None and context.lanes is not None:
            self.lane, self.lanes = context.lane, context.lanes
        else:
            self.lanes = context.world_size * context.num_workers
            self.lane = context.rank + context.world_size * context.worker
        self.given = 0
        self.position = -1
        self._deferred = False
        self._soon: dict[int, Sample] = {}  # of remote shards: read, but not yet yielded

    def __iter__(self) -> Iterator[Sample]:
        return self._samples() if self.stage.ends != "pad" else self._marked_samples()

    def _marked_samples(self) -> Iterator[Sample]:
        count = len(self.stage.order(self.context.seed, self.context.epoch))
        for sample in self._samples():
            yield self._mark(sample, self.position >= count)

    def _mark(self, sample: Sample, repeated: bool) -> Sample:
        """Return a sample with a field that says whether it is repeated to make ranks equal."""
        sample["__pad__"] = repeated
        return sample

    def _samples(self) -> Iterator[Sample]:
        stage, context, run = self.stage, self.context, self.context.run
        stage.load()  # a damaged index is not a sample's error, which a handler may skip
        order = stage.order(context.seed, context.epoch)
        count, end = len(order), stage.last_step(context)[0]
        reader, row, lane, lanes = stage.reader, order.row, self.lane, self.lanes
        if lane == 0:
            _warn_of_assigned(reader.remote)
        read, later = reader.read, self._deferred
        soon = self._samples_ahead()
        while not self.ended:
            try:
                while True:
                    block, within = divmod(self.given, run)
                    position = (block * lanes + lane) * run + within
                    if position >= end and (position := self._last_position(position)) < 0:
                        return
                    self.given += 1
                    self.position = position
                    # Do not bind the sample to a name: 64 waiting lanes would keep 64 images alive,
                    # and every read would have to fault in new memory.
                    if position >= count:
                        yield self.fetch(position)
                    elif soon is not None:
                        yield soon.pop(position, _MISSING) or self._read_ahead(position, count)
                    else:
                        yield read(row(position), later)
            except PenstockError as error:
                if ask(stage.handler, error):
                    self.skip()
                else:
                    self.ended = True
            except GeneratorExit:
                self._drop_ahead()
                raise

    def _samples_ahead(self) -> dict[int, Sample] | None:
        """Return the samples that are read ahead, by position; None: each is read when its turn
        comes."""
        return self._soon if self.stage.reader.remote else None

    def _drop_ahead(self) -> None:
        """Drop the samples that were read ahead."""
        self._soon.clear()

    def _read_ahead(self, position: int, count: int) -> Sample:
        """Return the sample at a position; read the lane's next ones in the same request."""
        reader = self.stage.reader
        run, limit = self.context.run, SOON_BYTES // self.lanes
        end, _ = self.stage.last_step(self.context)
        positions: list[int] = []
        rows: list[int] = []
        try:
            for given in range(self.given - 1, self.given - 1 + SOON):
                block, within = divmod(given, run)
                upcoming = (block * self.lanes + self.lane) * run + within
                if upcoming >= end:
                    upcoming = self._last_position(upcoming)
                if not 0 <= upcoming < count:
                    break
                rows.append(self._row(upcoming))
                positions.append(upcoming)
                limit -= self.stage.size_of(rows[-1])
                if limit <= 0:
                    break
            samples = reader.read_many(rows)
        except PenstockError:  # the failing one is reported when its turn comes
            return reader.read(self._row(position))
        self._soon.clear()
        self._soon.update(zip(positions, samples))
        return self._soon.pop(position)

    def defer(self) -> Run[Any] | None:
        self._deferred = True
        return self

    @property
    def ticket(self) -> Ticket:
        return self.position

    def is_empty(self) -> bool:
        return self.given == 0

    def state(self) -> State:
        return self.given

    def restore(self, state: State) -> None:
        self.given = as_count(state)

    def left(self) -> int | None:
        run, (end, each) = self.context.run, self.stage.last_step(self.context)
        # Whole rounds of all lanes, then what the last, broken round has for this one.
        rounds, rest = divmod(end, run * self.lanes)
        last = min(max(rest - self.lane * run, 0), run)
        if 0 <= self.lane - rest // run < self.context.world_size:
            last += each
        return max(rounds * run + last - self.given, 0)

    def skip_ahead(self, count: int) -> bool:
        self.given += count
        return True

    def _last_position(self, position: int) -> int:
        """Return the position in a last step of short batches that takes the place of one in full
        batches; -1 after the end."""
        begin, each = self.stage.last_step(self.context)
        batch, within = divmod(position - begin, self.context.run)
        if batch < self.context.world_size and within < each:
            return begin + batch * each + within
        return -1

    def _row(self, position: int) -> int:
        order = self.stage.order(self.context.seed, self.context.epoch)
        return order.row(position % len(order))

    def fetch(self, ticket: Ticket) -> Sample:
        order = self.stage.order(self.context.seed, self.context.epoch)
        sample = self.stage.reader.read(order.row(as_count(ticket) % len(order)))
        return self._mark(sample, ticket >= len(order)) if self.stage.ends == "pad" else sample

    def origin(self, ticket: Ticket) -> Origin | None:
        if ticket is None or ticket < 0:
            return None
        return self.stage.origin_of(self._row(ticket))


def _warn_of_assigned(remote: bool) -> None:
    """Warn of functions that a program has assigned and that reading by index does not call."""
    names = [f"tariterators.{name}" for name in tar_samples.list_assigned_steps()]
    if remote and tar_samples.find_assigned_gopen() is not None:
        names.append("gopen.gopen")
    if names:
        warnings.warn(
            f"a data set with index= does not use what is assigned to webdataset.{names[0]}:"
            " leave out index=",
            stacklevel=2,
        )
