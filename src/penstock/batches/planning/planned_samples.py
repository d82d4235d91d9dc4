"""Reads indexed shards in the order of a plan, and cuts batches at the plan's boundaries.

With a length column in the index, the batches of an epoch are known before anything is read. The
source yields the samples batch by batch, from windows of shards as without a plan. Stages change
single samples, and ``planned`` collects those of each batch. The state is a position in the plan.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.batches.batched import BatchedRun
from penstock.batches.collate import Collation, default_collation_fn
from penstock.batches.planning.batch_plan import GROUP, PLAN_ENDS, POOL, BatchPlan, plan_batches
from penstock.batches.planning.cost import Array, stable_repr
from penstock.context import Context
from penstock.errors import PenstockError, PipelineError
from penstock.handlers import ask
from penstock.shards.sample_reader import Sample
from penstock.stages.inspect import info, log_keys
from penstock.stages.run import FunctionRun, Run, State, Ticket, as_count
from penstock.stages.segment import EachRun, ManyRun
from penstock.stages.sources.indexed_samples import (
    KEPT_ORDERS,
    SOON_BYTES,
    WINDOW,
    IndexedRun,
    IndexedSamples,
)
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
                raise PipelineError(f"Plan: pass {name} to the data set, not to the plan")
        plan_batches([], budget, **options)  # raises now if an argument cannot work
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
        words += [f"{name}={stable_repr(value)}" for name, value in self.options.items()]
        return f"Plan({', '.join(words)})"


class PlannedSamples(IndexedSamples):
    """The samples of indexed shards, in the order of planned batches for :class:`planned`.

    It is an :class:`IndexedSamples` in the order of the plan. ``ends`` may also be ``"split"``,
    the default: the batches of the last step are split until all ranks (or lanes) have one, so
    that all get equally many and nothing is left out.

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
        self.keeps_ranks_equal = ends != "exact"
        self._plans: dict[tuple[int, ...], BatchPlan] = {}

    @functools.cached_property
    def lengths(self) -> Array:
        """The lengths of all samples, one row each."""
        index = self.opened()[0]
        return np.stack([index.column(name).astype(float) for name in self.plan.columns], axis=1)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A text that changes with the data or its lengths."""
        lengths = hashlib.blake2b(self.lengths.tobytes(), digest_size=8).hexdigest()
        return f"{IndexedSamples.fingerprint.func(self)}-{lengths}"  # type: ignore[attr-defined]

    def planned(self, context: Context) -> BatchPlan:
        """Return the plan of the epoch. With lanes it does not depend on the number of ranks."""
        lanes, ranks = context.lanes, context.world_size
        unit = lanes if lanes is not None and self.ends == "split" else ranks
        key = (context.seed, context.epoch, lanes or 0, ranks, unit)
        plan = self._plans.get(key)
        if plan is None:
            rows, bounds = self.order(context.seed, context.epoch).all_rows()
            if not self.window:  # stored order: mix only within a few pools
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
            ).balance_ranks(unit, self.ends)
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
    """Return the number of consecutive batches of similar length."""
    if lanes is None:
        return GROUP if GROUP % ranks == 0 else ranks
    # Any number of ranks that divides the lanes may resume: the order must be the same for all.
    return max(size for size in range(1, LARGEST_GROUP + 1) if lanes % size == 0)


class PlannedRun(IndexedRun):
    """Runs :class:`PlannedSamples`: keeps the number of the lane's batch, and the position in it.

    A ticket is a position among the samples of all batches.
    """

    stage: PlannedSamples

    def __init__(self, stage: PlannedSamples, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.within = 0

    @functools.cached_property
    def plan(self) -> BatchPlan:
        """The batches of this epoch, planned when they are first needed."""
        return self.stage.planned(self.context)

    def __iter__(self) -> Iterator[Sample]:
        starts, count = self.plan.starts, len(self.plan)
        ahead = self.stage.opened()[1].remote
        while not self.ended:
            try:
                while (number := self.given * self.lanes + self.lane) < count:
                    end = starts.item(number + 1)
                    self.position = starts.item(number) + self.within
                    self.within += 1
                    if self.position + 1 == end:
                        self.given, self.within = self.given + 1, 0
                    yield self._read_batch_ahead(end) if ahead else self.fetch(self.position)
                return
            except PenstockError as error:
                if ask(self.stage.handler, error):
                    self.skip()
                else:
                    self.ended = True

    def _read_batch_ahead(self, end: int) -> Sample:
        """Return the current sample; read the rest of its batch in the same request."""
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
            return self.fetch(self.position)  # a sample that fails raises when its turn comes
        positions = range(self.position, self.position + len(rows))
        self._soon = {at: self._mark_padding(sample, at) for at, sample in zip(positions, samples)}
        return self._soon.pop(self.position)

    def _row(self, position: int) -> int:
        row: int = self.plan.rows.item(position)
        return row

    def _mark_padding(self, sample: Sample, position: int) -> Sample:
        if self.stage.ends == "pad":
            sample["__pad__"] = position >= len(self.plan.rows) - self.plan.repeated
        return sample

    def fetch(self, ticket: Ticket) -> Sample:
        return self._mark_padding(self.stage.opened()[1].read(self._row(ticket)), ticket)

    def is_empty(self) -> bool:
        return self.given == self.within == 0

    def state(self) -> State:
        return [self.given, self.within]

    def restore(self, state: State) -> None:
        given, within = state
        number = as_count(given, len(self.plan)) * self.lanes + self.lane
        most = self.plan.sizes.item(number) - 1 if number < len(self.plan) else 0
        self.given, self.within = given, as_count(within, most)

    def left(self) -> int | None:
        return (
            int(self.plan.sizes[self.given * self.lanes + self.lane :: self.lanes].sum())
            - self.within
        )

    def batches_left(self) -> int:
        """Return the number of batches that the lane has not begun yet."""
        begun = self.given + (self.within > 0)
        return len(range(begun * self.lanes + self.lane, len(self.plan), self.lanes))

    def skip_ahead(self, count: int) -> bool:
        return False


class planned(Stage[Any, Any]):
    """Collects the samples of each planned batch, after ``WebDataset(…, plan=Plan(…))``.

    ``collation_fn`` makes the batch from a list of samples (None: the list itself). Stages between
    the source and this one change single samples. If they drop one, the batch is smaller, and
    never mixed with the next; a batch that loses all its samples is left out.

    >>> planned(None)
    planned(None)
    """

    keeps_ranks_equal = True

    def __init__(self, collation_fn: Collation | None = default_collation_fn) -> None:
        self.collation_fn = collation_fn

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return PlannedBatchesRun(self, source, context)


class PlannedBatchesRun(BatchedRun):
    """Runs :class:`planned`: keeps the samples of the next batch.

    The batch that an item belongs to follows from the item's ticket: with threads, the source may
    already be further on.
    """

    def __init__(self, stage: Any, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        *between, root = source.chain()
        if not isinstance(root, PlannedRun):
            raise PipelineError(
                "planned() collects the batches of a plan, and its source has none: use "
                "WebDataset(urls, index=True, plan=Plan(budget, length=COLUMN))"
            )
        for run in between:
            plain = isinstance(run, (EachRun, ManyRun, FunctionRun))
            if not (plain or isinstance(run.stage, (info, log_keys))):
                raise PipelineError(
                    f"{run.stage!r} between the plan and planned() would mix the batches: put it "
                    "after planned(), or leave it out; the plan is in random order already"
                )
        self.root = root
        self.number = -1
        # The ticket of these stages begins with the ticket of the item that they took.
        self.wraps = sum(isinstance(run, (ManyRun, FunctionRun)) for run in between)
        # If one sample may become several, only the first one of the next batch ends a batch.
        self.at_once = not self.wraps
        self.full = False

    def __iter__(self) -> Iterator[Any]:
        source, at_once = self.source, self.at_once
        if self.full:
            yield self._full_batch()
        begin, end = self._bounds()
        for item in source:
            ticket = source.ticket
            position = ticket if at_once else self._position(ticket)
            batch, ready = None, False
            if not begin <= position < end:
                ready = bool(self.samples)
                if ready:  # a stage dropped the last sample of the batch before
                    batch = self._batch()
                starts = self.root.plan.starts
                self.number = int(np.searchsorted(starts, position, side="right")) - 1
                begin, end = self._bounds()
            self.samples.append(item)
            self.tickets.append(ticket)
            self.full = at_once and position + 1 == end
            if ready:
                yield batch
            if self.full:
                yield self._full_batch()
        if self.samples:
            yield self._batch()

    def _position(self, ticket: Ticket) -> int:
        """Return the position of the sample that an item came from; -1 before the first."""
        for _ in range(self.wraps):
            ticket = ticket[0] if ticket is not None else None
        return -1 if ticket is None else int(ticket)

    def _bounds(self) -> tuple[int, int]:
        """Return the positions of the batch's first sample and of the one after its last."""
        if self.number < 0:  # a generator may yield before it takes the first sample
            return -1, 0
        starts = self.root.plan.starts
        return starts.item(self.number), starts.item(self.number + 1)

    def _full_batch(self) -> Any:
        self.full = False
        return self._batch()

    def state(self) -> State:
        return [list(self.tickets), self.number, self.full, self.source.saved()]

    def restore(self, state: State) -> None:
        tickets, number, full, source = state
        self.number = as_count(number + 1, len(self.root.plan)) - 1
        super().restore([tickets, source])
        self.full = bool(full and tickets)

    def left(self) -> int | None:
        # A stage between may have dropped samples, or have some to skip after a resume.
        if self.source.left() != self.root.left():
            return None
        return self.root.batches_left() + bool(self.samples)

    def skip_ahead(self, count: int) -> bool:
        if self.samples or self.root.within or self.left() is None:
            return False
        self.root.given += count
        return True
