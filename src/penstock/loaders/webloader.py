"""WebLoader: torch's DataLoader as a pipeline, with stages after it and a state to save."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import numbers
import pickle
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, Unpack, overload

from penstock.batches.batched import batched
from penstock.context import Context
from penstock.errors import Origin, PipelineError, StateError
from penstock.loaders.batch_order import describe_sampler, restore_order, save_order
from penstock.loaders.device.to_device import AHEAD, DeviceRun, to_device
from penstock.loaders.options import (
    MAX_MEMORY,
    TAKEN_WORKERS,
    Engine,
    LoaderOptions,
    choose_engine,
    count_streams,
    make_thread_loader,
    make_torch_loader,
    parse_size,
    set_worker_threads,
    warn_of_batched_batches,
    warn_of_copies,
)
from penstock.loaders.stats.recorder import StatsRecorder
from penstock.loaders.stats.stats import Stats
from penstock.loaders.worker_state import (
    StatefulCollate,
    StatefulConvert,
    StatefulDataset,
    StatefulItem,
    WorkerPlan,
    update_lanes,
)
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.lanes import LanesRun, lane_position
from penstock.pipeline.missing_attributes import UnknownAttribute
from penstock.pipeline.mixture_change import catch_up, check_lane
from penstock.pipeline.rank_states import check_steps, next_position, position_after
from penstock.pipeline.state import StateDict, as_states, check_whole, is_running, merge
from penstock.stages.accelerate_warnings import PREPARING, warn_of_preparing
from penstock.stages.drop_guard import MANY_ITEMS
from penstock.stages.iterable_dataset import IterableDataset
from penstock.stages.run import (
    IterableRun,
    Run,
    State,
    Ticket,
    as_count,
    reading_state,
    set_epoch,
)
from penstock.stages.sources.data_versions import DataVersion, versions_of
from penstock.stages.sources.mix_plan import SourceStats
from penstock.stages.sources.mixed_samples import mixed_seed
from penstock.stages.sources.stream_mix import StreamMix, saved_stats
from penstock.stages.stage import Each
from penstock.storage.cache.shard_cache import ShardCache

R = TypeVar("R")
T = TypeVar("T")
REMEMBERED_STEPS = 10_000
OURS = {"engine", "max_memory", "threads", "device"}
LOADER_ATTRIBUTES = {"batch_size", *LoaderOptions.__annotations__} - {"shuffle", *OURS}
"""Attributes of torch's ``DataLoader`` that a WebLoader has, named as its arguments."""


class WebLoader(DataPipeline[T]):
    """Loads a data set with worker processes or threads; a pipeline, so stages can follow it.

    Takes the arguments of torch's ``DataLoader``. It is best to batch in the data set and to
    rebatch after the loader, which mixes the samples of different workers::

        dataset = WebDataset(urls).shuffle(1000).decode("torchrgb")
        dataset = dataset.to_tuple("jpg", "cls").batched(16)
        loader = WebLoader(dataset, num_workers=4, batch_size=None)
        loader = loader.unbatched().shuffle(1000).batched(32)

    ``engine`` selects the workers: torch's ``"processes"``, ``"threads"`` of this process (nothing
    is pickled and batches are built in place; best if decoding dominates), or ``"auto"``, which
    measures a few samples; ``engine_choice`` is the reason for the choice. On threads,
    ``prefetch_factor`` is the number of batches kept ready, and ``max_memory`` limits the memory
    of these batches and of the samples in progress. Order and state do not depend on the number
    of threads. With processes, ``threads`` is the number of threads in each worker process: a few
    processes with a few threads each leave the GIL of this process to the trainer.

    Each ``iter(loader)`` is the data set's next epoch, also if workers are started again.
    :meth:`state_dict` counts the items that the training loop received, not those that workers
    have prepared.

    >>> from penstock import DataPipeline
    >>> data = DataPipeline(lambda: iter([1, 2, 3]))
    >>> list(WebLoader(data, batch_size=None).map(lambda x: x + 1))
    [2, 3, 4]
    >>> list(WebLoader(data, batch_size=None, num_workers=2, engine="threads"))
    [1, 2, 3]
    """

    @overload
    def __init__(
        self: WebLoader[T],
        dataset: Iterable[T],
        batch_size: None,
        **options: Unpack[LoaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: WebLoader[Any],
        dataset: Any,
        batch_size: int | None = 1,
        **options: Unpack[LoaderOptions],
    ) -> None: ...

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        engine: Engine = "processes",
        max_memory: int | str = MAX_MEMORY,
        threads: int = 0,
        device: Any = None,
    ) -> None:
        given = locals()
        super().__init__()
        self._loaded: list[StateDict] = []  # the states that were loaded last, of all ranks
        self._recorders = [StatsRecorder()]  # a list that copies with more stages share
        # Only those that differ from the default: an older torch lacks some of the arguments.
        options = {n: given[n] for n, value in _DEFAULTS.items() if given[n] is not value}
        if shuffle and isinstance(dataset, IterableDataset):
            raise PipelineError(
                "WebLoader(shuffle=True) is for data sets with numbered samples, and "
                f"{type(dataset).__name__} is a stream: shuffle the shards with "
                "WebDataset(..., shardshuffle=100) and the samples with .shuffle(1000)"
            )
        warn_of_batched_batches(dataset, options)
        if getattr(dataset, "is_stage", False) or getattr(dataset, "overridden", ""):
            # A mix, a shard list, or a pipeline whose subclass replaces __iter__.
            dataset = DataPipeline(dataset)
        if isinstance(dataset, DataPipeline):
            dataset = StatefulDataset(dataset)
            size = options.get("batch_size", 1)
            wrapper = StatefulConvert if size is None else StatefulCollate
            options["collate_fn"] = wrapper(options.get("collate_fn"))
            self.set_epoch(dataset.pipeline.epoch)
        self.engine, self.engine_choice = choose_engine(engine, dataset, options)
        if engine == "auto":
            logging.getLogger("penstock").info("WebLoader: %s", self.engine_choice)
        if threads and engine == "threads":
            raise PipelineError("num_workers is the number of threads where engine='threads'")
        if threads and self.engine == "processes":
            set_worker_threads(dataset, options, threads, parse_size(max_memory))
        if self.engine == "threads":
            self.loader = make_thread_loader(dataset, options, parse_size(max_memory))
            self.loader.meter = self._recorders[0]
        else:
            warn_of_copies(dataset, options)
            self.loader = make_torch_loader(dataset, options)
        self.append(Loader(self.loader))
        if device is not None:
            self.append(to_device(device))
        if isinstance(dataset, StatefulDataset) and hasattr(type(dataset.pipeline), "__len__"):
            self._give_length()

    @property
    def dataset(self) -> Any:
        """The data set that the loader reads."""
        dataset = self.loader.dataset
        return dataset.pipeline if isinstance(dataset, StatefulDataset) else dataset

    @property
    def _item_by_item(self) -> bool:
        """True if each output item is made from one item of the loader, in the same order."""
        return all(isinstance(stage, (Each, to_device)) for stage in self.pipeline[1:])

    def start(self, context: Context) -> Run[Any]:
        run = super().start(context)
        loader = find_run(run, LoaderRun)
        if loader is not None:
            loader.fetched = not self._item_by_item
        return run

    def _all_stages(self) -> Sequence[Any]:
        loader, *after = self.pipeline
        if not loader.pipeline or loader.nsamples >= 0:
            return self.pipeline
        inside, size = loader.pipeline, self.loader.batch_size
        return [*inside, *([] if size is None else [batched(size)]), *after]

    def __getattr__(self, name: str) -> Any:
        # Trainers read these attributes to construct a similar DataLoader.
        loader = self.__dict__.get("loader")
        if loader is None or name not in LOADER_ATTRIBUTES:
            raise UnknownAttribute(self, name)
        if name == "drop_last" and len(self.pipeline) > 1:
            raise AttributeError(
                "drop_last: a DataLoader made from this loader's attributes would lose the stages "
                "after the loader; resume with loader.load_state_dict(state) instead of skipping"
            )
        value = getattr(loader, name, None)
        if isinstance(value, StatefulConvert):
            return value.convert
        return value.collate if isinstance(value, StatefulCollate) else value

    def _notice(self, caller: str, owner: Any) -> None:
        if caller == PREPARING and not self.__dict__.get("_noticed"):
            self._noticed = True  # prepare() reads the class several times
            warn_of_preparing(self, owner)

    def length(self, epoch: int | None = None) -> int:
        alone = all(isinstance(stage, to_device) for stage in self.pipeline[1:])
        if self.size is None and self.nsamples < 0 and alone:
            if self.loader.batch_size is None:
                each = count_streams(self.loader) if self.dataset.nsamples > 0 else 1
                return each * int(self.dataset.length(self.epoch if epoch is None else epoch))
        return super().length(epoch)

    def to_device(
        self,
        device: Any = "cuda",
        *,
        dtype: Any = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        channels_last: bool = False,
        ahead: int = AHEAD,
    ) -> DataPipeline[Any]:
        """Return a copy that yields batches on the device, prefetched: see :class:`to_device`.

        >>> import penstock
        >>> data = penstock.DataPipeline([{"x": 1}, {"x": 2}], penstock.batched(2))
        >>> next(iter(WebLoader(data, batch_size=None).to_device("cpu")))
        {'x': tensor([1, 2])}
        """
        return self.compose(
            to_device(
                device, dtype=dtype, mean=mean, std=std, channels_last=channels_last, ahead=ahead
            )
        )

    def __iter__(self) -> Iterator[T]:
        # A new recorder: threads of an abandoned epoch may still run and report to the old one.
        before, recorder = self._recorders[0], StatsRecorder()
        self._recorders[0] = recorder
        if getattr(self.loader, "meter", None) is before:
            self.loader.meter = recorder
        return recorder.watched(super().__iter__())

    def stats(self) -> Stats:
        """Return where the time goes in the running epoch, or went in the last one.

        Times are per stage, for the queue, and for the trainer; one sentence names the bottleneck.
        Worker processes do not report times of their stages.

        >>> import penstock
        >>> loader = WebLoader(penstock.DataPipeline([1, 2, 3]), batch_size=None)
        >>> _ = list(loader)
        >>> loader.stats().batches
        3
        """
        recorder, device = self._recorders[0], find_run(self._current, DeviceRun)
        skipped = dict(self.skipped)
        for name, count in getattr(self.dataset, "skipped", {}).items():
            skipped[name] = skipped.get(name, 0) + count
        caches = [c for s in getattr(self.dataset, "pipeline", []) if (c := find_cache(s))]
        opened = [cache.opened for cache in caches]
        return recorder.stats(
            self.engine,
            self.loader.num_workers,
            queue_limit=getattr(self.loader, "prefetch_factor", None),
            device_wait_s=None if device is None else device.waits.seconds,
            device_lead_s=None if device is None else device.waits.lead,
            cache_hits=sum(hits for hits, _ in opened) if caches else None,
            cache_fetches=sum(fetches for _, fetches in opened) if caches else None,
            skipped=skipped,
            sources=self._source_stats(),
        )

    def provenance(self, step: int) -> list[Origin]:
        """Return the shard, key and byte offset of each sample in a step of this epoch.

        The first step is 0. The last 10,000 steps of the running epoch are remembered.
        """
        if not self._item_by_item:
            raise PipelineError(
                "provenance refers to the loader's own steps, and stages after the loader change "
                "them: call origins() after each step instead"
            )
        run = find_run(self._current, LoaderRun)
        return run.provenance(step) if run is not None else []

    def load_state_dict(
        self,
        state: StateDict | Sequence[StateDict],
        *,
        mixture: str = "same",
        changed: str = "refuse",
    ) -> None:
        context = self.context()
        now = self._state(context, None)
        with reading_state():
            given, _ = self._take_mixture(as_states(state), now, mixture)
            states = self._for_all_ranks(given, now)
            self._loaded = states
            elsewhere = states[0].get("ranks") != context.world_size
            if elsewhere:
                own = self._merge_ranks(states)
            else:
                # With the same number of ranks, each resumes from its own state, which knows which
                # worker is next.
                merge(states)
                of_rank = [one for one in states if one["rank"] == context.rank]
                own = of_rank[0] if of_rank else states[0]
        super().load_state_dict(own, mixture=mixture, changed=changed)
        if self._resume is not None and is_running(self._resume):
            if elsewhere or self._workers_changed():
                self._moved = self._resume["epoch"]
        self.loader._iterator = None  # persistent workers must start again from the state

    def _next_position(self, saved: StateDict) -> int:
        # Of all ranks: this rank's own state lacks the lanes of the others.
        states = [state for state in self._loaded if is_running(state)]
        if len(states) < saved["ranks"] and states[0]["rank"] is not None:
            raise StateError(
                "to continue with another mixture every rank loads the states of all ranks: "
                "load_state_dict([state_of_rank_0, …], mixture='continue')"
            )
        lanes: dict[str, Any] = {}
        for state in states:
            for lane in state["state"].values():
                lanes |= (lane.get("run") or {}).get("lanes", {})
        count = self.dataset.lanes or count_streams(self.loader)
        lanes = {str(n): lanes.get(str(n), {"given": 0}) for n in range(count)}
        if self.dataset.lanes is None and count > 1:
            raise StateError(
                "with several workers only a data set with lanes=… can continue with another "
                "mixture inside an epoch"
            )
        return next_position(self.dataset, lanes, saved["epoch"])

    def _catch_up(self, mixture: StreamMix, saved: StateDict) -> Any:
        dataset = self.dataset
        workers = count_streams(self.loader)
        context = dataclasses.replace(
            dataset.context(), epoch=saved["epoch"], num_workers=workers, worker=0
        )

        def in_loader(state: Any) -> Any:
            """Find the states of the lanes below those of stages after the loader."""
            if isinstance(state, (list, tuple)):
                return [*state[:-1], in_loader(state[-1])]
            if not isinstance(state, dict) or "lanes" not in state:
                return state
            lanes, by_worker = state["lanes"], {}
            if state["by_worker"]:
                for name, one in lanes.items():
                    place = dataclasses.replace(context, worker=int(name.split()[-1]))
                    by_worker[name] = catch_up(dataset, mixture, one, place)
                return {**state, "lanes": by_worker}
            return {**state, "lanes": catch_up(dataset, mixture, lanes, context)}

        def of_rank(state: Any) -> Any:
            if isinstance(state, list):
                return in_loader(state)
            check_lane(self, mixture, state)
            return {**state, "run": in_loader(state["run"])} if "run" in state else state

        return {rank: of_rank(state) for rank, state in saved["state"].items()}

    def _source_stats(self) -> dict[str, SourceStats]:
        run, dataset, mixture = find_run(self._current, LoaderRun), self.dataset, self._mixture()
        if run is None or mixture is None or not run.stateful:
            return {}
        if isinstance(mixture, StreamMix):
            return saved_stats(mixture, run.lanes.values())
        # The states of the lanes came with their last items.
        context = dataset.context()
        lanes = dataset.lanes or context.world_size * count_streams(self.loader)
        found = (lane_position(lane, int(n), lanes, context.run) for n, lane in run.lanes.items())
        position = max((at for at in found if at is not None), default=0)
        seed = mixed_seed(self._all_stages(), context.seed)
        end = len(mixture.order(seed, run.context.epoch))
        return mixture.source_stats(min(position, end), seed, run.context.epoch)

    def _mixed_seed(self, seed: int) -> int:
        own = getattr(self.dataset, "seed", None)
        return super()._mixed_seed(seed if own is None else own)

    def _workers_changed(self) -> bool:
        """Return whether the loaded state was saved with a different number of workers."""
        state = self._resume["state"] if self._resume is not None else None
        runs = [lane.get("run") for lane in state.values()] if isinstance(state, dict) else []
        now = count_streams(self.loader)
        return any(isinstance(run, dict) and run.get("workers", now) != now for run in runs)

    def _positions_follow(self) -> bool:
        alone = all(isinstance(stage, to_device) for stage in self.pipeline[1:])
        batches = self.loader.batch_size is not None
        stateful = isinstance(self.loader.dataset, StatefulDataset)
        if not stateful or not alone or batches or self.nsamples >= 0:
            return False
        return bool(self.dataset._positions_follow())

    def _computed(self, saved: StateDict) -> list[StateDict]:
        (lane,) = saved["state"].values()
        run = lane.get("run")
        if run is None:  # before the first step, or after the last
            states = [{**saved, "rank": rank} for rank in range(saved["ranks"])]
            return [{**one, "state": {str(one["rank"]): lane}} for one in states]
        dataset, workers = self.dataset, run["workers"]

        def after(rank: int) -> Any:
            context = dataclasses.replace(
                dataset.context(), rank=rank, world_size=saved["ranks"], epoch=saved["epoch"]
            )

            def make(worker: int) -> Any:
                at = dataclasses.replace(context, worker=worker, num_workers=workers)
                return LanesRun(dataset, at, dataset.lanes, dataset.start)

            return position_after(make, workers, run["count"])

        check_steps(run["lanes"], after(saved["rank"])[0])
        states = [saved]
        for rank in range(saved["ranks"]):
            if rank != saved["rank"]:
                lanes, last = after(rank)
                state = {**lane, "run": {**run, "lanes": lanes, "last": last}}
                states.append({**saved, "rank": rank, "state": {str(rank): state}})
        return states

    def _merge_ranks(self, states: list[StateDict]) -> StateDict:
        """Merge the states of all ranks and return this rank's: the lanes that it owns now."""
        merged = merge(states)
        here = self.context()
        check_whole(merged, here.world_size)
        if is_running(merged) and isinstance(merged["state"], list):
            raise StateError(
                "with_epoch counts the items of each rank: such a state can be resumed only with "
                "the same number of ranks"
            )
        if is_running(merged):
            lanes: dict[str, Any] = {}
            run: Any = None
            for rank, lane in merged["state"].items():
                if lane["given"] == 0:
                    continue
                if lane.get("done") and self.dataset.lanes is not None:  # this rank has ended
                    ended = range(int(rank), self.dataset.lanes, merged["ranks"])
                    lanes.update({str(n): {"given": 0, "done": True} for n in ended})
                    continue
                run = lane.get("run")
                if reason := self._explain_fixed_ranks(run, lane.get("behind")):
                    raise StateError(
                        "this state can be resumed only with the same number of ranks and workers: "
                        f"{reason}"
                    )
                lanes.update(run["lanes"])
            state: dict[str, Any] = {"given": 0}
            if run is not None:
                # Only its own lanes: others would be saved again with their present state.
                lanes = {n: s for n, s in lanes.items() if int(n) % here.world_size == here.rank}
                run = {**run, "lanes": lanes, "last": -1, "workers": None}
                state = {"given": 1, "run": run}
            merged = {**merged, "state": {str(here.rank): state}}
        return {**merged, "ranks": here.world_size, "rank": here.rank}

    def _explain_fixed_ranks(self, run: Any, behind: int | None) -> str:
        """Return why a loader's state cannot move to other ranks; empty if it can."""
        names = ", ".join(self.loader.dataset.opaque())
        if run is None and names:  # the state is only a count: the loader is replayed
            return f"{names} of the data set has a state that cannot be saved, so it is replayed"
        if run is None or behind:
            return "a stage after the loader had raised an exception when it was saved"
        if not isinstance(run, dict) or "lanes" not in run:
            return "a stage after the loader buffers samples"
        if run.get("by_worker"):
            return "with_epoch of the data set counts the items of each worker"
        return "" if run.get("total") is not None else "the data set has no lanes"


_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(WebLoader.__init__).parameters.items()
    if name not in ("self", "dataset", "engine", "max_memory", "threads", "device")
}
"""The arguments of torch's DataLoader with their defaults."""


def _plain_attributes(owner: Any, *names: str) -> list[str]:
    """Return the attributes that are numbers, truth values or None, as words."""
    found = ((name, getattr(owner, name)) for name in names if hasattr(owner, name))
    plain = (type(None), bool, numbers.Integral)
    return [f"{name}={value}" for name, value in found if isinstance(value, plain)]


class Loader:
    """A DataLoader as the source of a pipeline. It sets the data set's epoch."""

    latest: object = None
    """Identifies the iteration that began last: persistent workers serve only that one."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __repr__(self) -> str:
        loader = self.loader
        words = f"batch_size={loader.batch_size}, num_workers={loader.num_workers}"
        return f"{type(loader).__name__}({words}, dataset={loader.dataset!r})"

    @property
    def dataset(self) -> Any:
        """The data set that the loader reads."""
        return self.loader.dataset

    @property
    def pipeline(self) -> Any:
        """The data set's stages, whose names a state is compared by."""
        return getattr(getattr(self.loader.dataset, "pipeline", None), "pipeline", [])

    @property
    def seed(self) -> int | None:
        """The seed of the data set, if it has one."""
        seed: int | None = getattr(getattr(self.loader.dataset, "pipeline", None), "seed", None)
        return seed

    @property
    def nsamples(self) -> int:
        """The number of items in an epoch of the data set; -1 if it has no fixed number."""
        return getattr(getattr(self.loader.dataset, "pipeline", None), "nsamples", -1)

    @property
    def fingerprint(self) -> str:
        """A string that changes when the data changes."""
        return str(getattr(self.loader.dataset, "fingerprint", ""))

    @property
    def sampling(self) -> str:
        """The arguments that decide which samples are in which batch, as a text."""
        loader = self.loader
        batches = None if self.stateful else loader.batch_sampler
        if loader.batch_size is None and batches is not None:  # the caller's own
            words = [f"batch_sampler={type(batches).__name__}"]
            words += _plain_attributes(batches, "batch_size", "drop_last")
        else:
            words = _plain_attributes(loader, "batch_size", "drop_last")
        if not self.stateful:
            sampler = getattr(batches, "sampler", loader.sampler)
            words.append(f"sampler={type(sampler).__name__}")
            # Only the caller's: some samplers seed one of their own in every epoch.
            generator = getattr(sampler, "generator", None)
            if generator is not None and generator is loader.generator:
                words.append(f"seed of the generator={generator.initial_seed()}")
        return ", ".join(words)

    def save_order(self) -> dict[str, Any]:
        """Return what decides the order of the next pass; nothing if the data set does."""
        return {} if self.stateful else save_order(self.loader)

    def restore_order(self, saved: dict[str, Any], mid_epoch: bool) -> None:
        """Let the next pass have a saved order. In the middle of an epoch, an order that cannot be
        restored is an error."""
        if not self.stateful:
            restore_order(self.loader, saved, mid_epoch)

    @property
    def sampler(self) -> str:
        """The sampler of a data set with numbered samples, with its arguments, as a text."""
        numbered = hasattr(self.loader.dataset, "__getitem__") and not self.stateful
        return describe_sampler(self.loader) if numbered else ""

    @property
    def stateful(self) -> bool:
        """True if the data set is a pipeline, whose items carry states."""
        return isinstance(self.loader.dataset, StatefulDataset)

    @functools.cached_property
    def data_versions(self) -> dict[str, DataVersion]:
        """The version of a map-style data set; those of a pipeline are its sources'."""
        return versions_of(self.loader.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in self.__dict__.items() if name != "data_versions"}

    def __penstock_start__(self, source: Run[Any] | None, context: Context) -> Run[Any]:
        return LoaderRun(self, None, context)


class LoaderRun(IterableRun[Any]):
    """A running DataLoader. Keeps the state of every lane that came with its last item.

    A ticket is (lane, the item's ticket in the lane). If a stage of the data set can only be
    replayed, the workers replay each lane separately. Such items cannot be recreated from a
    ticket; if a stage after the loader needs that (``fetched``), the whole loader is replayed.
    """

    fetched = True
    state_survives_errors = True  # that of the items that came

    def __init__(self, stage: Loader, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.dataset = stage.loader.dataset
        self.collate = stage.loader.collate_fn
        self.stateful = isinstance(self.dataset, StatefulDataset)
        self.resumable = self.stateful and not self.dataset.opaque()
        self.endless = self.stateful and self.dataset.endless()
        self.one_each = self.stateful and self.dataset.one_each(self.collate)
        self.lanes: dict[str, Any] = {}
        self.last = -1  # the worker that the last item came from
        self.workers = count_streams(stage.loader)
        # Pickled: a tenth of the memory, and nothing for the garbage collector to traverse.
        self.history: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED_STEPS)
        self._ticket: Ticket = None
        self._plan: WorkerPlan | None = None

    def __iter__(self) -> Iterator[Any]:
        shared = getattr(self.stage.loader, "persistent_workers", False)
        if self.stateful:
            persist = shared and self.stage.loader._iterator is not None
            self.dataset.prepare(self._plan, self.context, persist=persist)
        elif set_epoch(self.dataset, self.context.epoch) and shared:
            self.stage.loader._iterator = None  # its workers have copies with another epoch
        self.stage.latest = latest = object()
        for item in self._start_workers():
            count, lanes, last, ticket = self.count + 1, self.lanes, self.last, self._ticket
            if isinstance(item, StatefulItem):
                lanes, last, ticket = dict(lanes), item.worker, item.ticket
                update_lanes(lanes, item.lanes)
                self.history.append((count - 1, pickle.dumps(ticket)))
                item = item.item
            # No call from here to the yield: Ctrl-C is raised after calls, and the state must not
            # count an item that was not yielded.
            self.count, self.lanes, self.last, self._ticket = count, lanes, last, ticket
            yield item
            del item  # so that a batch is freed as soon as the training loop drops it
            if shared and self.stage.latest is not latest:
                raise PipelineError(TAKEN_WORKERS)

    def _start_workers(self) -> Iterator[Any]:
        """Start an epoch of the DataLoader. Raise with the stage that cannot be pickled."""
        try:
            return iter(self.stage.loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            for stage in self.stage.pipeline:
                try:
                    pickle.dumps(stage)
                except (pickle.PicklingError, AttributeError, TypeError):
                    raise PipelineError(
                        f"{stage!r} cannot be sent to worker processes ({error}): define its"
                        " functions at the top level of a module instead of as lambdas or inside"
                        " functions, or say WebLoader(..., engine='threads')"
                    ) from error
            raise

    def opaque(self) -> list[str]:
        if self.resumable or not self.stateful:
            return super().opaque()
        return self.dataset.opaque() if self.fetched else []

    def full_passes(self) -> int | None:
        # Workers do not report their passes: MANY_ITEMS items count as one.
        return self.count // MANY_ITEMS if self.endless else None

    @property
    def ordered_by_workers(self) -> int | None:
        """The number of workers if the order of items depends on it, else 1."""
        if not self.stateful:
            return None
        lanes = self.dataset.pipeline.lanes
        in_turn = self.stage.loader.batch_size is None and self.stage.nsamples < 0
        if in_turn and lanes and lanes // self.context.world_size % self.workers == 0:
            return 1
        return self.workers

    @property
    def ticket(self) -> Ticket:
        return self._ticket if self.stateful else super().ticket

    def provenance(self, step: int) -> list[Origin]:
        # A copy: with to_device another thread appends meanwhile. Entries hold their step.
        history = self.history.copy()
        first = history[0][0] if history else self.count
        if not first <= step < first + len(history):
            last = first + len(history) - 1
            raise StateError(f"step {step} is not remembered: {first} to {last} are")
        return self.origins(pickle.loads(history[step - first][1]))

    def origin(self, ticket: Ticket) -> Origin | None:
        found = self.origins(ticket)
        return found[0] if found else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        if not self.stateful or ticket is None:
            return []
        found: list[Origin] = self.dataset.origins(ticket, self.context, self.workers, self.collate)
        return found

    def state(self) -> State:
        return {
            "lanes": dict(self.lanes),
            "total": self.dataset.pipeline.lanes,
            "seed": self.dataset.pipeline.seed,
            "batch_size": self.stage.loader.batch_size,
            "by_worker": self.dataset.pipeline.nsamples >= 0,
            "last": self.last,
            "workers": self.workers,
            "count": self.count,
        }

    def restore(self, state: State) -> None:
        pipeline = self.dataset.pipeline
        if state["total"] != pipeline.lanes:
            raise StateError(
                f"the state's data set had lanes={state['total']} and this one has "
                f"lanes={pipeline.lanes}: set lanes={state['total']}"
            )
        now = {"seed": pipeline.seed, "batch_size": self.stage.loader.batch_size}
        for what, value in now.items():
            if state[what] != value:
                raise StateError(f"the state's loader had {what}={state[what]}, this one {value}")
        one_lane_each = pipeline.lanes is None or state["by_worker"]
        if one_lane_each and state["workers"] != self.workers:
            raise StateError(
                f"the state was saved with {state['workers']} workers and this loader has "
                f"{self.workers}: only a data set with lanes can resume with another number"
            )
        if opaque := self.dataset.opaque():
            warnings.warn(
                f"{', '.join(opaque)} has a state that cannot be saved: the epoch is replayed up "
                "to the saved step",
                stacklevel=2,
            )
        same = state["workers"] == self.workers
        self.lanes, self.count = dict(state["lanes"]), as_count(state["count"])
        self.last = as_count(state["last"] + 1) - 1
        shift = (self.last + 1) % self.workers if same else 0
        self._plan = WorkerPlan(self.context.epoch, self.lanes, shift)

    def fetch(self, ticket: Ticket) -> Any:
        return self.dataset.fetch(ticket, self.context, self.workers, self.collate)

    def again(self, context: Context) -> Run[Any]:
        return LoaderRun(self.stage, None, context)


def find_run(run: Any, kind: type[R]) -> R | None:
    """Return the last run of a class in a running pipeline, or None."""
    while run is not None and not isinstance(run, kind):
        parents = run.parents()
        run = parents[0] if parents else None
    return run


def find_cache(stage: Any) -> ShardCache | None:
    """Return the shard cache that a stage reads through, or None."""
    cache = getattr(stage, "cache", None)
    return cache if isinstance(cache, ShardCache) else None
