"""Map-style datasets as the source of a pipeline: any order, exact resume, any number of ranks."""

from __future__ import annotations

import functools
import hashlib
from typing import Any, cast

import numpy as np

from penstock.context import Context
from penstock.errors import Origin, PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.nearest_name import ChecksArguments
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.stages.run import Run, Ticket
from penstock.stages.sources.data_versions import DataVersion, versions_of
from penstock.stages.sources.epoch_order import Order
from penstock.stages.sources.indexed_samples import ENDS, IndexedRun, IndexedSamples
from penstock.stages.stage import Each


class MapSamples(IndexedSamples):
    """The items ``dataset[i]`` of a map-style dataset: anything with ``len()`` and indexing.

    They come in order, or with ``shuffle=True`` in another random order in every epoch.
    Ranks, workers and lanes share them as they share indexed shards, and ``ends`` is as in
    :class:`penstock.IndexedSamples`: with ``"pad"``, items that are dicts have a field ``__pad__``,
    True for the repeated ones. Dicts are copied, so that stages may change them.

    A state is refused when the dataset has changed. A dataset identifies its data by an attribute
    ``fingerprint``, a text; without one, its class and length are compared.

    >>> from penstock import DataPipeline
    >>> list(DataPipeline(MapSamples(["a", "b", "c"])))
    ['a', 'b', 'c']
    """

    def __init__(
        self,
        dataset: Any,
        *,
        ends: str | None = None,
        shuffle: bool = False,
        handler: Handler = reraise_exception,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise PipelineError(
                f"MapSamples takes a dataset with len() and indexing, not {type(dataset).__name__}"
            )
        if ends is not None and ends not in ENDS:
            raise PipelineError(f"ends is one of {ENDS}, not {ends!r}")
        self.dataset, self.ends, self.handler = dataset, ends, handler
        self.urls = []  # the dataset takes their place: its fingerprint says which data it is
        self.window = int(bool(shuffle))
        self.keeps_ranks_equal = ends != "exact"
        self._orders = {}

    def opened(self) -> Any:
        return None, ItemReader(self.dataset), None

    def order(self, seed: int, epoch: int) -> Order:
        order = self._orders.get((seed, epoch))
        if order is None:
            bounds = np.array([0, len(self.dataset)], np.int64)
            order = Order(bounds, window=self.window, seed=seed, epoch=epoch)
            last = list(self._orders.items())[-2:]
            self._orders = {**dict(last), order.key: order}  # threads may still read the old one
        return order

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that differs when the data does."""
        return fingerprint_of(self.dataset)

    @functools.cached_property
    def data_versions(self) -> dict[str, DataVersion]:
        """The version of the dataset's files, or of the items of a list."""
        return versions_of(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def start(self, source: Run[None] | None, context: Context) -> Run[Any]:
        return MapRun(self, None, context)


def fingerprint_of(dataset: Any) -> str:
    """Return the dataset's own fingerprint, or a digest of its class and length."""
    own = getattr(dataset, "fingerprint", None)
    if isinstance(own, str):
        return own
    words = f"{type(dataset).__name__} {len(dataset)}"
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()


class ItemReader:
    """Reads items as :class:`penstock.shards.index.SampleReader` reads samples."""

    remote = False

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def prepare(self) -> None:
        """Do nothing: nothing is loaded ahead."""

    def read(self, row: int, later: bool = False) -> Any:
        """Read the item of that number."""
        try:
            item = self.dataset[row]
        except Exception as error:
            error.add_note(f"in {type(self.dataset).__name__}: item {row}")
            raise
        return dict(item) if type(item) is dict else item


class MapRun(IndexedRun):
    """A run of :class:`MapSamples`. A ticket is a position in the epoch's order."""

    stage: MapSamples

    def fetch(self, ticket: Ticket) -> Any:
        item: Any = self.stage.opened()[1].read(self._row(ticket))
        return self._mark(item, ticket >= len(self.stage)) if self.stage.ends == "pad" else item

    def _mark(self, sample: Any, repeated: bool) -> Any:
        return _marked(sample, repeated)

    def origin(self, ticket: Ticket) -> Origin | None:
        if ticket is None or ticket < 0:
            return None
        return origin_of(self.stage.dataset, self._row(ticket))


class MarkedNumber(int):
    """The number of an item that is marked: it is not repeated to make ranks equal."""

    repeated = False


class RepeatedNumber(MarkedNumber):
    """The number of an item that is repeated to make ranks equal."""

    repeated = True


def _marked(item: Any, repeated: bool) -> Any:
    if type(item) is dict:
        item["__pad__"] = repeated
    if type(item) is int:
        return RepeatedNumber(item) if repeated else MarkedNumber(item)
    return item


def origin_of(dataset: Any, number: int) -> Origin:
    """Return the dataset's ``origin(number)`` if it has that method, else class name and number."""
    own = getattr(dataset, "origin", None)
    if callable(own):
        origin: Origin = own(number)
        return origin
    return Origin(type(dataset).__name__, str(number))


class NumberOrder:
    """The numbers of a dataset's items, with the fingerprint and the origins of the dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> int:
        return number

    def __repr__(self) -> str:
        return f"numbers of {type(self.dataset).__name__}"

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.dataset)

    @property
    def data_versions(self) -> dict[str, DataVersion]:
        return versions_of(self.dataset)

    def origin(self, number: int) -> Origin:
        return origin_of(self.dataset, number)


class get_items(Each[int, Any]):
    """Turns numbers into the items of a dataset: ``dataset[i]``, or ``dataset.sample(i)`` if raw.

    A separate stage, so that several threads may read and decode items.

    >>> list(get_items(["a", "b"])([1, 0]))
    ['b', 'a']
    """

    keeps_count = True
    urls = ()  # as for sources, the dataset's fingerprint says which data it is

    def __init__(
        self, dataset: Any, raw: bool = False, handler: Handler = reraise_exception
    ) -> None:
        self.dataset, self.raw, self.handler = dataset, raw, handler

    def apply(self, item: int) -> Any:
        found = self.dataset.sample(item) if self.raw else self.dataset[item]
        return _marked(found, item.repeated) if isinstance(item, MarkedNumber) else found


class MapPipeline(ChecksArguments):
    """Adds the method :meth:`pipeline` to a map-style dataset, and ``+`` as torch's have it."""

    def __add__(self, other: Any) -> Any:
        from torch.utils.data import ConcatDataset

        return ConcatDataset([cast(Any, self), other])

    def pipeline(
        self,
        raw: bool = False,
        *,
        shuffle: bool = False,
        ends: str | None = None,
        seed: int | None = None,
        lanes: int | None = None,
    ) -> DataPipeline[Any]:
        """Return a pipeline over the items: ``dataset[i]``, or raw samples with ``raw=True``.

        ``shuffle=True`` puts them in another random order in every epoch. ``ends`` is as in
        :class:`penstock.MapSamples`, ``seed`` and ``lanes`` as in :class:`penstock.DataPipeline`.
        """
        source = MapSamples(NumberOrder(self), ends=ends, shuffle=shuffle)
        pipeline = DataPipeline[Any](source, get_items(self, raw), seed=seed, lanes=lanes)
        pipeline._give_length()
        return pipeline
