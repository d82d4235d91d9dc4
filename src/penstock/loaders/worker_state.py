"""How the states of worker processes reach the loader: each item comes with its lane's state.

Workers run ahead of the training loop. What counts is where each lane stood behind the item that
the loop was given last, so that travels with the item; of a large state, only now and then.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.batches.batched import batched
from penstock.context import Context, in_worker
from penstock.errors import Origin, StateError
from penstock.loaders.to_tensors import collated, converted, torch_data
from penstock.loaders.small_tensors import by_value
from penstock.pipeline.lanes import Lane, LanesRun
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.stages.run import Run, Ticket
from penstock.transforms.gpu.file_table import sendable


class Stamp:
    """An item on its way from a worker, with the states of the lanes it came from."""

    __slots__ = ("item", "lanes", "ticket", "worker")

    def __init__(self, item: Any, lanes: dict[str, Any], ticket: Ticket, worker: int) -> None:
        self.item, self.lanes, self.ticket, self.worker = item, lanes, ticket, worker

    def pin_memory(self) -> Stamp:
        """The stamp with its item in pinned memory: torch asks each object to do that itself."""
        from torch.utils.data._utils import pin_memory

        self.item = pin_memory.pin_memory(self.item)  # type: ignore[no-untyped-call]
        return self


class StampedConvert:
    """The loader's collate function where it makes no batches: for one stamped item."""

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self.convert = convert

    def plain(self, item: Any) -> Any:
        """The item without a stamp, converted."""
        return converted(item) if self.convert is None else self.convert(item)

    def __call__(self, stamp: Stamp) -> Stamp:
        stamp.item = self.plain(stamp.item)
        if in_worker():
            stamp.item = by_value(sendable(stamp.item))
        return stamp


class StampedCollate:
    """The loader's collate function for stamped items."""

    in_place = False
    """On threads; worker processes must make their batches in torch's shared memory."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self.collate = collate

    def plain(self, items: list[Any]) -> Any:
        """The batch of items without stamps."""
        if self.collate is not None:
            return self.collate(items)
        return collated(items) if self.in_place else torch_data().default_collate(items)

    def __call__(self, stamps: list[Stamp]) -> Stamp:
        lanes: dict[str, Any] = {}
        for stamp in stamps:
            join(lanes, stamp.lanes)
        batch = self.plain([stamp.item for stamp in stamps])
        if in_worker():
            batch = by_value(batch)
        return Stamp(batch, lanes, [stamp.ticket for stamp in stamps], stamps[-1].worker)


def lanes_of(root: Any, context: Context, touched: Iterable[int] | None = None) -> dict[str, Any]:
    """The states of the lanes that items came from, by default of the one given last."""
    if not isinstance(root, LanesRun):
        return {f"worker {context.worker}": root.state()}
    lanes = (root.current,) if touched is None else touched
    return {str(lane): root.lanes[lane].state() for lane in lanes}


def join(lanes: dict[str, Any], news: dict[str, Any]) -> None:
    """Bring the lanes' states up to date with what a stamp says.

    A stamp has a lane's state, or only how many items the lane has given since the last one.
    """
    for lane, said in news.items():
        if isinstance(said, int) and isinstance(lanes.get(lane), dict):
            state = lanes[lane]
            since = said - state.get("behind", 0)
            lanes[lane] = {**state, "given": state["given"] + since, "behind": said}
        else:
            lanes[lane] = said


SAMPLES_PER_STATE = 64
"""A state with so many tickets costs about as much to send as a sample costs to read."""


class Pace:
    """How often a lane's state travels: large ones, of large buffers, not with every sample.

    Between two states a stamp says only how many items came since; that many are made again
    and left out when a run goes on from there, never more than about a batch of samples.
    """

    def __init__(self) -> None:
        self.items = self.samples = self.due = 0

    def said(self, lane: Lane, ticket: Ticket) -> Any:
        """What the stamp of the lane's item says: its state, or how many items since the last."""
        self.items += 1
        self.samples += len(ticket) if isinstance(ticket, list) else 1
        if self.samples < self.due:
            return self.items
        state = lane.state()
        self.items = self.samples = 0
        self.due = len(pickle.dumps(state)) // 8 // SAMPLES_PER_STATE
        return state


@dataclasses.dataclass(frozen=True)
class Plan:
    """What workers that go on from a state need to know."""

    epoch: int
    lanes: dict[str, Any]
    shift: int
    """torch asks worker 0 first; after a resume that one plays the worker whose turn it was."""


class StampedDataset:
    """A pipeline whose items come stamped, for torch's workers."""

    def __init__(self, pipeline: DataPipeline[Any]) -> None:
        self.pipeline = pipeline
        self.plan: Plan | None = None
        self.make_engine: Callable[[], Any] | None = None
        """Makes the threads of a worker process, where it has any."""
        self._runs: dict[Any, Run[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_runs": {}}

    def __repr__(self) -> str:
        return repr(self.pipeline)

    @property
    def fingerprint(self) -> str:
        """A text that differs when the data does."""
        return self.pipeline.fingerprint

    def prepare(self, plan: Plan | None, context: Context) -> None:
        """Tell the workers that are started next what only this process knows."""
        pipeline = self.pipeline
        if pipeline._resume is not None or pipeline._skip:
            raise StateError(
                "load_state_dict and skip are the loader's here: it has to know what its workers "
                "leave out; call them on the WebLoader, not on its data set"
            )
        self.plan = plan
        pipeline._rank = (context.rank, context.world_size)

    def set_epoch(self, epoch: int) -> None:
        self.pipeline.set_epoch(epoch)

    def opaque(self) -> list[str]:
        """The stages that only a replay can bring back."""
        return self.pipeline.start(self.pipeline.context()).opaque()

    def whole_process(self) -> list[str]:
        """The stages that cannot run on a thread of the loader's, while others are at work."""
        waiting: list[Run[Any]] = [self.pipeline.start(self.pipeline.context())]
        found: list[str] = []
        while waiting:
            run = waiting.pop()
            found += [repr(run.stage)] if run.whole_process else []
            waiting += run.parents()
        return found

    def one_each(self, collate: Any) -> bool:
        """Whether the n-th part of a batch comes of the n-th of its origins."""
        if isinstance(collate, StampedCollate):
            batches = any(isinstance(stage, batched) for stage in self.pipeline.pipeline)
            return collate.collate is None and not batches
        return self.pipeline.start(self.pipeline.context()).one_each

    def begin(self, engine: Any = None) -> tuple[Any, Context]:
        """The pipeline at work, from where the plan says, and its place."""
        context = dataclasses.replace(self.pipeline.context(), engine=engine)
        self.pipeline.set_epoch_of_worker(context.epoch + 1, context.worker)
        plan = self.plan if self.plan is not None and self.plan.epoch == context.epoch else None
        if plan is not None:
            worker = (context.worker + plan.shift) % context.num_workers
            context = dataclasses.replace(context, worker=worker)
        root = self.pipeline.begin(context)
        if plan is not None:
            self._restore(root, plan, context)
        return root, context

    def __iter__(self) -> Iterator[Stamp]:
        engine = self.make_engine() if self.make_engine is not None else None
        try:
            yield from self._stamps(*self.begin(engine))
        finally:
            if engine is not None:
                engine.stop()

    def _stamps(self, root: Any, context: Context) -> Iterator[Stamp]:
        paces: dict[int, Pace] = {}
        for item in root:
            ticket = root.ticket
            if isinstance(root, LanesRun):
                lane = root.current
                pace = paces.setdefault(lane, Pace())
                lanes = {str(lane): pace.said(root.lanes[lane], ticket[1])}
            else:
                lanes = {f"worker {context.worker}": root.state()}
            yield Stamp(item, lanes, ticket, context.worker)

    def _restore(self, root: Any, plan: Plan, context: Context) -> None:
        if isinstance(root, LanesRun):
            # A lane that no item came from yet stands at its beginning.
            root.restore({str(n): plan.lanes.get(str(n), {"given": 0}) for n in root.lanes})
        elif (state := plan.lanes.get(f"worker {context.worker}")) is not None:
            root.restore(state)

    # ── in the loader's own process ─────────────────────────────────────────────────────

    def _run(self, lane: int, passes: int, place: Context, workers: int) -> Run[Any]:
        """The stages of one lane, started here to make items again or to ask for origins."""
        key = (lane, passes, place.epoch)
        if key not in self._runs:
            total = self.pipeline.lanes
            context = dataclasses.replace(
                self.pipeline.context(), epoch=(passes << 32) + place.epoch, num_workers=workers
            )
            if total is not None:
                context = dataclasses.replace(context, lane=lane, lanes=total)
            else:
                worker = (lane - place.rank) // place.world_size
                context = dataclasses.replace(context, worker=worker)
            self._runs = {k: v for k, v in self._runs.items() if k[2] == place.epoch}
            self._runs[key] = self.pipeline.start(context)
        return self._runs[key]

    def _located(self, ticket: Ticket, place: Context, workers: int) -> tuple[Run[Any], Ticket]:
        passes = 0
        if self.pipeline.nsamples >= 0:
            passes, ticket = ticket
        lane, inner = ticket
        return self._run(lane, passes, place, workers), inner

    def fetch(self, ticket: Ticket, place: Context, workers: int, collate: Any) -> Any:
        """The item of a ticket, made again."""
        if isinstance(collate, StampedCollate):
            return collate.plain([self.fetch(one, place, workers, None) for one in ticket])
        run, inner = self._located(ticket, place, workers)
        item = run.fetch(inner)
        return collate.plain(item) if isinstance(collate, StampedConvert) else item

    def origins(self, ticket: Ticket, place: Context, workers: int, collate: Any) -> list[Origin]:
        """The origins of the samples in the item of a ticket."""
        if isinstance(collate, StampedCollate):
            return [o for one in ticket for o in self.origins(one, place, workers, None)]
        run, inner = self._located(ticket, place, workers)
        return run.origins(inner)
