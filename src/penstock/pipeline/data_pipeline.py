"""The pipeline: a sequence of stages, iterated epoch after epoch."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock import env
from penstock.context import WORKERS, Context, SharedCounts, current_context, in_worker
from penstock.errors import Origin, PipelineError, StateError, UnknownLengthError, optional
from penstock.nearest_name import check_arguments, checks_arguments
from penstock.notebook import html_table
from penstock.pipeline.fingerprint import Texts, Tree, describe_sampling, describe_tree, keep_texts
from penstock.pipeline.fluent import Fluent
from penstock.pipeline.item_counts import batch_size, changes_count, check_ends, known_length
from penstock.pipeline.lanes import EpochRun, LanesRun, NestedRun
from penstock.pipeline.missing_attributes import NoLength, UnknownAttribute
from penstock.pipeline.mixture_change import adopt, catch_up, find_mix
from penstock.pipeline.rank_states import (
    check_steps,
    describe_ranks,
    gather,
    gathers,
    next_position,
    position_after,
    positions_follow,
)
from penstock.pipeline.read_ahead_by_trainers import (
    ReadAhead,
    find_lightning_fetcher,
    is_read_by_accelerate,
)
from penstock.pipeline.stage_signature import stage_names
from penstock.pipeline.state import (
    StateDict,
    accept_changes,
    as_states,
    check,
    check_sampling,
    check_versions,
    data_versions,
    fingerprint,
    is_running,
    make_state,
    merge,
    restore_orders,
    save_orders,
    sealed,
)
from penstock.stages.accelerate_warnings import SKIPPING, warn_of_skipping
from penstock.stages.iterable_dataset import IterableDataset
from penstock.stages.repeat import repeat
from penstock.stages.run import OverriddenRun, Run, reading_state, start
from penstock.stages.sources.mix_plan import SourceStats
from penstock.stages.sources.mixed_samples import MixedRun, MixedSamples, mixed_seed
from penstock.stages.sources.stream_mix import StreamMix, StreamMixRun, stream_stats
from penstock.stages.stage import Bound, Stage

T = TypeVar("T")
STAGES = 64
"""Stages of a pipeline whose skipped samples are counted apart; later ones count as the last."""


REPLAYED = "keeps what cannot be saved: a resume runs the epoch again up to there"


@dataclasses.dataclass(frozen=True)
class PipelineStats:
    """Figures of a pipeline's running epoch."""

    sources: dict[str, SourceStats]
    skipped: dict[str, int]


class DataPipeline(Fluent[T], IterableDataset[T]):
    """A sequence of stages: a source, then the transformations of its items.

    The source is a shard list, any iterable, another pipeline, or a function without arguments that
    returns an iterator. Stages are the library's (``wds.shuffle(100)``), or any function from
    iterator to iterator. Every stage is also a method: ``pipeline.shuffle(100)``.

    Each ``iter()`` is an epoch, in an order that depends only on the data, the seed
    and the epoch's number. With torch installed, pipelines are ``IterableDataset`` s.

    >>> from penstock import shuffle, batched
    >>> pipeline = DataPipeline(lambda: iter(range(4)), shuffle(10, seed=1), batched(2, None))
    >>> sorted(sum(pipeline, []))
    [0, 1, 2, 3]
    >>> pipeline.describe().splitlines()[1]
    '  shuffle(10, seed=1)'
    """

    pipeline: list[Any]
    overridden = ""
    """The iterating method that a subclass outside the library replaces, if there is one."""
    on_error: Callable[[Exception, Any], None] | None = None
    """Called with each error that the handler of a stage did not raise, and the item."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.overridden = _overridden(cls)
        if cls.overridden in ("iterator", "iterator1"):
            replaced = cls.overridden
            cls.__iter__ = lambda self: iter(getattr(self, replaced)())  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        check_arguments(cls, kwargs)
        return super().__new__(cls)

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
        self._ahead: ReadAhead | None = None  # its states, if a trainer may take items ahead
        self._unknown = False  # a trainer takes an unknown number of items ahead
        self._next: list[int]  # the next epoch, unless workers begin it; views share the list
        self._resume: StateDict | None = None
        self._rank: tuple[int, int] | None = None  # of the process that this copy was sent from
        self._skip = 0
        self._texts: Texts = {}  # shared with copies, which have the same stages
        self._moved: int | None = None  # the epoch that began on another number of ranks
        self._counts = SharedCounts(STAGES + 1)
        self._next = [env.integer("WDS_EPOCH") or 0]
        self._counts.set_all(STAGES, self._next[0])

    # ── building ────────────────────────────────────────────────────────────────────────

    def __add__(self, other: Any) -> Any:
        """Return torch's ``ChainDataset``: the items of this pipeline, then those of another.

        It has neither stages nor a state: :func:`~penstock.mix` makes a pipeline of several.
        """
        torch_data = optional("torch.utils.data", "torch", "adding pipelines")
        return torch_data.ChainDataset([self, other])

    def append(self, stage: Any) -> None:
        """Add a stage at the end. Changes this pipeline.

        >>> pipeline = DataPipeline([3, 4].__iter__)
        >>> pipeline.append(lambda source: (x + 1 for x in source))
        >>> list(pipeline)
        [4, 5]
        """
        self.pipeline.append(stage)

    def compose(self, *stages: Any) -> DataPipeline[Any]:
        """Return a copy of the pipeline with more stages at its end.

        >>> list(DataPipeline([3, 4].__iter__).compose(lambda source: (x + 1 for x in source)))
        [4, 5]
        """
        result = copy.copy(self)
        result.pipeline = [*self.pipeline, *(stage for stage in stages if stage is not None)]
        result._current = result._ahead = result._resume = result._moved = None
        result._skip = 0
        result._counts = self._counts.copy()
        result._next = [result.epoch]
        return result

    def then(self, stage: Any, *args: Any, **kwargs: Any) -> DataPipeline[Any]:
        """Return a copy with one more stage: a function of an iterator and of these arguments.

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
        """Return the stage at an index."""
        return self.pipeline[number]

    @checks_arguments
    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> DataPipeline[T]:
        """Repeat the preceding stages, endlessly or ``nepochs`` times. Changes this pipeline.

        >>> list(DataPipeline([1, 2].__iter__).repeat(2))
        [1, 2, 1, 2]
        """
        self.pipeline.append(repeat(nepochs, nbatches))
        self.nsamples = -1
        return self

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> DataPipeline[T]:
        """Make every epoch ``nsamples`` items of the whole pipeline long. Changes this pipeline.

        A longer source is cut, a shorter one begins again with its next order. The next ``iter()``
        begins again, in another order. 0 means endless.

        >>> len(list(DataPipeline([1, 2].__iter__).with_epoch(5)))
        5
        """
        self.nsamples = max(nsamples, nbatches)
        return self

    def with_length(self, n: int, silent: bool = False) -> DataPipeline[T]:
        """Set ``len()``, for progress bars and trainers that need it. Changes this pipeline.

        It does not change the number of items: :meth:`with_epoch` does that.

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

    if TYPE_CHECKING:  # only pipelines with a length have it: some programs test for it

        def __len__(self) -> int: ...
    else:
        __len__ = NoLength()

        def __bool__(self) -> bool:
            return True  # without it, Python asks for the length

        def __getattr__(self, name: str) -> Any:
            raise UnknownAttribute(self, name)

    def length(self, epoch: int | None = None) -> int:
        """Return ``len()`` of an epoch, by default the next: as set, or computed from the index."""
        if self.size is not None:
            return self.size
        context = dataclasses.replace(self.context(), lanes=self.lanes)
        if epoch is not None:
            context = dataclasses.replace(context, epoch=epoch)
        count = known_length(self.pipeline, context, self.nsamples)
        if count is None:
            raise UnknownLengthError(
                f"the length of {self!r} is not known: its source has no end, or a stage changes "
                "the number of items; with_length(n) sets one"
            )
        return count

    # ── running ─────────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next ``iter()`` begins."""
        return self._counts.get(STAGES, current_context().worker)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, also for the workers of a loader over this pipeline.

        Workers that persist receive it, forked or spawned. A copy sent to another machine, by Ray
        or Dask, does not: call ``set_epoch`` there.

        >>> pipeline = DataPipeline([1].__iter__)
        >>> pipeline.set_epoch(3); pipeline.epoch
        3
        """
        self._next[0] = epoch
        self._counts.set_all(STAGES, epoch)

    def set_epoch_of_worker(self, epoch: int, worker: int, num_workers: int = WORKERS) -> None:
        """Set the next epoch of one of several workers.

        The workers of a loader together also set it for the additional workers of a larger loader,
        and a process without workers sets it for all: the next loader may have any number.
        """
        for column in range(min(worker, WORKERS - 1), WORKERS, num_workers):
            self._counts.set(STAGES, epoch, column)

    def context(self) -> Context:
        """Return the context of the next iteration: rank, worker, seed and epoch."""
        context = current_context(seed=self.seed)
        if self._rank is not None and context.world_size == 1 and in_worker():
            # A spawned worker has no process group; its loader's process knew the rank.
            rank, world_size = self._rank
            context = dataclasses.replace(context, rank=rank, world_size=world_size)
        return dataclasses.replace(
            context,
            epoch=self._counts.get(STAGES, context.worker),
            run=batch_size(self.pipeline),
            countable=changes_count(self.pipeline) is None,
        )

    def _all_stages(self) -> Sequence[Any]:
        """Return all stages that a sample passes; a loader puts those of its data set first."""
        return self.pipeline

    def start(self, context: Context) -> Run[T]:
        """Start all stages, each on the one before it."""
        if not self.pipeline:
            raise PipelineError("the pipeline is empty: add a source, such as SimpleShardList")
        run: Run[Any] | None = None
        for number, stage in enumerate(self.pipeline):
            run = start(stage, run, context)
            run.on_skip = functools.partial(
                self._counts.add, min(number, STAGES - 1), 1, context.worker
            )
            run.on_error = self.on_error
        return run  # type: ignore[return-value]

    def __penstock_start__(self, source: Run[Any] | None, context: Context) -> Run[T]:
        """Start as the source of another pipeline, whose epochs and lanes apply."""
        if source is not None:
            raise PipelineError("a pipeline can be the source of another, not a later stage")
        return OverriddenRun(self, None, context) if self.overridden else NestedRun(self, context)

    def __penstock_expect__(self, context: Context) -> None:
        """Begin the epoch of this context at the next ``iter()``."""
        self.set_epoch_of_worker(context.epoch, context.worker)
        self._next[0] = context.epoch

    def begin(self, context: Context, *, check: bool = True) -> LanesRun[T] | EpochRun[T]:
        """Start the pipeline in this process, at the position of a loaded state if there is one.

        With ``check``, stages that may yield unequal numbers of batches on the ranks are an error,
        and checkpoints are taken for the state after an exception. A loader does both itself.
        """
        # This object holds the run; if the run held it too, both would wait for the garbage
        # collector, and torch's worker processes take five seconds each to end that way.
        owner = copy.copy(self)
        owner._current = owner._ahead = owner._resume = None

        def lanes(context: Context) -> LanesRun[T]:
            return LanesRun(owner, context, owner.lanes, owner.start, checkpoints=check)

        run = lanes(context) if self.nsamples < 0 else EpochRun(owner, context, lanes)
        if check:
            keep_texts(self.pipeline, self._texts)
        if check and context.world_size > 1 and self.nsamples < 0:
            check_ends(self._all_stages(), warn=context.rank == context.worker == 0)
        resume, self._resume = self._resume, None
        if resume is not None and resume["state"] is not None and resume["epoch"] == context.epoch:
            if is_running(resume) and (opaque := run.opaque()):
                warnings.warn(
                    f"{', '.join(opaque)} cannot save what it keeps: the epoch is run again up to "
                    "the saved step",
                    stacklevel=3,
                )
            with reading_state():
                run.restore(resume["state"])
                if is_running(resume):
                    check_sampling(resume, self.pipeline, context.rank)
                    restore_orders(resume, self.pipeline, context.rank, mid_epoch=True)
        elif resume is not None and not in_worker():
            _check_epoch(resume, context.epoch)
        run.orders = save_orders(self.pipeline)
        count, self._skip = self._skip, 0
        if count:
            run.skip_items(count)
        return run

    @property
    def fingerprint(self) -> str:
        """A short text that differs when the data does."""
        return fingerprint(self.pipeline[:1])

    def __iter__(self) -> Iterator[T]:
        if self._resume is not None and self._resume.get("complete") and not in_worker():
            return self._begin_when_asked()
        # Immediately in workers: those of the next epoch may start before these are iterated.
        return self._begin_epoch()

    def _begin_epoch(self) -> Iterator[T]:
        context = self.context()
        resume, skip = self._resume, self._skip
        self.set_epoch_of_worker(context.epoch + 1, context.worker, context.num_workers)
        self._next[0] = context.epoch + 1
        try:
            self._current = self.begin(context)
        except BaseException:  # the loaded state is still the state
            self._resume, self._skip = resume, skip
            self.set_epoch_of_worker(context.epoch, context.worker, context.num_workers)
            self._next[0] = context.epoch
            raise
        self._ahead, self._unknown = None, is_read_by_accelerate()
        if (fetcher := find_lightning_fetcher()) is None:
            return iter(self._current)
        self._ahead = ReadAhead(fetcher, self._current.state)
        return self._ahead.stream(self._current)

    def _begin_when_asked(self) -> Iterator[T]:
        # torchdata calls iter() twice after loading the state of a complete epoch, and uses the
        # second iterator: the first one must not count as an epoch.
        yield from self._begin_epoch()

    # ── state ───────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> StateDict:
        """Return the position of the iteration, as plain values from which another process can
        resume.

        Take it between two items. It names the epoch, the position of every lane, and what waits
        in buffers by ticket; no samples.

        In a job with several ranks, the state of one rank is enough for all of them if the data
        set has an index and lanes and its stages keep the number of samples. Otherwise, where
        torch.distributed is initialised, the ranks exchange their states and each returns those of
        all: call it on every rank, or it waits for the others. :meth:`describe` says which it is.

        >>> from penstock import DataPipeline
        >>> make = lambda: DataPipeline(range(10, 14))
        >>> first = make(); stream = iter(first)
        >>> next(stream), next(stream)
        (10, 11)
        >>> second = make(); second.load_state_dict(first.state_dict())
        >>> list(second)
        [12, 13]
        """
        own = self._own_state()
        return sealed(gather(own) if self._gathers() else own)

    def _own_state(self) -> StateDict:
        run = self._current
        if self.epoch != self._next[0] and not in_worker():
            raise StateError(
                "the data set is read by a loader, whose workers count its epochs, so its own "
                "state is unknown: save the state of the loader, which has to be a WebLoader, "
                "or torchdata's StatefulDataLoader"
            )
        if run is None:
            if self._resume is not None:
                return self._resume
            return self.next_epoch_state()
        if run.finished and self.epoch != run.context.epoch + 1:  # set_epoch() was called since
            return self.next_epoch_state()
        if self._unknown and not run.finished:
            raise StateError(
                "Accelerate's loader reads a batch ahead, so this state would skip one: instead of "
                "prepare(), use a WebLoader and accelerator.register_for_checkpointing(loader)"
            )
        if self._ahead is not None and (trained := self._ahead.state()) is not None:
            return self._state(run.context, trained)
        return self._state(run.context, run.state(), complete=run.finished)

    def is_at_start(self) -> bool:
        """Return whether the next ``iter()`` begins with the first item of an epoch."""
        return not self._skip and (self._resume is None or not is_running(self._resume))

    def next_epoch_state(self) -> StateDict:
        """Return the state before the first item of the next epoch."""
        return self._state(self.context(), None)

    def load_state_dict(
        self,
        state: StateDict | Sequence[StateDict],
        *,
        mixture: str = "same",
        changed: str = "refuse",
    ) -> None:
        """Resume from a state at the next ``iter()``, or from the states of all ranks.

        With the states of all ranks, another number of ranks may resume.

        A state of another pipeline, other data or an unknown version is refused with a
        :class:`~penstock.errors.StateError` that names the difference. With ``mixture="continue"``,
        the sources, weights, mode and end of a :func:`~penstock.mix` may differ: each source
        continues after the samples that it has yielded. The change takes effect at the next block
        edge of the saved mixture, a few thousand samples later; in a mixture of streams, at once.

        A state is also refused if its data has changed since it was saved: a shard that was being
        read, an indexed shard, a file of an image folder, an item of a list. Shards that are read
        in order are compared when they are opened. With ``changed="accept"`` the run continues at
        the same position of the changed data.
        """
        if mixture not in ("same", "continue"):
            raise PipelineError(f"mixture is 'same' or 'continue', not {mixture!r}")
        if changed not in ("refuse", "accept"):
            raise PipelineError(f"changed is 'refuse' or 'accept', not {changed!r}")
        now = self.next_epoch_state()
        with reading_state():
            states = as_states(state)
            if changed == "accept":
                states = [accept_changes(one) for one in states]
            # Before positions are computed, which needs the plan of the state.
            given, changes = self._take_mixture(states, now, mixture)
            merged = merge(self._for_all_ranks(given, now))
            check(merged, now)
            check_versions(merged, self.pipeline, self._mixture())
            restore_orders(merged, self.pipeline, now["rank"])
            if changes and is_running(merged):
                merged = self._change_mixture(merged)
        self._current, self._ahead, self._unknown = None, None, False
        self._resume = merged
        moved = is_running(merged) and merged["ranks"] != now["ranks"]
        self._moved = merged["epoch"] if moved or merged.get("moved") else None
        epoch = merged["epoch"]
        if merged.get("complete") and not in_worker():
            # In a worker, the empty rest of this epoch comes first: other workers may have
            # samples left, and their loader begins the next epoch for all of them together.
            epoch += 1
        context = current_context()
        self.set_epoch_of_worker(epoch, context.worker, context.num_workers)
        self._next[0] = epoch

    # ── mixtures ────────────────────────────────────────────────────────────────────────

    def _mixture(self) -> MixedSamples | StreamMix | None:
        """Return the mixture that the pipeline reads, or None."""
        return find_mix(self._all_stages())

    def _mixed_seed(self, seed: int) -> int:
        """Return the seed of the mixture; ``seed`` is that of the pipeline."""
        return mixed_seed(self._all_stages(), seed)

    def _take_mixture(
        self, states: list[StateDict], now: StateDict, change: str
    ) -> tuple[list[StateDict], bool]:
        """Compare the mixture with that of the states; return them, and whether it differs."""
        mixture, saved = self._mixture(), states[0]
        record = saved.get("mixture")
        if isinstance(mixture, StreamMix) and record is None and not mixture.complete:
            # Earlier versions also counted the data of sources of weight 0.
            return [{**state, "data": now["data"]} for state in states], False
        if mixture is None or record is None:
            return states, False
        changes = mixture.check(record, change)
        if not is_running(saved):
            mixture.take({**record, "earlier": None}, saved["epoch"])
        elif changes:
            mixture.continue_from(record, saved["epoch"])
        else:
            mixture.take(record, saved["epoch"])
        return [adopt(state, now) for state in states] if changes else states, changes

    def _change_mixture(self, saved: StateDict) -> StateDict:
        """Begin with another mixture after everything that the state's lanes have taken."""
        mixture = self._mixture()
        if isinstance(mixture, StreamMix):
            return {**saved, "state": self._catch_up(mixture, saved)}
        if mixture is not None:
            position = self._next_position(saved)
            seed = self._mixed_seed(self.context().seed)
            mixture.change_at(position, seed, saved["epoch"])
        return saved

    def _catch_up(self, mixture: StreamMix, saved: StateDict) -> Any:
        """Return the states of the lanes with nothing left to skip."""
        context = dataclasses.replace(self.context(), epoch=saved["epoch"])
        return catch_up(self, mixture, saved["state"], context)

    def _next_position(self, saved: StateDict) -> int:
        """Return a position of the mixture that no lane of a state has reached."""
        return next_position(self, saved["state"], saved["epoch"])

    def stats(self) -> Any:
        """Return figures of the running epoch: ``sources`` of a mixture, and what was skipped.

        ``sources`` has for each source of a :func:`~penstock.mix` the samples on all ranks, its
        share of them, its share of the weights, and how often it has been gone through.

        >>> from penstock import mix
        >>> pipeline = mix({"a": [1, 2], "b": [3]})
        >>> _ = list(pipeline)
        >>> pipeline.stats().sources["a"].samples
        2
        """
        return PipelineStats(self._source_stats(), self.skipped)

    def _source_stats(self) -> dict[str, SourceStats]:
        run = self._current
        lanes = getattr(getattr(run, "run", run), "lanes", {})
        roots = [root for lane in lanes.values() for root in lane.roots()]
        streams = [root for root in roots if isinstance(root, StreamMixRun)]
        if streams:
            return stream_stats(streams)
        mixture = self._mixture()
        planned = [root for root in roots if isinstance(root, MixedRun)]
        if not isinstance(mixture, MixedSamples) or not planned:
            return {}
        context = planned[0].context
        # Lanes take turns: those of other processes are as far as these.
        taken = sum(root.given for root in planned)
        position = taken * planned[0].lanes // len(planned)
        end = len(mixture.order(context.seed, context.epoch))
        return mixture.source_stats(min(position, end), context.seed, context.epoch)

    # ── several ranks ───────────────────────────────────────────────────────────────────

    def _positions_follow(self) -> bool:
        """Return whether one rank's state is enough for all of them."""
        return positions_follow(self)

    def _gathers(self) -> bool:
        # Decided by what is the same on all ranks: each of them must take part, or none.
        follow = self._positions_follow() and self._moved is None
        return not follow and gathers(current_context().world_size)

    def _for_all_ranks(self, states: list[StateDict], now: StateDict) -> list[StateDict]:
        """Return the states of all ranks that this one needs; compute them if only one is
        available."""
        first = states[0]
        if len(states) > 1 or first["penstock"] != now["penstock"] or not is_running(first):
            return states
        saved_on = (first["rank"], first["ranks"])
        if first["rank"] is None or first["ranks"] == 1 or saved_on == (now["rank"], now["ranks"]):
            return states
        if first.get("moved") or not self._positions_follow():
            return states
        check({**first, "rank": None, "ranks": now["ranks"]}, now)
        return self._computed(first)

    def _computed(self, saved: StateDict) -> list[StateDict]:
        """Compute the states of all ranks from that of one."""
        lanes = saved["state"]
        steps = sum(lane["given"] for lane in lanes.values())

        def after(rank: int) -> Any:
            context = dataclasses.replace(
                self.context(), rank=rank, world_size=saved["ranks"], epoch=saved["epoch"]
            )
            context = dataclasses.replace(context, worker=0, num_workers=1)
            return position_after(
                lambda worker: LanesRun(self, context, self.lanes, self.start), 1, steps
            )[0]

        check_steps(lanes, after(saved["rank"]))
        return [
            saved if rank == saved["rank"] else {**saved, "rank": rank, "state": after(rank)}
            for rank in range(saved["ranks"])
        ]

    def skip(self, count: int) -> None:
        """Skip the next ``count`` items of the next ``iter()``, for example after a loss spike.

        With an index, skipped items are not read.

        >>> pipeline = DataPipeline([1, 2, 3, 4])
        >>> pipeline.skip(2)
        >>> list(pipeline)
        [3, 4]
        """
        self._skip += count

    def origins(self) -> list[Origin]:
        """Return where the samples of the last item come from; for a batch, all of its samples.

        >>> from penstock import SimpleShardList
        >>> urls = DataPipeline(SimpleShardList("train-{0..1}.tar"))
        >>> _ = next(iter(urls))
        >>> [str(origin) for origin in urls.origins()]
        ['train-0.tar']
        """
        run = self._current
        return run.origins(run.ticket) if run is not None else []

    def _state(self, context: Context, state: Any, complete: bool = False) -> StateDict:
        stages, tree, sampling = self._describe_stages(context.seed, state is not None)
        made = make_state(context, stages, self.fingerprint, self.lanes, state, complete, tree)
        mixture = self._mixture()
        if mixture is not None:
            seed = self._mixed_seed(context.seed)
            made["mixture"] = mixture.record(context.epoch, seed, is_running(made))
        if self._moved == context.epoch and is_running(made):
            made["moved"] = True
        if versions := data_versions(self.pipeline, mixture):
            made["versions"] = {place: version.plain() for place, version in versions.items()}
        if sampling:
            made["sampling"] = dict(sampling)
            begun = self._current if is_running(made) else None
            orders = save_orders(self.pipeline) if begun is None else begun.orders
            if orders:
                made["orders"] = {str(context.rank): orders}
        return made

    def _describe_stages(self, seed: int, running: bool) -> tuple[list[str], Tree, Tree]:
        """Return the texts that states are compared by; of a running epoch they are made once."""
        run = self._current if running else None
        described = None if run is None else run.described
        if described is None:
            stages = stage_names(self.pipeline)
            if self.nsamples >= 0:
                stages.append(f"with_epoch({self.nsamples})")
            tree = describe_tree(self.pipeline, seed, self.nsamples, self._texts)
            described = stages, tree, describe_sampling(self.pipeline)
            if run is not None:
                run.described = described
        stages, tree, sampling = described
        return list(stages), dict(tree), sampling

    iterator = __iter__
    iterator1 = __iter__

    def __call__(self) -> Iterator[T]:
        return iter(self)

    @property
    def skipped(self) -> dict[str, int]:
        """The number of samples that each stage skipped because a handler decided so.

        Worker processes are included. Stages that skipped nothing are not listed.

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
        """Describe the stages, one per line, source first, and mark those that resume by a replay.

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
        follow = self._positions_follow() and self._moved is None
        return "\n".join([*lines, *describe_ranks(follow, current_context().world_size)])

    def __repr__(self) -> str:
        inside = ", ".join(_shown(stage) for stage in self.pipeline)
        return f"{type(self).__name__}({inside})"

    def _repr_html_(self) -> str:
        rows = _stage_rows(self.pipeline)
        return html_table(type(self).__name__, ["", "stage"], rows)

    def __copy__(self) -> DataPipeline[T]:
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__)
        return result

    def _notice(self, caller: str, owner: Any) -> None:
        if caller == SKIPPING:
            warn_of_skipping(self)

    def __reduce__(self) -> Any:
        cls = type(self)
        sized = "_is_sized" in vars(cls)
        context = current_context()
        attributes = {
            "_counts": self._counts,  # before those of nested pipelines: SharedCounts says why
            **self.__dict__,
            "_current": None,
            "_ahead": None,
            "_next": [self.epoch],
            "_texts": {},
            "_rank": (context.rank, context.world_size) if context.world_size > 1 else self._rank,
        }
        return (_rebuild, (cls.__base__ if sized else cls, sized, attributes))


@functools.cache
def _sized(cls: Any) -> Any:
    """Return a subclass with ``__len__``: only ``with_length`` adds one, since some code tests for
    it."""
    members = {
        "__len__": lambda self: self.length(),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "_is_sized": True,
    }
    return type(cls.__name__, (cls,), members)  # the same name: messages mention it


def _rebuild(base: Any, sized: bool, attributes: dict[str, Any]) -> Any:
    cls = _sized(base) if sized else base
    pipeline = cls.__new__(cls)
    pipeline.__dict__.update(attributes)
    return pipeline


def _check_epoch(saved: StateDict, epoch: int) -> None:
    """Raise or warn if ``set_epoch`` asked for another epoch than that of a loaded state."""
    running, next_epoch = is_running(saved), saved["epoch"] + 1
    if not running and (not saved.get("complete") or epoch >= next_epoch):
        return
    text = (
        f"the loaded state is {'in' if running else 'at the end of'} epoch {saved['epoch']}, but "
        f"set_epoch() asked for epoch {epoch}"
    )
    if epoch == next_epoch:  # nothing is lost if the state was saved after the epoch's last item
        warnings.warn(f"{text}: the state is not used", stacklevel=5)
        return
    raise StateError(
        f"{text}: leave set_epoch() out after load_state_dict(); the Hugging Face Trainer computes "
        "the epoch from len(loader), so set the number of batches of an epoch with with_length(n)"
    )


def _overridden(cls: type[Any]) -> str:
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "penstock":
            break
        for name in ("__iter__", "iterator", "iterator1"):
            if name in vars(base):
                return name
    return ""


def _is_stage(value: Any) -> bool:
    """Return whether an item of a list is a stage; a list of other items is itself a source."""
    return value is None or callable(value) or hasattr(value, "run")


def _stage_rows(stages: Sequence[Any], number: str = "") -> list[list[str]]:
    """Return number and text of each stage; stages of a nested data set come before it."""
    rows = []
    for index, stage in enumerate(stages):
        label = f"{number}{index}"
        inside = getattr(stage, "pipeline", None)
        rows += _stage_rows(inside, f"{label}.") if isinstance(inside, list) else []
        rows.append([label, _shown(stage)])
    return rows


def _name(stage: Any) -> str:
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    return name if isinstance(name, str) else type(stage).__name__


def _shown(stage: Any) -> str:
    text = getattr(stage, "__qualname__", None) or repr(stage)
    return text if len(text) <= 200 else text[:197] + "..."
