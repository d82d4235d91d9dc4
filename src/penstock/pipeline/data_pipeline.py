"""The pipeline: stages in a row, iterated epoch after epoch."""

from __future__ import annotations

import copy
import dataclasses
import functools
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import env
from penstock.context import Context, SharedCounts, here, in_worker
from penstock.errors import Origin, PipelineError
from penstock.pipeline.plan import batch_size, keeps_count, known_length
from penstock.pipeline.fluent import Fluent
from penstock.pipeline.lanes import EpochRun, LanesRun, NestedRun
from penstock.pipeline.stage_signature import stage_names
from penstock.pipeline.state import StateDict, as_states, check, fingerprint, make_state, merge
from penstock.stages.repeat import repeat
from penstock.stages.run import Run, start
from penstock.stages.stage import Bound, Stage

if TYPE_CHECKING:
    from torch.utils.data import IterableDataset
else:

    class IterableDataset:
        """torch's class for type checkers; at run time pipelines are registered with it."""

        def __class_getitem__(cls, item: Any) -> Any:
            return cls


T = TypeVar("T")
STAGES = 64
"""Stages of a pipeline whose skipped samples are counted apart; later ones count as the last."""


REPLAYED = "keeps what cannot be saved: a resume runs the epoch again up to there"


class DataPipeline(Fluent[T], IterableDataset[T]):
    """Stages in a row: a source, then what happens to its items.

    The source is a shard list, any iterable, another pipeline, or a function without arguments
    that gives an iterator. Stages are the library's (``wds.shuffle(100)``), or any function from
    iterator to iterator. Every stage is also a method: ``pipeline.shuffle(100)``.

    Each ``iter()`` is an epoch, with an order of its own that depends only on the data, the seed
    and the epoch's number. With torch installed, pipelines are ``IterableDataset`` s.

    >>> from penstock import shuffle, batched
    >>> pipeline = DataPipeline(lambda: iter(range(4)), shuffle(10, seed=1), batched(2, None))
    >>> sorted(sum(pipeline, []))
    [0, 1, 2, 3]
    >>> pipeline.describe().splitlines()[1]
    '  shuffle(10, seed=1)'
    """

    pipeline: list[Any]

    def __init__(self, *stages: Any, seed: int | None = None, lanes: int | None = None) -> None:
        self.pipeline = []
        for stage in stages:
            several = isinstance(stage, list) and (self.pipeline or any(map(_is_stage, stage)))
            self.pipeline.extend(stage if several else [stage])
        self.pipeline = [stage for stage in self.pipeline if stage is not None]
        self.seed, self.lanes = seed, lanes
        self.nsamples = -1
        self.size: int | None = None
        self._current: Any = None  # the run of the last iter()
        self._resume: StateDict | None = None
        self._rank: tuple[int, int] | None = None  # of the process that this copy was sent from
        self._skip = 0
        self._counts = SharedCounts(STAGES + 1)
        self._counts.set_all(STAGES, env.integer("WDS_EPOCH") or 0)

    # ── building ────────────────────────────────────────────────────────────────────────

    def append(self, stage: Any) -> None:
        """Add a stage at the end, in place.

        >>> pipeline = DataPipeline([3, 4].__iter__)
        >>> pipeline.append(lambda source: (x + 1 for x in source))
        >>> list(pipeline)
        [4, 5]
        """
        self.pipeline.append(stage)

    def compose(self, *stages: Any) -> DataPipeline[Any]:
        """A copy of the pipeline with more stages at its end.

        >>> list(DataPipeline([3, 4].__iter__).compose(lambda source: (x + 1 for x in source)))
        [4, 5]
        """
        result = copy.copy(self)
        result.pipeline = [*self.pipeline, *(stage for stage in stages if stage is not None)]
        result._current = result._resume = None
        result._skip = 0
        result._counts = self._counts.copy()
        return result

    def then(self, stage: Any, *args: Any, **kwargs: Any) -> DataPipeline[Any]:
        """A copy with one more stage: a function of an iterator and of these arguments.

        >>> def every(source, n):
        ...     return (x for i, x in enumerate(source) if i % n == 0)
        >>> list(DataPipeline(range(5).__iter__).then(every, n=2))
        [0, 2, 4]
        """
        if isinstance(stage, type) and issubclass(stage, Stage):
            return self.compose(stage(*args, **kwargs))
        return self.compose(Bound(stage, *args, **kwargs) if args or kwargs else stage)

    pipe = then

    def stage(self, number: int) -> Any:
        """The stage at a place."""
        return self.pipeline[number]

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> DataPipeline[T]:
        """Repeat what stands before, at this place, without end or ``nepochs`` times. In place.

        >>> list(DataPipeline([1, 2].__iter__).repeat(2))
        [1, 2, 1, 2]
        """
        self.pipeline.append(repeat(nepochs, nbatches))
        self.nsamples = -1
        return self

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> DataPipeline[T]:
        """Make every epoch ``nsamples`` items of the whole pipeline long. In place.

        A longer source is cut, a shorter one begins again with its next order. The next
        ``iter()`` begins anew, with another order. 0 means without end.

        >>> len(list(DataPipeline([1, 2].__iter__).with_epoch(5)))
        5
        """
        self.nsamples = max(nsamples, nbatches)
        return self

    def with_length(self, n: int, silent: bool = False) -> DataPipeline[T]:
        """Give the data set a ``len()``, for progress bars and trainers that ask for it. In place.

        It says nothing about how many items come: :meth:`with_epoch` does that.

        >>> len(DataPipeline([1, 2].__iter__).with_length(7))
        7
        """
        self.size = n
        self._give_length()
        return self

    def _give_length(self) -> None:
        if not hasattr(type(self), "__len__"):
            # __class__ itself is a property here; this is the one that every object has.
            vars(object)["__class__"].__set__(self, _sized(type(self)))

    def length(self) -> int:
        """What ``len()`` gives: the number said, or the one that follows from the index."""
        if self.size is not None:
            return self.size
        place = dataclasses.replace(self.context(), lanes=self.lanes)
        count = known_length(self.pipeline, place, self.nsamples)
        if count is None:
            raise TypeError(
                f"the length of {self!r} is not known: a stage changes the number of items; "
                "with_length(n) gives one"
            )
        return count

    # ── running ─────────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next ``iter()`` begins."""
        return self._counts.get(STAGES, here().worker)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, also to workers that are forked later.

        >>> pipeline = DataPipeline([1].__iter__)
        >>> pipeline.set_epoch(3); pipeline.epoch
        3
        """
        self._counts.set_all(STAGES, epoch)

    def set_epoch_of_worker(self, epoch: int, worker: int) -> None:
        """Say which epoch one worker begins next; it does so itself, for those forked after it."""
        self._counts.set(STAGES, epoch, worker)

    def context(self) -> Context:
        """Where the next iteration runs."""
        place = here(seed=self.seed)
        if self._rank is not None and place.world_size == 1 and in_worker():
            # A spawned worker has no process group; its loader's process knew the rank.
            rank, world_size = self._rank
            place = dataclasses.replace(place, rank=rank, world_size=world_size)
        return dataclasses.replace(
            place,
            epoch=self._counts.get(STAGES, place.worker),
            run=batch_size(self.pipeline),
            countable=keeps_count(self.pipeline),
        )

    def start(self, context: Context) -> Run[T]:
        """All stages at work, each on the one before it."""
        if not self.pipeline:
            raise PipelineError("the pipeline is empty: give it a source, such as SimpleShardList")
        run: Run[Any] | None = None
        for number, stage in enumerate(self.pipeline):
            run = start(stage, run, context)
            run.on_skip = functools.partial(
                self._counts.add, min(number, STAGES - 1), 1, context.worker
            )
        return run  # type: ignore[return-value]

    def __penstock_start__(self, source: Run[Any] | None, context: Context) -> Run[T]:
        """As the source of another pipeline: that one's epochs and lanes count."""
        if source is not None:
            raise PipelineError("a pipeline can be the source of another, not a later stage")
        return NestedRun(self, context)

    def begin(self, context: Context) -> LanesRun[T] | EpochRun[T]:
        """The pipeline at work in this process, from where a loaded state stands if any."""
        # This object holds the run; if the run held it too, both would wait for the garbage
        # collector, and torch's worker processes take five seconds each to end that way.
        owner = copy.copy(self)
        owner._current = owner._resume = None

        def lanes(context: Context) -> LanesRun[T]:
            return LanesRun(owner, context, owner.lanes, owner.start)

        run = lanes(context) if self.nsamples < 0 else EpochRun(owner, context, lanes)
        source: Any = self.pipeline[0] if self.pipeline else None
        if context.world_size > 1 and not context.countable and self.nsamples <= 0:
            if getattr(source, "ends", None) in ("drop", "pad"):
                raise PipelineError(
                    f"ends={source.ends!r} needs to know how many batches each rank gets, but a "
                    "stage here changes the number of samples: leave samples out by exclude=, "
                    "or fix the epoch's length by with_epoch(n), or say ends='exact'"
                )
        resume, self._resume = self._resume, None
        if resume is not None and resume["state"] is not None and resume["epoch"] == context.epoch:
            if opaque := run.opaque():
                warnings.warn(
                    f"{', '.join(opaque)} cannot save what it keeps: the epoch is run again up to "
                    "the saved step",
                    stacklevel=3,
                )
            run.restore(resume["state"])
        count, self._skip = self._skip, 0
        if count:
            run.skip_items(count)
        return run

    @property
    def fingerprint(self) -> str:
        """A short text that differs when the data does."""
        return fingerprint(self.pipeline[:1])

    def __iter__(self) -> Iterator[T]:
        context = self.context()
        self.set_epoch_of_worker(context.epoch + 1, context.worker)
        self._current = self.begin(context)
        return iter(self._current)

    # ── state ───────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> StateDict:
        """Where the iteration stands: plain values from which another process can go on.

        Take it between two items. It names the epoch, the position of every lane, and what waits
        in buffers by ticket; no samples.

        >>> from penstock import DataPipeline
        >>> make = lambda: DataPipeline(range(10, 14))
        >>> first = make(); stream = iter(first)
        >>> next(stream), next(stream)
        (10, 11)
        >>> second = make(); second.load_state_dict(first.state_dict())
        >>> list(second)
        [12, 13]
        """
        run = self._current
        if run is None:
            if self._resume is not None:
                return self._resume
            return self._state(self.context(), None)
        if run.finished:
            return self._state(dataclasses.replace(run.context, epoch=run.context.epoch + 1), None)
        return self._state(run.context, run.state())

    def load_state_dict(self, state: StateDict | Sequence[StateDict]) -> None:
        """Go on from a state at the next ``iter()``, or from the states of all ranks.

        With the states of all ranks it may be another number of ranks that goes on.

        A state of another pipeline, other data or an unknown version is refused with a
        :class:`~penstock.errors.StateError` that names the difference.
        """
        merged = merge(as_states(state))
        check(merged, self._state(self.context(), None))
        self._current, self._resume = None, merged
        place = here()
        if place.num_workers > 1:  # in a worker that loads its own: the others have their own say
            self.set_epoch_of_worker(merged["epoch"], place.worker)
        else:
            self.set_epoch(merged["epoch"])

    def skip(self, count: int) -> None:
        """Leave out the next ``count`` items of the next ``iter()``, after a loss spike, say.

        With an index nothing is read for it.

        >>> pipeline = DataPipeline([1, 2, 3, 4])
        >>> pipeline.skip(2)
        >>> list(pipeline)
        [3, 4]
        """
        self._skip += count

    def origins(self) -> list[Origin]:
        """Where the samples of the item given last come from: of a batch, all of them.

        >>> from penstock import SimpleShardList
        >>> urls = DataPipeline(SimpleShardList("train-{0..1}.tar"))
        >>> _ = next(iter(urls))
        >>> [str(origin) for origin in urls.origins()]
        ['train-0.tar']
        """
        run = self._current
        return run.origins(run.ticket) if run is not None else []

    def _state(self, context: Context, state: Any) -> StateDict:
        stages = stage_names(self.pipeline)
        if self.nsamples >= 0:
            stages.append(f"with_epoch({self.nsamples})")
        return make_state(context, stages, self.fingerprint, self.lanes, state)

    iterator = __iter__
    iterator1 = __iter__

    def __call__(self) -> Iterator[T]:
        return iter(self)

    @property
    def skipped(self) -> dict[str, int]:
        """How many samples each stage left out because a handler said so.

        Forked workers are counted in. Stages that left out nothing are not listed.

        >>> from penstock import ignore_and_continue, map
        >>> pipeline = DataPipeline([1, 0].__iter__, map(lambda x: 1 / x, ignore_and_continue))
        >>> list(pipeline), pipeline.skipped
        ([1.0], {'map': 1})
        """
        counts: dict[str, int] = {}
        for number, stage in enumerate(self.pipeline):
            count = self._counts.total(min(number, STAGES - 1))
            if count:
                name = _name(stage)
                counts[name] = counts.get(name, 0) + count
        return counts

    def close(self) -> None:
        """Close the stages that can be closed."""
        for stage in self.pipeline:
            if hasattr(stage, "close"):
                stage.close()

    def __enter__(self) -> DataPipeline[T]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ── showing ─────────────────────────────────────────────────────────────────────────

    def describe(self) -> str:
        """The stages, one per line, the source first; and which of them cost a resume a replay.

        >>> def twice(source):
        ...     for item in source:
        ...         yield from (item, item)
        >>> print(DataPipeline([1, 2], twice).describe())
        [1, 2]
          twice  (keeps what cannot be saved: a resume runs the epoch again up to there)
        """
        runs = reversed(list(self.start(self.context()).chain())) if self.pipeline else ()
        lines: list[str] = []
        for run, stage in zip(runs, self.pipeline):
            replay = "" if run.resumable else f"  ({REPLAYED})"
            lines.append(("  " if lines else "") + _shown(stage) + replay)
        return "\n".join(lines)

    def __repr__(self) -> str:
        inside = ", ".join(_shown(stage) for stage in self.pipeline)
        return f"{type(self).__name__.removesuffix('_Length')}({inside})"

    def __copy__(self) -> DataPipeline[T]:
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__)
        return result

    # torch asks isinstance(dataset, IterableDataset). Importing torch for that would cost everyone
    # seconds, so pipelines are registered with that class as soon as somebody asks.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        torch_class = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
        return type(self) if torch_class is None else _as_torch(type(self), torch_class)

    def __reduce__(self) -> Any:
        cls = type(self)
        sized = "_is_sized" in vars(cls)
        place = here()
        attributes = {
            **self.__dict__,
            "_current": None,
            "_rank": (place.rank, place.world_size) if place.world_size > 1 else self._rank,
        }
        return (_rebuild, (cls.__base__ if sized else cls, sized, attributes))


@functools.cache
def _as_torch(cls: Any, torch_class: Any) -> Any:
    """The class that an object says it is of: its own, and torch's."""
    torch_class.register(DataPipeline)
    members = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(torch_class)(cls.__name__, (cls, torch_class), members)


@functools.cache
def _sized(cls: Any) -> Any:
    """The class with a ``__len__``. Only ``with_length`` gives one: some code tests for it."""
    members = {
        "__len__": lambda self: self.length(),
        "__module__": cls.__module__,
        "_is_sized": True,
    }
    return type(f"{cls.__name__}_Length", (cls,), members)


def _rebuild(base: Any, sized: bool, attributes: dict[str, Any]) -> Any:
    cls = _sized(base) if sized else base
    pipeline = cls.__new__(cls)
    pipeline.__dict__.update(attributes)
    return pipeline


def _is_stage(value: Any) -> bool:
    """Whether a list's item is a stage: a list of others is itself a source."""
    return value is None or callable(value) or hasattr(value, "run")


def _name(stage: Any) -> str:
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    return name if isinstance(name, str) else type(stage).__name__


def _shown(stage: Any) -> str:
    text = getattr(stage, "__qualname__", None) or repr(stage)
    return text if len(text) <= 200 else text[:197] + "..."
