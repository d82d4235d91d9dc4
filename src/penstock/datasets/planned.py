"""Planned batches for map-style data sets: the ``batch_sampler=`` of torch's ``DataLoader``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.batches.outliers import Outliers, outliers
from penstock.batches.plan import BatchPlan, plan_batches
from penstock.context import Context, here
from penstock.errors import PipelineError, SampleError, StateError

STATE_FORM = 1
Length = str | Sequence[str] | Callable[[Any], Any]


class PlannedBatchSampler:
    """Batches of like lengths within a budget, as lists of row numbers; one epoch per ``iter()``.

    ``data`` has the lengths: an array or list of numbers, an :class:`~penstock.Index` or an indexed
    data set with a column named ``length`` (two names: two lengths), or a data set with a table
    ``data`` of rows, from which ``length``, a key or a function, takes them. All other arguments
    are those of :func:`~penstock.plan_batches`.

    Rank and number of ranks are looked up when the iteration begins; every rank gets equally many
    batches, and at each step batches of like cost. The epoch goes up with every ``iter()``.
    :meth:`state_dict` is the place in the plan, a few numbers; another number of ranks can go on
    from it, without losing or repeating an example.

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
        self.lengths, self.names = lengths_of(data, length), _names(data)
        self.budget, self.seed, self.ends, self.options = budget, seed, ends, options
        refused = options.keys() & {"order", "windows", "ranks"}
        if refused:
            raise PipelineError(f"PlannedBatchSampler: {', '.join(sorted(refused))} is its own")
        digest = hashlib.blake2b(np.asarray(self.lengths, float).tobytes(), digest_size=8)
        self._data = digest.hexdigest()
        self._epoch = epoch
        self._running: tuple[int, int, int] | None = None  # epoch, first batch, group
        self._steps = 0
        self._ranks = 1
        self._resume: tuple[int, int, int] | None = None
        self._plans: dict[tuple[int, ...], BatchPlan] = {}
        self.plan()  # bad lengths and arguments are told here, not in the first epoch

    # ── the plan ────────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next ``iter()`` begins, or goes on with."""
        return self._epoch if self._resume is None else self._resume[0]

    def plan(self, epoch: int | None = None) -> BatchPlan:
        """The plan of an epoch (default: the next) for the number of ranks there is."""
        place = here(seed=self.seed)
        return self._base(self.epoch if epoch is None else epoch, None, place).evened(
            place.world_size, self.ends
        )

    def _base(self, epoch: int, group: int | None, place: Context) -> BatchPlan:
        """The plan before its end is made even; the last two are kept."""
        key = (epoch, place.seed, group or 0, place.world_size)
        if key not in self._plans:
            options = {**self.options, "group": group or self.options.get("group")}
            plan = plan_batches(
                self.lengths,
                self.budget,
                seed=place.seed,
                epoch=epoch,
                ranks=place.world_size,
                ends="exact",
                **options,
            )
            last = list(self._plans.items())[-1:]  # while an epoch runs, the next is asked for
            self._plans = {**dict(last), key: plan}
        return self._plans[key]

    def worst_batches(self, count: int = 1) -> list[list[int]]:
        """The rows of the costliest batches of the next epoch, the costliest first."""
        plan = self.plan()
        return [plan[number].tolist() for number in plan.worst_batches(count)]

    def outliers(self, count: int = 10) -> Outliers:
        """The longest examples, and those above the budget or without a length, as a report."""
        return outliers(self.plan(), count, self.names)

    def with_budget(self, budget: float) -> BatchPlan:
        """The plan of the next epoch with another budget."""
        return self.plan().with_budget(budget)

    # ── running ─────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """The batches of this rank in the next epoch; they may differ a little between epochs."""
        place = here()
        return len(self.plan().of_rank(place.rank, place.world_size))

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next; of the one that a loaded state is in, the rest."""
        if epoch != self.epoch:
            self._epoch, self._resume = epoch, None

    def __iter__(self) -> Iterator[list[int]]:
        # Nothing happens before the first batch is asked for: torch's loader with workers calls
        # iter() twice per epoch, and uses only the second.
        place = here(seed=self.seed)
        epoch, given, group = self._resume or (self._epoch, 0, 0)
        base = self._base(epoch, group or None, place)
        plan = base.evened(place.world_size, self.ends, given)
        running = (epoch, given, base.group)
        self._running, self._steps, self._ranks = running, 0, place.world_size
        self._resume, self._epoch = None, epoch + 1
        for number in range(given + place.rank, len(plan), place.world_size):
            if self._running is running:  # else an iteration that was left behind
                self._steps += 1
            yield plan[number].tolist()
        if self._running is running:
            self._running = None

    # ── state ───────────────────────────────────────────────────────────────────────────

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Where the epoch stands: the same on all ranks, a few numbers.

        It counts the batches handed out. A loader with workers has taken more than the trainer has
        seen: ``step`` is how many of them this rank has used since its ``iter()``.
        """
        epoch, given, group = self._running or self._resume or (self._epoch, 0, 0)
        if self._running is not None:
            given += (self._steps if step is None else step) * self._ranks
        return {
            "planned": STATE_FORM,
            "epoch": epoch,
            "given": given,
            "group": group,
            **self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at the next ``iter()``, on any number of ranks."""
        if not isinstance(state, Mapping) or "planned" not in state:
            raise StateError("this is not a state of a PlannedBatchSampler")
        if state["planned"] != STATE_FORM:
            raise StateError(
                f"the state has form {state['planned']}, this version reads {STATE_FORM}"
            )
        for what, value in self._identity().items():
            if state.get(what) != value:
                raise StateError(
                    f"the state is of another plan: {what} was {state.get(what)!r} and is {value!r}"
                )
        self._resume = (int(state["epoch"]), int(state["given"]), int(state["group"]))
        self._running = None

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a state to fit."""
        return {
            "data": self._data,
            "budget": repr(self.budget),
            "seed": here(seed=self.seed).seed,
            "ends": self.ends,
            "options": {name: _word(value) for name, value in sorted(self.options.items())},
        }

    def __repr__(self) -> str:
        return f"PlannedBatchSampler({len(self.lengths)} lengths, budget={self.budget!r})"


def _word(value: Any) -> str:
    """An argument as a text that is the same in every process."""
    return getattr(value, "__qualname__", None) or repr(value)


def _names(data: Any) -> Sequence[str] | None:
    """What the rows are called, where the data knows."""
    found = getattr(data, "data_ids", None)
    return found if isinstance(found, Sequence) else None


def lengths_of(data: Any, length: Length) -> Any:
    """The lengths of a data set's examples, one per row, by the name of a column or a function.

    >>> class Rows:
    ...     data = {"a": {"duration": 2.5}, "b": {"duration": 4.0}}
    ...     data_ids = ["a", "b"]
    >>> lengths_of(Rows(), "duration").tolist()
    [2.5, 4.0]
    """
    if isinstance(data, (np.ndarray, list, tuple, range)):
        return np.asarray(data, float) if len(data) else np.zeros(0)
    source: Any = data if hasattr(data, "column") else getattr(data, "index", None)
    if not callable(length) and callable(getattr(source, "column", None)):
        names = [length] if isinstance(length, str) else list(length)
        columns = [source.column(name).astype(float) for name in names]
        rows = getattr(data, "_rows", None)
        if rows is not None:  # a slice of an indexed data set
            columns = [column[np.asarray(rows)] for column in columns]
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
