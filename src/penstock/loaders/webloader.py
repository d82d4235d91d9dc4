"""torch's DataLoader with every stage as a method behind it, and a state that can be saved."""

from __future__ import annotations

import logging
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from penstock.context import Context
from penstock.errors import Origin, PipelineError, StateError
from penstock.loaders.options import (
    MAX_MEMORY,
    arguments,
    choose_engine,
    size_bytes,
    streams,
    thread_loader,
    torch_loader,
    warn_of_copies,
    worker_threads,
)
from penstock.loaders.device.to_device import AHEAD, DeviceRun, to_device
from penstock.loaders.stats.recorder import Gauge
from penstock.loaders.worker_state import (
    Plan,
    Stamp,
    StampedCollate,
    StampedConvert,
    StampedDataset,
    join,
)
from penstock.loaders.stats.stats import Stats
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.state import StateDict, as_states, check_whole, merge
from penstock.stages.run import IterableRun, Run, State, Ticket
from penstock.stages.stage import Each
from penstock.storage.cache.shard_cache import ShardCache

R = TypeVar("R")
REMEMBERED_STEPS = 10_000


class WebLoader(DataPipeline[Any]):
    """A loader: takes what torch's ``DataLoader`` takes, and is a pipeline behind it.

    It is best to batch in the data set and to rebatch behind the loader, which mixes the samples
    of different workers::

        dataset = WebDataset(urls).shuffle(1000).decode("torchrgb")
        dataset = dataset.to_tuple("jpg", "cls").batched(16)
        loader = WebLoader(dataset, num_workers=4, batch_size=None)
        loader = loader.unbatched().shuffle(1000).batched(32)

    ``engine`` says what the workers are: ``"processes"`` of torch's, ``"threads"`` of this process
    (nothing is pickled, batches are made in place; best where decoding takes the time), or
    ``"auto"``, which measures a few samples; ``engine_choice`` tells why it is the one it is.
    On threads ``prefetch_factor`` is how many batches wait, and ``max_memory`` bounds them and
    the samples on their way. Order and state do not depend on the number of threads. With
    processes, ``threads`` is how many of them each worker process has: a few processes with a few
    threads each leave the interpreter lock of this process to the trainer.

    Each ``iter(loader)`` is the data set's next epoch, also in workers that are started anew.
    :meth:`state_dict` counts what this process was given, not what workers have prepared.

    >>> from penstock import DataPipeline
    >>> data = DataPipeline(lambda: iter([1, 2, 3]))
    >>> list(WebLoader(data, batch_size=None).map(lambda x: x + 1))
    [2, 3, 4]
    >>> list(WebLoader(data, batch_size=None, num_workers=2, engine="threads"))
    [1, 2, 3]
    """

    def __init__(
        self,
        *args: Any,
        engine: str = "processes",
        max_memory: int | str = MAX_MEMORY,
        threads: int = 0,
        device: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self._gauges = [Gauge()]  # a list that copies with more stages share
        dataset, options = arguments(args, kwargs)
        if getattr(dataset, "is_stage", False):  # a mix, or a shard list
            dataset = DataPipeline(dataset)
        if isinstance(dataset, DataPipeline):
            dataset = StampedDataset(dataset)
            size = options.get("batch_size", 1)
            stamped = StampedConvert if size is None else StampedCollate
            options["collate_fn"] = stamped(options.get("collate_fn"))
            self.set_epoch(dataset.pipeline.epoch)
        self.engine, self.engine_choice = choose_engine(engine, dataset, options)
        if engine == "auto":
            logging.getLogger("penstock").info("WebLoader: %s", self.engine_choice)
        if threads and engine == "threads":
            raise PipelineError("num_workers is the number of threads where engine='threads'")
        if threads and self.engine == "processes":
            worker_threads(dataset, options, threads, size_bytes(max_memory))
        if self.engine == "threads":
            self.loader = thread_loader(dataset, options, size_bytes(max_memory))
            self.loader.meter = self._gauges[0]
        else:
            warn_of_copies(dataset, options)
            self.loader = torch_loader(dataset, options)
        self.append(Loader(self.loader))
        if device is not None:
            self.append(to_device(device))
        if isinstance(dataset, StampedDataset) and hasattr(type(dataset.pipeline), "__len__"):
            self._give_length()

    @property
    def dataset(self) -> Any:
        """The data set behind the loader."""
        dataset = self.loader.dataset
        return dataset.pipeline if isinstance(dataset, StampedDataset) else dataset

    def length(self) -> int:
        alone = all(isinstance(stage, to_device) for stage in self.pipeline[1:])
        if self.size is None and self.nsamples < 0 and alone:
            if self.loader.batch_size is None:
                each = streams(self.loader) if self.dataset.nsamples > 0 else 1
                return each * len(self.dataset)
        return super().length()

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
        """A copy that gives batches on the device, copied there ahead of time: :class:`to_device`.

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

    def __iter__(self) -> Iterator[Any]:
        # A new one: threads of an epoch that was left may still be at work, and tell the old one.
        before, gauge = self._gauges[0], Gauge()
        self._gauges[0] = gauge
        if getattr(self.loader, "meter", None) is before:
            self.loader.meter = gauge
        return gauge.watched(super().__iter__())

    def stats(self) -> Stats:
        """Where the time goes in the running epoch, or went in the last one.

        Per stage, for the queue, and for the trainer, with one sentence that names what holds the
        loader back. Worker processes tell nothing of their stages.

        >>> import penstock
        >>> loader = WebLoader(penstock.DataPipeline([1, 2, 3]), batch_size=None)
        >>> _ = list(loader)
        >>> loader.stats().batches
        3
        """
        gauge, device = self._gauges[0], _found(self._current, DeviceRun)
        skipped = dict(self.skipped)
        for name, count in getattr(self.dataset, "skipped", {}).items():
            skipped[name] = skipped.get(name, 0) + count
        caches = [c for s in getattr(self.dataset, "pipeline", []) if (c := cache_of(s))]
        opened = [cache.opened for cache in caches]
        return gauge.stats(
            self.engine,
            self.loader.num_workers,
            queue_limit=getattr(self.loader, "prefetch_factor", None),
            device_wait_s=None if device is None else device.waits.seconds,
            device_lead_s=None if device is None else device.waits.lead,
            cache_hits=sum(hits for hits, _ in opened) if caches else None,
            cache_fetches=sum(fetches for _, fetches in opened) if caches else None,
            skipped=skipped,
        )

    def provenance(self, step: int) -> list[Origin]:
        """Where the samples of a step of this epoch came from: shard, key and byte of each.

        The first step is 0; the last ten thousand of the running epoch are remembered.
        """
        if not all(isinstance(stage, (Each, to_device)) for stage in self.pipeline[1:]):
            raise PipelineError(
                "provenance speaks of the loader's own steps, and stages behind it make others of "
                "them: ask origins() after each step instead"
            )
        run = _found(self._current, LoaderRun)
        return run.provenance(step) if run is not None else []

    def load_state_dict(self, state: StateDict | Sequence[StateDict]) -> None:
        states = as_states(state)
        elsewhere = states[0].get("ranks") != self.context().world_size
        super().load_state_dict(self._joined(states) if elsewhere or states[1:] else states[0])
        self.loader._iterator = None  # workers that go on from a state are started anew

    def _joined(self, states: list[StateDict]) -> StateDict:
        """The states of all ranks as this rank's: it takes the lanes it owns from among all."""
        merged = merge(states)
        here = self.context()
        check_whole(merged, here.world_size)
        if isinstance(merged["state"], list):
            raise StateError(
                "with_epoch counts what each rank was given: such a state can go on only with as "
                "many ranks as before"
            )
        if merged["state"] is not None:
            lanes: dict[str, Any] = {}
            run: Any = None
            for lane in merged["state"].values():
                if lane["given"] == 0:
                    continue
                run = lane.get("run")
                if not isinstance(run, dict) or run.get("total") is None or run.get("by_worker"):
                    raise StateError(
                        "this state can go on only with as many ranks and workers as before: a "
                        "stage behind the loader keeps samples, or the data set has no lanes"
                    )
                lanes.update(run["lanes"])
            state: dict[str, Any] = {"given": 0}
            if run is not None:
                # Only its own: those of others would be saved again, as they were now.
                lanes = {n: s for n, s in lanes.items() if int(n) % here.world_size == here.rank}
                run = {**run, "lanes": lanes, "last": -1, "workers": None}
                state = {"given": 1, "run": run}
            merged = {**merged, "state": {str(here.rank): state}}
        return {**merged, "ranks": here.world_size, "rank": here.rank}


class Loader:
    """A DataLoader as the source of a pipeline: tells the data set which epoch begins."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __repr__(self) -> str:
        return f"DataLoader({self.loader.dataset!r}, batch_size={self.loader.batch_size})"

    @property
    def pipeline(self) -> Any:
        """The data set's stages, for the names by which a state knows them again."""
        return getattr(getattr(self.loader.dataset, "pipeline", None), "pipeline", [])

    @property
    def nsamples(self) -> int:
        """The length of the data set's epochs, where it has one."""
        return getattr(getattr(self.loader.dataset, "pipeline", None), "nsamples", -1)

    @property
    def fingerprint(self) -> str:
        """A text that differs when the data does."""
        return str(getattr(self.loader.dataset, "fingerprint", ""))

    def __penstock_start__(self, source: Run[Any] | None, context: Context) -> Run[Any]:
        return LoaderRun(self, None, context)


class LoaderRun(IterableRun[Any]):
    """A DataLoader at work: keeps, of every lane, the state that came with its last item.

    A ticket is (the lane, the item's ticket there).
    """

    def __init__(self, stage: Loader, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.dataset = stage.loader.dataset
        self.collate = stage.loader.collate_fn
        self.stamped = isinstance(self.dataset, StampedDataset)
        self.resumable = self.stamped and not self.dataset.opaque()
        self.one_each = self.stamped and self.dataset.one_each(self.collate)
        self.lanes: dict[str, Any] = {}
        self.last = -1  # the worker whose item was given last
        self.workers = streams(stage.loader)
        # Pickled: a tenth of the memory, and nothing for the garbage collector to look at.
        self.history: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED_STEPS)
        self._ticket: Ticket = None
        self._plan: Plan | None = None

    def __iter__(self) -> Iterator[Any]:
        if self.stamped:
            self.dataset.prepare(self._plan, self.context)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.context.epoch)
        for item in self.stage.loader:
            self.count += 1
            if isinstance(item, Stamp):
                join(self.lanes, item.lanes)
                self.last, self._ticket = item.worker, item.ticket
                self.history.append((self.count - 1, pickle.dumps(item.ticket)))
                item = item.item
            yield item
            del item  # a batch that the training loop lets go of is gone

    @property
    def ticket(self) -> Ticket:
        return self._ticket if self.stamped else super().ticket

    def provenance(self, step: int) -> list[Origin]:
        # A copy, whose entries say which step they are: with to_device another thread goes on.
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
        if not self.stamped or ticket is None:
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
                f"lanes={pipeline.lanes}: say lanes=… as before"
            )
        now = {"seed": pipeline.seed, "batch_size": self.stage.loader.batch_size}
        for what, value in now.items():
            if state[what] != value:
                raise StateError(f"the state's loader had {what}={state[what]}, this one {value}")
        one_lane_each = pipeline.lanes is None or state["by_worker"]
        if one_lane_each and state["workers"] != self.workers:
            raise StateError(
                f"the state is of {state['workers']} workers and this loader has {self.workers}: "
                "only a data set with lanes can go on with another number"
            )
        same = state["workers"] == self.workers
        self.lanes, self.last, self.count = dict(state["lanes"]), state["last"], state["count"]
        shift = (self.last + 1) % self.workers if same else 0
        self._plan = Plan(self.context.epoch, self.lanes, shift)

    def fetch(self, ticket: Ticket) -> Any:
        return self.dataset.fetch(ticket, self.context, self.workers, self.collate)

    def again(self, context: Context) -> Run[Any]:
        return LoaderRun(self.stage, None, context)


def _found(run: Any, kind: type[R]) -> R | None:
    """The run of a kind, from the end of a running pipeline to its beginning."""
    while run is not None and not isinstance(run, kind):
        parents = run.parents()
        run = parents[0] if parents else None
    return run


def cache_of(stage: Any) -> ShardCache | None:
    """The shard cache that a stage reads through."""
    cache = getattr(stage, "cache", None)
    return cache if isinstance(cache, ShardCache) else None
