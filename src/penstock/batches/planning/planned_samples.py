"""Planned batches of indexed shards: read in the plan's order, cut at the plan's boundaries.

With a length column in the index, the batches of an epoch are known before anything is read. The
source gives the samples batch by batch, in windows of shards as it does without a plan; stages
change single samples; ``planned`` collects those of each batch. The state is a place in the plan.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.batches.collate import Collation, default_collation_fn
from penstock.batches.planning.cost import Array, told
from penstock.batches.batched import BatchedRun
from penstock.batches.planning.batch_plan import GROUP, PLAN_ENDS, POOL, BatchPlan, plan_batches
from penstock.context import Context
from penstock.errors import PenstockError, PipelineError
from penstock.shards.sample_reader import Sample
from penstock.stages.segment import EachRun, ManyRun
from penstock.stages.sources.indexed_samples import (
    KEPT_ORDERS,
    SOON_BYTES,
    WINDOW,
    IndexedRun,
    IndexedSamples,
)
from penstock.stages.inspect import info, log_keys
from penstock.stages.run import FunctionRun, Run, State, Ticket
from penstock.stages.stage import Stage

LARGEST_GROUP = 16
OWN = ("seed", "epoch", "ranks", "order", "windows", "ends")


class Plan:
    """How the batches of indexed shards are planned: a budget, and the index's length column.

    ``length`` is the name of the column, or a list of two for two lengths. All other arguments are
    those of :func:`~penstock.plan_batches`.

    >>> Plan(600, length="seconds", pool=2048)
    Plan(600, length='seconds', pool=2048)
    """

    def __init__(self, budget: Any, *, length: str | Sequence[str], **options: Any) -> None:
        for name in OWN:
            if name in options:
                raise PipelineError(f"Plan: {name} is the data set's, not the plan's")
        plan_batches([], budget, **options)  # what cannot work is told now
        self.budget, self.length, self.options = budget, length, options

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [self.length] if isinstance(self.length, str) else list(self.length)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        words = [repr(self.budget), f"length={self.length!r}"]
        words += [f"{name}={told(value)}" for name, value in self.options.items()]
        return f"Plan({', '.join(words)})"


class PlannedSamples(IndexedSamples):
    """The samples of indexed shards, batch by planned batch; :class:`planned` collects them.

    It is an :class:`IndexedSamples` whose order is that of the plan. ``ends`` may also be
    ``"split"``, the default: the batches of the last step are split until all ranks (or lanes)
    have one, so that all get equally many and nothing is left out.

    >>> from penstock import DataPipeline
    >>> source = PlannedSamples("train-{000..099}.tar", plan=Plan(600, length="seconds"))
    >>> pipeline = DataPipeline(source, planned())
    """

    def __init__(
        self,
        urls: Any,
        index: Any = True,
        *,
        plan: Plan,
        window: int = WINDOW,
        ends: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(plan, Plan):
            raise PipelineError(f"plan is a Plan(budget, length=...), not {plan!r}")
        if ends is not None and ends not in PLAN_ENDS:
            raise PipelineError(f"ends is one of {PLAN_ENDS}, not {ends!r}")
        super().__init__(urls, index, window=window, **options)
        self.plan = plan
        self.ends: str = ends or "split"
        self._plans: dict[tuple[int, ...], BatchPlan] = {}

    @functools.cached_property
    def lengths(self) -> Array:
        """The lengths of all samples, one row each."""
        index = self.opened()[0]
        return np.stack([index.column(name).astype(float) for name in self.plan.columns], axis=1)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that differs when the data or its lengths do."""
        lengths = hashlib.blake2b(self.lengths.tobytes(), digest_size=8).hexdigest()
        return f"{IndexedSamples.fingerprint.func(self)}-{lengths}"  # type: ignore[attr-defined]

    def planned(self, context: Context) -> BatchPlan:
        """The plan of the epoch. With lanes it does not depend on the number of ranks."""
        lanes, ranks = context.lanes, context.world_size
        unit = lanes if lanes is not None and self.ends == "split" else ranks
        key = (context.seed, context.epoch, lanes or 0, ranks, unit)
        plan = self._plans.get(key)
        if plan is None:
            rows, bounds = self.order(context.seed, context.epoch).all_rows()
            if not self.window:  # in order: mixed only among a few pools
                step = 4 * (self.plan.options.get("pool") or POOL)
                bounds = np.append(np.arange(0, len(rows), step), len(rows))
            options = {"group": _group(lanes, ranks), **self.plan.options}
            plan = plan_batches(
                self.lengths,
                self.plan.budget,
                seed=context.seed,
                epoch=context.epoch,
                order=rows,
                windows=bounds,
                ends="exact",
                **options,
            ).evened(unit, self.ends)
            last = list(self._plans.items())[1 - KEPT_ORDERS :]
            self._plans = {**dict(last), key: plan}
        return plan

    def positions(self, context: Context) -> int:
        return len(self.planned(context).rows)

    def start(self, source: Run[None] | None, context: Context) -> Run[Sample]:
        return PlannedRun(self, None, context)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "lengths"} | {"_plans": {}}


def _group(lanes: int | None, ranks: int) -> int:
    """How many batches of like length follow each other."""
    if lanes is None:
        return GROUP if GROUP % ranks == 0 else ranks
    # Any number of ranks that divides the lanes may go on: the same order for all of them.
    return max(size for size in range(1, LARGEST_GROUP + 1) if lanes % size == 0)


class PlannedRun(IndexedRun):
    """Planned reading at work: keeps which of its batches the lane is at, and how far in it.

    A ticket is a position among the samples of all batches. ``batch`` is the number of the batch
    that the last sample belongs to, ``complete`` whether it was the batch's last.
    """

    stage: PlannedSamples

    def __init__(self, stage: PlannedSamples, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.within = 0
        self.batch = -1
        self.complete = False

    @functools.cached_property
    def plan(self) -> BatchPlan:
        """The batches of this epoch, made when they are first needed."""
        return self.stage.planned(self.context)

    def __iter__(self) -> Iterator[Sample]:
        starts, count = self.plan.starts, len(self.plan)
        ahead = self.stage.opened()[1].remote
        while not self.ended:
            try:
                while (number := self.given * self.lanes + self.lane) < count:
                    end = starts.item(number + 1)
                    self.batch, self.position = number, starts.item(number) + self.within
                    self.within += 1
                    self.complete = self.position + 1 == end
                    if self.complete:
                        self.given, self.within = self.given + 1, 0
                    yield self._ahead(end) if ahead else self.fetch(self.position)
                return
            except PenstockError as error:
                if self.stage.handler(error):
                    self.skip()
                else:
                    self.ended = True

    def _ahead(self, end: int) -> Sample:
        """The sample at hand; of remote shards the rest of its batch is read along with it."""
        found = self._soon.pop(self.position, None)
        if found is not None:
            return found
        index, reader, _ = self.stage.opened()
        rows = [self._row(position) for position in range(self.position, end)]
        sizes = np.cumsum(index.size[rows])
        rows = rows[: max(int(np.searchsorted(sizes, SOON_BYTES // self.lanes)), 1)]
        try:
            samples = reader.read_many(rows)
        except PenstockError:
            return self.fetch(self.position)  # the one at fault is told of when its turn comes
        marked = range(self.position, self.position + len(rows))
        self._soon = {at: self._marked(sample, at) for at, sample in zip(marked, samples)}
        return self._soon.pop(self.position)

    def _row(self, position: int) -> int:
        row: int = self.plan.rows.item(position)
        return row

    def _marked(self, sample: Sample, position: int) -> Sample:
        if position >= len(self.plan.rows) - self.plan.repeated:
            sample["__pad__"] = True
        return sample

    def fetch(self, ticket: Ticket) -> Sample:
        return self._marked(self.stage.opened()[1].read(self._row(ticket)), ticket)

    def state(self) -> State:
        return [self.given, self.within]

    def restore(self, state: State) -> None:
        self.given, self.within = state
        # Of the sample given last: a stage behind may still be at what it became.
        self.complete = not self.within
        self.batch = (self.given - self.complete) * self.lanes + self.lane

    def left(self) -> int | None:
        return (
            int(self.plan.sizes[self.given * self.lanes + self.lane :: self.lanes].sum())
            - self.within
        )

    def batches_left(self) -> int:
        """How many batches the lane has not begun yet."""
        begun = self.given + (self.within > 0)
        return len(range(begun * self.lanes + self.lane, len(self.plan), self.lanes))

    def skip_ahead(self, count: int) -> bool:
        return False


class planned(Stage[Any, Any]):
    """Collects the samples of each planned batch, behind ``WebDataset(…, plan=Plan(…))``.

    ``collation_fn`` makes the batch of a list of samples (None: the list itself). Stages between
    the source and this one change single samples. Where they leave one out, the batch is
    smaller, and never mixed with the next; a batch that none is left of does not come.

    >>> planned(None)
    planned(None)
    """

    def __init__(self, collation_fn: Collation | None = default_collation_fn) -> None:
        self.collation_fn = collation_fn

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return PlannedBatchesRun(self, source, context)


class PlannedBatchesRun(BatchedRun):
    """Collecting planned batches at work: keeps the samples of the batch to come."""

    def __init__(self, stage: Any, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        *between, root = source.chain()
        if not isinstance(root, PlannedRun):
            raise PipelineError(
                "planned() collects the batches of a plan, and its source has none: say "
                "WebDataset(urls, index=True, plan=Plan(budget, length=COLUMN))"
            )
        for run in between:
            plain = isinstance(run, (EachRun, ManyRun, FunctionRun))
            if not (plain or isinstance(run.stage, (info, log_keys))):
                raise PipelineError(
                    f"{run.stage!r} between the plan and planned() would mix the batches: put it "
                    "behind planned(), or leave it out; the plan has its own random order"
                )
        self.root = root
        self.number = -1
        # Where one sample may become several, only the next batch's first one ends a batch.
        self.at_once = not any(isinstance(run, (ManyRun, FunctionRun)) for run in between)
        self.full = False

    def __iter__(self) -> Iterator[Any]:
        source, root = self.source, self.root
        if self.full:
            yield self._full_batch()
        for item in source:
            ticket, batch = source.ticket, None
            ready = bool(self.samples) and root.batch != self.number
            if ready:  # some stage left out the last sample of the batch before
                batch = self._batch()
            self.samples.append(item)
            self.tickets.append(ticket)
            self.number, self.full = root.batch, self.at_once and root.complete
            if ready:
                yield batch
            if self.full:
                yield self._full_batch()
        if self.samples:
            yield self._batch()

    def _full_batch(self) -> Any:
        self.full = False
        return self._batch()

    def state(self) -> State:
        return [list(self.tickets), self.number, self.full, self.source.saved()]

    def restore(self, state: State) -> None:
        tickets, self.number, self.full, source = state
        super().restore([tickets, source])

    def left(self) -> int | None:
        if self.source.left() is None:
            return None
        return self.root.batches_left() + bool(self.samples)

    def skip_ahead(self, count: int) -> bool:
        if self.samples or self.root.within or self.source.left() is None:
            return False
        self.root.given += count
        return True
