"""How the states of worker processes reach the loader: each item carries its lane's state.

Workers run ahead of the training loop. A checkpoint needs the state of each lane after the last
item that the loop received, so the state is sent with the item; a large state only periodically.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.batches.batched import batched
from penstock.context import Context, SharedCounts, in_worker
from penstock.errors import Origin, StateError
from penstock.loaders.small_tensors import wrap_small_tensors
from penstock.loaders.to_tensors import arrays_to_tensors, collate_in_place, torch_data
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.lanes import Lane, LanesRun
from penstock.stages.run import Run, Ticket, reading_state
from penstock.transforms.gpu.file_table import sendable


@dataclasses.dataclass(slots=True, eq=False)
class StatefulItem:
    """An item sent by a worker, with the states of the lanes that it came from."""

    item: Any
    lanes: dict[str, Any]
    ticket: Ticket
    worker: int

    def pin_memory(self) -> StatefulItem:
        """Move the item to pinned memory and return self; torch calls this method."""
        from torch.utils.data._utils import pin_memory

        self.item = pin_memory.pin_memory(self.item)  # type: ignore[no-untyped-call]
        return self


class StatefulConvert:
    """The collate function of a loader with batch_size=None: converts one stateful item."""

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self.convert = convert

    def apply(self, item: Any) -> Any:
        """Convert an item that has no state attached."""
        return arrays_to_tensors(item) if self.convert is None else self.convert(item)

    def __call__(self, stateful: StatefulItem) -> StatefulItem:
        stateful.item = self.apply(stateful.item)
        if in_worker():
            stateful.item = wrap_small_tensors(sendable(stateful.item))
        return stateful


class StatefulCollate:
    """The collate function of a loader that makes batches of stateful items."""

    in_place = False
    """True on threads; worker processes must build their batches in torch's shared memory."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self.collate = collate

    def apply(self, items: list[Any]) -> Any:
        """Collate items that have no state attached."""
        if self.collate is not None:
            return self.collate(items)
        return collate_in_place(items) if self.in_place else torch_data().default_collate(items)

    def __call__(self, stateful: list[StatefulItem]) -> StatefulItem:
        lanes: dict[str, Any] = {}
        for one in stateful:
            update_lanes(lanes, one.lanes)
        batch = self.apply([one.item for one in stateful])
        if in_worker():
            batch = wrap_small_tensors(batch)
        return StatefulItem(batch, lanes, [one.ticket for one in stateful], stateful[-1].worker)


def collect_lane_states(
    root: Any, context: Context, touched: Iterable[int] | None = None
) -> dict[str, Any]:
    """Return the states of the lanes ``touched``, by default of the last item's lane."""
    if not isinstance(root, LanesRun):
        return {f"worker {context.worker}": root.state()}
    lanes = (root.current,) if touched is None else touched
    return {str(lane): root.lanes[lane].state() for lane in lanes}


def update_lanes(lanes: dict[str, Any], updates: dict[str, Any]) -> None:
    """Update the states of lanes with those that came with an item.

    An update is the lane's state, or the number of items that it yielded since its last state.
    """
    for lane, update in updates.items():
        if isinstance(update, int) and isinstance(lanes.get(lane), dict):
            state = lanes[lane]
            since = update - state.get("behind", 0)
            lanes[lane] = {**state, "given": state["given"] + since, "behind": update}
        else:
            lanes[lane] = update


SAMPLES_PER_STATE = 64
"""A state with this many tickets costs about as much to send as a sample costs to read."""


class StateCadence:
    """Decides how often a lane's state is sent: a large one, of a large buffer, less often.

    Between two states an item carries only the number of items since the last state. When a run
    resumes there, that many items are recreated and skipped, at most about one batch of samples.
    """

    def __init__(self) -> None:
        self.items = self.samples = self.due = 0

    def next_update(self, lane: Lane, ticket: Ticket) -> Any:
        """Return the state to send with the lane's item, or the number of items since the last."""
        self.items += 1
        self.samples += len(ticket) if isinstance(ticket, list) else 1
        if self.samples < self.due:
            return self.items
        state = lane.state()
        self.items = self.samples = 0
        self.due = len(pickle.dumps(state)) // 8 // SAMPLES_PER_STATE
        return state


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """What workers need to resume from a state."""

    epoch: int
    lanes: dict[str, Any]
    shift: int
    """torch asks worker 0 first; after a resume, it acts as the worker that is next in turn."""


class StatefulDataset:
    """A pipeline whose items carry states, for torch's workers."""

    def __init__(self, pipeline: DataPipeline[Any]) -> None:
        self.pipeline = pipeline
        self.plan: WorkerPlan | None = None
        self.make_engine: Callable[[], Any] | None = None
        """Makes the thread engine of a worker process; None: it has no threads."""
        self._runs: dict[Any, Run[Any]] = {}
        self._epoch = pipeline.epoch
        self._iteration = 0  # of the same workers
        self._epochs = SharedCounts(2)
        """The epochs of the last two iterations. Workers that persist may still begin one while
        this process prepares the next."""

    def __getstate__(self) -> dict[str, Any]:
        # The counters first: only so many can be shared with spawned workers.
        return {"_epochs": self._epochs, **self.__dict__, "_runs": {}}

    def __repr__(self) -> str:
        return repr(self.pipeline)

    @property
    def fingerprint(self) -> str:
        """A string that changes when the data changes."""
        return self.pipeline.fingerprint

    def prepare(self, plan: WorkerPlan | None, context: Context, *, persist: bool) -> None:
        """Set what workers need for this iteration; ``persist`` if they served earlier ones."""
        pipeline = self.pipeline
        if pipeline._resume is not None or pipeline._skip:
            raise StateError(
                "call load_state_dict and skip on the WebLoader, not on its data set: the loader "
                "has to know what its workers skip"
            )
        self.plan = plan
        pipeline._rank = (context.rank, context.world_size)
        self._epoch = context.epoch
        self._iteration = self._iteration + 1 if persist else 0
        self._epochs.set_all(self._iteration % 2, context.epoch)
        pipeline.set_epoch_of_worker(context.epoch + 1, 0, 1)  # it has no state of its own now

    def opaque(self) -> list[str]:
        """Return the stages whose state cannot be saved; resuming replays them."""
        return self.pipeline.start(self.pipeline.context()).opaque()

    def endless(self) -> bool:
        """Return whether an epoch of the pipeline has no end."""
        if self.pipeline.nsamples >= 0:
            return self.pipeline.nsamples == 0
        return self.pipeline.start(self.pipeline.context()).endless

    def whole_process(self) -> list[str]:
        """Return the stages that cannot run on a thread of the loader beside other threads."""
        waiting: list[Run[Any]] = [self.pipeline.start(self.pipeline.context())]
        found: list[str] = []
        while waiting:
            run = waiting.pop()
            found += [repr(run.stage)] if run.whole_process else []
            waiting += run.parents()
        return found

    def one_each(self, collate: Any) -> bool:
        """Return whether part n of a batch comes from origin n."""
        if isinstance(collate, StatefulCollate):
            batches = any(isinstance(stage, batched) for stage in self.pipeline.pipeline)
            return collate.collate is None and not batches
        return self.pipeline.start(self.pipeline.context()).one_each

    def begin(self, engine: Any = None) -> tuple[Any, Context]:
        """Start the pipeline, at the plan's position if there is one; return run and context."""
        context = dataclasses.replace(self.pipeline.context(), engine=engine, epoch=self._epoch)
        plan = self.plan if self.plan is not None and self.plan.epoch == context.epoch else None
        if plan is not None:
            worker = (context.worker + plan.shift) % context.num_workers
            context = dataclasses.replace(context, worker=worker)
        # The loader has checked these stages together with those after it.
        root = self.pipeline.begin(context, check=False)
        if plan is not None:
            with reading_state():
                self._restore(root, plan, context)
        return root, context

    def __iter__(self) -> Iterator[StatefulItem]:
        if in_worker():  # torch's workers call this once in each iteration, before the first item
            if self._iteration > 0:
                shared, epoch = self._epochs.shared, self._epochs.get(self._iteration % 2)
                self._epoch = epoch if shared else self._epoch + 1
            self._iteration += 1
        return self._iterate()

    def _iterate(self) -> Iterator[StatefulItem]:
        engine = self.make_engine() if self.make_engine is not None else None
        try:
            yield from self._iterate_stateful(*self.begin(engine))
        finally:
            if engine is not None:
                engine.stop()

    def _iterate_stateful(self, root: Any, context: Context) -> Iterator[StatefulItem]:
        paces: dict[int, StateCadence] = {}
        for item in root:
            ticket = root.ticket
            if isinstance(root, LanesRun):
                lane = root.current
                pace = paces.setdefault(lane, StateCadence())
                lanes = {str(lane): pace.next_update(root.lanes[lane], ticket[1])}
            else:
                lanes = {f"worker {context.worker}": root.state()}
            yield StatefulItem(item, lanes, ticket, context.worker)

    def _restore(self, root: Any, plan: WorkerPlan, context: Context) -> None:
        if isinstance(root, LanesRun):
            # A lane without a state has yielded nothing yet.
            root.restore({str(n): plan.lanes.get(str(n), {"given": 0}) for n in root.lanes})
        elif (state := plan.lanes.get(f"worker {context.worker}")) is not None:
            root.restore(state)

    # ── in the loader's own process ─────────────────────────────────────────────────────

    def _run(self, lane: int, passes: int, outer: Context, workers: int) -> Run[Any]:
        """Return a run of one lane in this process, to recreate items or look up origins."""
        key = (lane, passes, outer.epoch)
        if key not in self._runs:
            total = self.pipeline.lanes
            context = dataclasses.replace(
                self.pipeline.context(), epoch=(passes << 32) + outer.epoch, num_workers=workers
            )
            if total is not None:
                context = dataclasses.replace(context, lane=lane, lanes=total)
            else:
                worker = (lane - outer.rank) // outer.world_size
                context = dataclasses.replace(context, worker=worker)
            self._runs = {k: v for k, v in self._runs.items() if k[2] == outer.epoch}
            self._runs[key] = self.pipeline.start(context)
        return self._runs[key]

    def _locate(self, ticket: Ticket, outer: Context, workers: int) -> tuple[Run[Any], Ticket]:
        passes = 0
        if self.pipeline.nsamples >= 0:
            passes, ticket = ticket
        lane, inner = ticket
        return self._run(lane, passes, outer, workers), inner

    def fetch(self, ticket: Ticket, outer: Context, workers: int, collate: Any) -> Any:
        """Recreate the item of a ticket."""
        if isinstance(collate, StatefulCollate):
            return collate.apply([self.fetch(one, outer, workers, None) for one in ticket])
        run, inner = self._locate(ticket, outer, workers)
        item = run.fetch(inner)
        return collate.apply(item) if isinstance(collate, StatefulConvert) else item

    def origins(self, ticket: Ticket, outer: Context, workers: int, collate: Any) -> list[Origin]:
        """Return the origins of the samples in the item of a ticket."""
        if isinstance(collate, StatefulCollate):
            return [o for one in ticket for o in self.origins(one, outer, workers, None)]
        run, inner = self._locate(ticket, outer, workers)
        return run.origins(inner)
