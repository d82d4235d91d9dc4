"""Data sets built by wrapping one in another, as in WebDataset 0.1.

A ``Processor`` is a data set with one more function applied to it; ``Composable`` and
``Shorthands`` add the methods of a pipeline to a custom class. All of them build pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from penstock.context import current_context
from penstock.errors import PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.loaders.webloader import WebLoader
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.fluent import Fluent
from penstock.pipeline.webdataset import FluidWrapper, WebDataset
from penstock.stages.sources.split import split_by_worker


def as_pipeline(dataset: Any) -> DataPipeline[Any]:
    """Return the data set if it is a pipeline, else a pipeline that starts with it."""
    return dataset if isinstance(dataset, DataPipeline) else FluidWrapper(dataset)


class Composable:
    """Adds the methods that append a stage to a custom iterable class.

    >>> class Numbers(Composable):
    ...     def __iter__(self):
    ...         return iter([1, 2])
    >>> list(Numbers().then(lambda source: (x + 1 for x in source)))
    [2, 3]
    """

    source: Any = None

    def source_(self, source: Any) -> Any:
        """Set the data set that this one reads from; return self."""
        self.source = source
        return self

    def then(self, f: Any, *args: Any, **kw: Any) -> DataPipeline[Any]:
        """Return a pipeline that applies ``f(iterator, …)`` to this data set."""
        return FluidWrapper(self).then(f, *args, **kw)

    pipe = then

    def compose(self, *stages: Any, **kw: Any) -> Any:
        """Return a pipeline with more stages, or with ``compose(cls, …)`` a ``cls(…)`` of this."""
        if stages and isinstance(stages[0], type) and hasattr(stages[0], "source_"):
            return stages[0](*stages[1:], **kw).source_(self)
        if kw:
            raise PipelineError(f"compose takes stages, or a class with source_, not {stages}")
        return FluidWrapper(self).compose(*stages)


class Shorthands(Fluent[Any]):
    """Adds every stage as a method to a custom iterable class.

    >>> class Numbers(Shorthands):
    ...     def __iter__(self):
    ...         return iter([1, 2])
    >>> list(Numbers().map(str).listed(2))
    [['1', '2']]
    """

    compose = Composable.compose
    then = pipe = Composable.then

    def repeat(self, nepochs: int | None = None, nbatches: int | None = None) -> DataPipeline[Any]:
        """Repeat the data set endlessly, or ``nepochs`` times, or up to ``nbatches`` items."""
        return FluidWrapper(self).repeat(nepochs or -1, nbatches or -1)

    def with_length(self, length: int) -> DataPipeline[Any]:
        """Return the data set with this ``len()``."""
        return FluidWrapper(self).with_length(length)

    def with_epoch(self, length: int, by_node: bool = False) -> DataPipeline[Any]:
        """Return the data set in epochs of ``length`` items, with ``by_node`` over all ranks."""
        return FluidWrapper(self).with_epoch(
            length // current_context().world_size if by_node else length
        )

    def ddp_equalize(self, length: int, with_length: bool = False) -> DataPipeline[Any]:
        """Return the data set in epochs of ``length`` items over all ranks, equal on each rank."""
        items = length // current_context().world_size
        pipeline = FluidWrapper(self).with_epoch(items)
        return pipeline.with_length(items) if with_length else pipeline


class Processor(DataPipeline[Any]):
    """A data set to which a function of its iterator, or a stage of the library, is applied.

    ``Processor(dataset, f, …)`` runs ``f(iterator, …)``. Without a data set, ``Processor(f, …)``
    is a function from data set to data set.

    >>> import penstock as wds
    >>> list(Processor([1, 2], wds.map, str))
    ['1', '2']
    >>> list(Processor(wds.map, str)([1, 2]))
    ['1', '2']
    """

    def __init__(self, source: Any, *args: Any, _kwa: Any = None, **kw: Any) -> None:
        super().__init__()
        self.waits = callable(source) and not hasattr(type(source), "__iter__")
        if self.waits:
            args = (source, *args)
        elif not args:
            raise PipelineError("Processor needs a function: Processor(dataset, f, …)")
        stages = DataPipeline().then(*args, **{**(_kwa or {}), **kw}).pipeline
        self.pipeline = stages if self.waits else [source, *stages]

    def source_(self, source: Any) -> Any:
        """Return this processor applied to a data set."""
        return as_pipeline(source).compose(*self.pipeline[0 if self.waits else 1 :])

    def __call__(self, source: Any = None) -> Any:
        return iter(self) if source is None else self.source_(source)

    def __iter__(self) -> Iterator[Any]:
        if self.waits:
            raise PipelineError(f"{self!r} has no data set: call it with one")
        return super().__iter__()


class Dataset(WebDataset):
    """The data set of version 0.1: a :class:`~penstock.WebDataset` with other arguments.

    ``shuffle`` is the size of the shard shuffle buffer (True: 100), ``splitter`` splits the shards
    between workers, a number as ``length`` is returned by ``len()``.
    """

    def __init__(
        self,
        urls: Any,
        *,
        length: int | bool | None = None,
        splitter: Any = split_by_worker,
        handler: Handler = reraise_exception,
        shuffle: int | bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            urls, handler, shardshuffle=shuffle, workersplitter=splitter or None, **options
        )
        if length is not None and not isinstance(length, bool):
            self.with_length(length)


class with_epoch(FluidWrapper):
    """A data set in epochs of ``length`` items.

    >>> list(with_epoch([1, 2], 3))
    [1, 2, 1]
    """

    def __init__(self, dataset: Any, length: int) -> None:
        super().__init__(dataset)
        self.nsamples = length


class with_length(FluidWrapper):
    """A data set whose ``len()`` is ``length``.

    >>> len(with_length([1, 2], 3))
    3
    """

    def __init__(self, dataset: Any, length: int) -> None:
        super().__init__(dataset)
        self.with_length(length)


class repeated(FluidWrapper):
    """A data set repeated endlessly, or ``nepochs`` times, or up to ``nbatches`` items.

    >>> list(repeated([1, 2], nepochs=2))
    [1, 2, 1, 2]
    """

    def __init__(
        self,
        source: Any,
        nepochs: int | None = None,
        nbatches: int | None = None,
        length: int | None = None,
    ) -> None:
        super().__init__(source)
        self.repeat(nepochs or -1, nbatches or -1)
        if length is not None:
            self.with_length(length)


class ChoppedDataset(FluidWrapper):
    """A data set in epochs of ``length`` items, each continuing where the previous one ended.

    ``len()`` is ``nominal`` if given, else ``length``.

    >>> chopped = ChoppedDataset([1, 2, 3], 2)
    >>> list(chopped), list(chopped)
    ([1, 2], [3, 1])
    """

    def __init__(self, dataset: Any, length: int | None = None, nominal: int | None = None) -> None:
        length = len(dataset) if length is None else length
        super().__init__(Chopped(dataset, length))
        self.with_length(length if nominal is None else nominal)


ResizedDataset = ChoppedDataset


class Chopped:
    """An endless stream over a data set; each ``iter()`` yields its next ``length`` items."""

    def __init__(self, dataset: Any, length: int) -> None:
        self.dataset, self.length = dataset, length
        self._stream: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._stream is None:
            self._stream = self._iterate_forever()
        return islice(self._stream, self.length)

    def _iterate_forever(self) -> Iterator[Any]:
        empty = False
        while not empty:
            empty = True
            for item in self.dataset:
                empty = False
                yield item

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}

    def __repr__(self) -> str:
        return f"Chopped({self.dataset!r}, {self.length})"


def MultiDataset(
    dataset: Any, workers: int = 4, nominal: int | None = None, pin_memory: bool = False
) -> DataPipeline[Any]:
    """Return a :class:`~penstock.WebLoader` that reads the data set with worker processes."""
    loader = WebLoader(dataset, num_workers=workers, batch_size=None, pin_memory=pin_memory)
    return loader if nominal is None else loader.with_length(nominal)
