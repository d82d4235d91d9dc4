"""Planned batches for map-style data sets: the ``batch_sampler=`` of torch's ``DataLoader``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.batches.planning.cost import told
from penstock.batches.planning.length_outliers import Outliers, outliers
from penstock.batches.planning.batch_plan import BatchPlan, plan_batches
from penstock.context import Context, here
from penstock.errors import PipelineError, SampleError, StateError

STATE_FORM = 1
Length = str | Sequence[str] | Callable[[Any], Any]


class Place(NamedTuple):
    """Where an epoch stands: the batches given by all ranks, and the plan they are of.

    ``group`` is the plan's (0: not begun). ``made`` says how its end was made even so far: pairs
    (ranks, batches given by then).
    """

    epoch: int
    given: int = 0
    group: int = 0
    made: tuple[tuple[int, int], ...] = ()


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
        self._running: Place | None = None  # where the epoch that runs, or ran last, began
        self._ended = False
        self._steps = 0
        self._ranks = 1
        self._resume: Place | None = None
        self._plans: dict[tuple[int, ...], BatchPlan] = {}
        self.plan()  # bad lengths and arguments are told here, not in the first epoch

    # ── the plan ────────────────────────────────────────────────────────────────────────

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next ``iter()`` begins, or goes on with."""
        return self._epoch if self._resume is None else self._resume.epoch

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

    def _rest(self, at: Place, place: Context) -> tuple[BatchPlan, Place]:
        """The plan from that place on for the ranks there are, and the place as it now is."""
        base = plan = self._base(at.epoch, at.group or None, place)
        for ranks, given in at.made:
            plan = plan.evened(ranks, self.ends, given)
        made = at.made
        if not made or made[-1][0] != place.world_size:
            # Even ends are made anew, unless some of the batches given were split for them.
            if np.array_equal(base.starts[: at.given + 1], plan.starts[: at.given + 1]):
                plan, made = base, ()
            plan = plan.evened(place.world_size, self.ends, at.given)
            made = (*made, (place.world_size, at.given))
        return plan, Place(at.epoch, at.given, base.group, made)

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
            self._running = None if self._ended else self._running

    def __iter__(self) -> Iterator[list[int]]:
        # Nothing happens before the first batch is asked for: torch's loader with workers calls
        # iter() twice per epoch, and uses only the second.
        place = here(seed=self.seed)
        plan, running = self._rest(self._resume or Place(self._epoch), place)
        self._running, self._steps, self._ranks = running, 0, place.world_size
        self._resume, self._epoch, self._ended = None, running.epoch + 1, False
        for number in range(running.given + place.rank, len(plan), place.world_size):
            if self._running is running:  # else an iteration that was left behind
                self._steps += 1
            yield plan[number].tolist()
        if self._running is running:
            self._ended = True

    # ── state ───────────────────────────────────────────────────────────────────────────

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Where the epoch stands: the same on all ranks, a few numbers.

        It counts the batches handed out. A loader with workers has taken more than the trainer has
        seen: ``step`` is how many of them, one or more, this rank has used since its ``iter()``.
        """
        at = self._resume or Place(self._epoch)
        # The sampler may be through with an epoch that the trainer is still in.
        if self._running is not None and (not self._ended or 0 < (step or 0) < self._steps):
            steps = self._steps if step is None else step
            at = self._running._replace(given=self._running.given + steps * self._ranks)
        return {
            "planned": STATE_FORM,
            **at._asdict(),
            "made": [list(pair) for pair in at.made],
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
        epoch, given, group = (int(state[name]) for name in ("epoch", "given", "group"))
        made = tuple((int(ranks), int(count)) for ranks, count in state.get("made", ()))
        self._resume = Place(epoch, given, group, made)
        self._running = None

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a state to fit."""
        return {
            "data": self._data,
            "budget": repr(float(self.budget) if isinstance(self.budget, int) else self.budget),
            "seed": here(seed=self.seed).seed,
            "ends": self.ends,
            "options": {name: told(value) for name, value in sorted(self.options.items())},
        }

    def __repr__(self) -> str:
        return f"PlannedBatchSampler({len(self.lengths)} lengths, budget={self.budget!r})"


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
