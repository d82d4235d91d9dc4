"""Planned batches for map-style data sets: the ``batch_sampler=`` of torch's ``DataLoader``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.batches.planning.batch_plan import BatchPlan, plan_batches
from penstock.batches.planning.cost import stable_repr
from penstock.batches.planning.length_outliers import Outliers, outliers
from penstock.context import Context, current_context
from penstock.errors import PipelineError, SampleError, StateError
from penstock.pipeline.state import open_sealed, seal
from penstock.stages.run import as_count, reading_state

STATE_FORM = 1
Length = str | Sequence[str] | Callable[[Any], Any]


class BatchPosition(NamedTuple):
    """The position in an epoch: the batches yielded by all ranks, and their plan.

    ``group`` is the plan's (0: not started). ``made`` holds how the end of the plan was balanced
    between ranks so far: pairs (ranks, batches yielded before that).
    """

    epoch: int
    given: int = 0
    group: int = 0
    made: tuple[tuple[int, int], ...] = ()


class PlannedBatchSampler:
    """Batches of similar length within a budget, as lists of row numbers; one epoch per ``iter()``.

    ``data`` provides the lengths: an array or list of numbers, an :class:`~penstock.Index` or an
    indexed data set with a column named ``length`` (two names: two lengths), or a data set with a
    table ``data`` of rows, where ``length`` is a key or a function of a row. All other arguments
    are those of :func:`~penstock.plan_batches`.

    Rank and number of ranks are looked up when the iteration starts. Every rank gets the same
    number of batches, and at each step batches of similar cost. The epoch increases with every
    ``iter()``. :meth:`state_dict` is the position in the plan, a few numbers; it can be resumed on
    another number of ranks without losing or repeating an example.

    >>> sampler = PlannedBatchSampler([1.0, 9.0, 2.0, 8.0], budget=18, pool=4)
    >>> sorted(sorted(batch) for batch in sampler)
    [[0, 2], [1, 3]]
    >>> sampler.epoch
    1
    """

    def __init__(
        self,
        data: Any,
        budget: Any,
        *,
        length: Length = "duration",
        seed: int | None = None,
        epoch: int = 0,
        ends: str = "split",
        **options: Any,
    ) -> None:
        self.lengths, self.names = collect_lengths(data, length), _find_names(data)
        self.budget, self.seed, self.ends, self.options = budget, seed, ends, options
        refused = options.keys() & {"order", "windows", "ranks"}
        if refused:
            raise PipelineError(
                f"PlannedBatchSampler sets {', '.join(sorted(refused))} itself: leave it out"
            )
        digest = hashlib.blake2b(np.asarray(self.lengths, float).tobytes(), digest_size=8)
        self._data = digest.hexdigest()
        self._epoch = epoch
        self._running: BatchPosition | None = None  # start of the running, or last, epoch
        self._ended = False
        self._steps = 0
        self._ranks = 1
        self._resume: BatchPosition | None = None
        self._plans: dict[tuple[int, ...], BatchPlan] = {}
        self.plan()  # bad lengths and arguments raise here, not in the first epoch

    # ── the plan ────────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter()`` starts or resumes."""
        return self._epoch if self._resume is None else self._resume.epoch

    def plan(self, epoch: int | None = None) -> BatchPlan:
        """Return the plan of an epoch (default: the next) for the current number of ranks."""
        context = current_context(seed=self.seed)
        return self._make_base_plan(
            self.epoch if epoch is None else epoch, None, context
        ).balance_ranks(context.world_size, self.ends)

    def _make_base_plan(self, epoch: int, group: int | None, context: Context) -> BatchPlan:
        """Return the plan before its end is balanced between ranks. Two plans are cached."""
        key = (epoch, context.seed, group or 0, context.world_size)
        if key not in self._plans:
            options = {**self.options, "group": group or self.options.get("group")}
            plan = plan_batches(
                self.lengths,
                self.budget,
                seed=context.seed,
                epoch=epoch,
                ranks=context.world_size,
                ends="exact",
                **options,
            )
            last = list(self._plans.items())[-1:]  # the running epoch's, while the next is planned
            self._plans = {**dict(last), key: plan}
        return self._plans[key]

    def _plan_rest(self, at: BatchPosition, context: Context) -> tuple[BatchPlan, BatchPosition]:
        """Return the plan from a position for the current ranks, and the updated position."""
        base = plan = self._make_base_plan(at.epoch, at.group or None, context)
        for ranks, given in at.made:
            plan = plan.balance_ranks(ranks, self.ends, given)
        made = at.made
        if not made or made[-1][0] != context.world_size:
            # Balance the end again, unless batches already yielded were split for it.
            if np.array_equal(base.starts[: at.given + 1], plan.starts[: at.given + 1]):
                plan, made = base, ()
            plan = plan.balance_ranks(context.world_size, self.ends, at.given)
            made = (*made, (context.world_size, at.given))
        return plan, BatchPosition(at.epoch, at.given, base.group, made)

    def worst_batches(self, count: int = 1) -> list[list[int]]:
        """Return the rows of the most expensive batches of the next epoch, largest cost first."""
        plan = self.plan()
        return [plan[number].tolist() for number in plan.worst_batches(count)]

    def outliers(self, count: int = 10) -> Outliers:
        """Report the longest examples, and those above the budget or without a length."""
        return outliers(self.plan(), count, self.names)

    def with_budget(self, budget: float) -> BatchPlan:
        """Return the plan of the next epoch with another budget."""
        return self.plan().with_budget(budget)

    # ── running ─────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """Return this rank's number of batches in the next epoch; epochs may differ slightly."""
        context = current_context()
        return len(self.plan().of_rank(context.rank, context.world_size))

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; if it is the epoch of a loaded state, its rest."""
        if epoch != self.epoch:
            self._epoch, self._resume = epoch, None
            self._running = None if self._ended else self._running

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: nothing happens before the first batch is requested. torch's loader with
        # workers calls iter() twice per epoch and uses only the second.
        context = current_context(seed=self.seed)
        plan, running = self._plan_rest(self._resume or BatchPosition(self._epoch), context)
        self._running, self._steps, self._ranks = running, 0, context.world_size
        self._resume, self._epoch, self._ended = None, running.epoch + 1, False
        for number in range(running.given + context.rank, len(plan), context.world_size):
            if self._running is running:  # False in an abandoned iteration
                self._steps += 1
            yield plan[number].tolist()
        if self._running is running:
            self._ended = True

    # ── state ───────────────────────────────────────────────────────────────────────────

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return the position in the epoch: a few numbers, the same on all ranks.

        It counts the batches that the sampler yielded. A loader with workers has taken more than
        the trainer has seen: ``step`` is the number of batches, at least 1, that this rank has used
        since its ``iter()``.
        """
        at = self._resume or BatchPosition(self._epoch)
        # The sampler may have finished an epoch that the trainer is still in.
        if self._running is not None and (not self._ended or 0 < (step or 0) < self._steps):
            steps = self._steps if step is None else step
            at = self._running._replace(given=self._running.given + steps * self._ranks)
        return seal(
            {
                "planned": STATE_FORM,
                **at._asdict(),
                "made": [list(pair) for pair in at.made],
                **self.order_identity(),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state at the next ``iter()``, on any number of ranks."""
        if not isinstance(state, Mapping) or "planned" not in state:
            raise StateError("this is not a state of a PlannedBatchSampler")
        if state["planned"] != STATE_FORM:
            raise StateError(
                f"the state has format {state['planned']}, this version reads {STATE_FORM}"
            )
        state = open_sealed(state, "a PlannedBatchSampler")
        for what, value in self.order_identity().items():
            if state.get(what) != value:
                raise StateError(
                    f"the state is of another plan: {what} was {state.get(what)!r} and is {value!r}"
                )
        with reading_state():
            epoch, given, group = (as_count(state[name]) for name in ("epoch", "given", "group"))
            made = tuple((as_count(r), as_count(count)) for r, count in state.get("made", ()))
        self._resume = BatchPosition(epoch, given, group, made)
        self._running = None

    def order_identity(self) -> dict[str, Any]:
        """Return values that must be equal for a state to fit."""
        return {
            "data": self._data,
            "budget": repr(float(self.budget) if isinstance(self.budget, int) else self.budget),
            "seed": current_context(seed=self.seed).seed,
            "ends": self.ends,
            "options": {name: stable_repr(value) for name, value in sorted(self.options.items())},
        }

    def __repr__(self) -> str:
        return f"PlannedBatchSampler({len(self.lengths)} lengths, budget={self.budget!r})"


def _find_names(data: Any) -> Sequence[str] | None:
    """Return the names of the rows, or None if the data has none."""
    found = getattr(data, "data_ids", None)
    return found if isinstance(found, Sequence) else None


def collect_lengths(data: Any, length: Length) -> Any:
    """Return the lengths of a data set's examples, given a column name or a function of a row.

    >>> class Rows:
    ...     data = {"a": {"duration": 2.5}, "b": {"duration": 4.0}}
    ...     data_ids = ["a", "b"]
    >>> collect_lengths(Rows(), "duration").tolist()
    [2.5, 4.0]
    """
    if isinstance(data, (np.ndarray, list, tuple, range)):
        return np.asarray(data, float) if len(data) else np.zeros(0)
    if not callable(length) and hasattr(data, "column"):
        names = [length] if isinstance(length, str) else list(length)
        columns = [data.column(name).astype(float) for name in names]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    table, ids = getattr(data, "data", None), getattr(data, "data_ids", None)
    if table is None:
        raise SampleError(
            f"{type(data).__name__} has no lengths that can be read without its examples: give "
            "the lengths themselves, an index with a column, or a data set with a table 'data'"
        )
    rows = (table[one] for one in ids) if ids is not None else iter(table)
    if callable(length):
        return np.array([length(row) for row in rows], float)
    if isinstance(length, str):
        return np.array([row.get(length) for row in rows], float)
    return np.array([[row.get(name) for name in length] for row in rows], float)
