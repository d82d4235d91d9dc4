"""Plans batches of similar length within a budget, before anything is read.

The plan is a pure function of the lengths and the arguments: every process makes the same one,
and a position in it is one number. The batches of a step, one per rank, have similar costs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.batches.lengths import RULE, are_lengths
from penstock.batches.number_format import figure
from penstock.batches.planning.cost import Array, Cost, CostFunction, Table
from penstock.batches.planning.length_levels import find_levels, round_up
from penstock.batches.planning.length_pools import cut, order_by_pools
from penstock.batches.planning.rank_balance import balance_ranks, order_batches
from penstock.errors import PipelineError, SampleError
from penstock.rng import stable_hash
from penstock.stages.sources.epoch_order import keyed_order

POOL = 4096
FEWEST_POOLS = 4
"""Little data has at least this many pools: a single pool has the same batches in each epoch."""
GROUP = 8
"""Consecutive batches of similar cost: one order works for 1, 2, 4 and 8 ranks."""
OVER = ("alone", "skip", "error")
BAD = ("error", "skip")
PLAN_ENDS = ("split", "exact", "drop", "pad")
SLACK = 1 + 1e-9
"""Tolerance for sums of floats: 0.1 + 0.2 counts as within 0.3."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BatchPlan:
    """The batches of one epoch, in order. ``plan[n]`` are the rows of batch n, as an array.

    ``rows`` holds the rows of all batches: batch n has those from ``starts[n]`` to
    ``starts[n + 1]``, is padded to ``lengths[n]`` (one column per kind of length) and costs
    ``costs[n]``. ``over`` are the rows above the budget (in separate batches, or left out), ``bad``
    those left out because they have no valid length. ``repeated`` and ``dropped`` count the
    examples repeated or dropped to make ranks equal. ``shapes`` are the levels that lengths were
    rounded up to, per kind of length, or None.

    >>> plan = plan_batches([1.0, 2.0, 3.0, 4.0], budget=8)
    >>> len(plan), sorted(len(batch) for batch in plan), round(plan.padding, 3)
    (2, [2, 2], 0.167)
    """

    rows: Array
    starts: Array
    measured: Array
    """The lengths of all examples, by row."""
    cost: Cost
    budget: float
    pool: int
    group: int
    over: Array
    bad: Array
    shapes: tuple[Array, ...] | None = None
    repeated: int = 0
    dropped: int = 0
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The arguments that the plan was made with."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> Array:
        if not -len(self) <= number < len(self):
            raise IndexError(f"the plan has {len(self)} batches, none has number {number}")
        number %= len(self)
        return self.rows[self.starts[number] : self.starts[number + 1]]

    def __iter__(self) -> Iterator[Array]:
        return (self[number] for number in range(len(self)))

    def of_rank(self, rank: int, ranks: int) -> range:
        """Return the numbers of a rank's batches: at step s, number ``s · ranks + rank``."""
        return range(rank, len(self), ranks)

    @functools.cached_property
    def sizes(self) -> Array:
        """The number of examples in each batch."""
        return np.diff(self.starts)

    @functools.cached_property
    def lengths(self) -> Array:
        """The length that each batch is padded to: a row per batch, a column per kind of length."""
        if not len(self):
            return np.zeros((0, self.measured.shape[1]))
        tops = np.maximum.reduceat(self.measured[self.rows], self.starts[:-1], axis=0)
        return tops if self.shapes is None else _round_columns(tops, self.shapes)

    @functools.cached_property
    def costs(self) -> Array:
        """The cost of each batch, by the plan's cost model."""
        return self.cost(self.sizes, *self.lengths.T)

    @functools.cached_property
    def padding(self) -> float:
        """The share of padding in all batches together."""
        padded = float((self.sizes * self.lengths.sum(axis=1)).sum())
        return 1 - float(self.measured[self.rows].sum()) / padded if padded else 0.0

    @property
    def fill(self) -> float:
        """The mean cost of a batch as a share of the budget."""
        return float(self.costs.mean()) / self.budget if len(self) else 0.0

    def worst_batches(self, count: int = 1) -> list[int]:
        """Return the numbers of the costliest batches, in falling order; of equals the longest."""
        ranked = np.lexsort((-self.lengths.sum(axis=1), -self.costs))
        return [int(number) for number in ranked[:count]]

    def balance_ranks(self, ranks: int, ends: str = "split", given: int = 0) -> BatchPlan:
        """Return the plan with equally many batches per rank after the first ``given`` batches.

        >>> plan = plan_batches([1.0, 1.0, 1.0, 2.0], budget=4)
        >>> len(plan), len(plan.balance_ranks(3)), len(plan.balance_ranks(3, "drop"))
        (2, 3, 0)
        """
        if ends not in PLAN_ENDS:
            raise PipelineError(f"ends is one of {PLAN_ENDS}, not {ends!r}")
        if not len(self):
            return self
        found = balance_ranks(self.rows, self.starts, ranks, ends, given)
        return dataclasses.replace(self, **found._asdict())

    def with_budget(self, budget: float | Table) -> BatchPlan:
        """Return a plan of the same examples with another budget.

        >>> len(plan_batches([1.0] * 8, budget=2).with_budget(4))
        2
        """
        if isinstance(self.cost.given, Table) and not isinstance(budget, (Table, Sequence)):
            raise PipelineError(f"the plan's budget is a table: pass another, not {budget!r}")
        return plan_batches(self.measured, budget, **self.asked)

    def __repr__(self) -> str:
        return (
            f"BatchPlan({len(self)} batches of {len(self.rows)} examples, {self.padding:.2%} "
            f"padding, {self.fill:.1%} of the budget {figure(self.budget)})"
        )


def plan_batches(
    lengths: Any,
    budget: float | Table | Sequence[tuple[float, int]],
    *,
    pool: int | None = None,
    padding: float | None = None,
    cost: CostFunction | None = None,
    max_batch_ex: int | None = None,
    shapes: int | None = None,
    seed: int = 0,
    epoch: int = 0,
    over: str = "alone",
    bad: str = "error",
    ranks: int = 1,
    group: int | None = None,
    ends: str = "split",
    order: Any = None,
    windows: Any = None,
) -> BatchPlan:
    """Plan the batches of an epoch: examples of similar length, each batch within the budget.

    ``lengths`` has one number per example, or one row of numbers (such as input and output). A
    batch costs ``cost(n, T)``: by default ``n · T``, its padded size; or :class:`Quadratic`, or any
    function that does not fall when n or T grow. A :class:`Table` is passed as the budget itself.
    Nothing else must be chosen: no buckets, no boundaries.

    ``pool`` sets the randomness: an example is batched with others from a random pool of this size
    (default 4096, or a quarter of the data). A smaller pool mixes more and pads more. ``padding``
    sets the share of padding instead, and the smallest pool that stays below it is used.
    ``max_batch_ex`` limits the number of examples. ``shapes`` rounds lengths up to this many
    levels, for compilers and allocators.

    ``order`` are the rows to take, in order (default: all, at random by seed and epoch), and
    ``windows`` are bounds in it: batches of one window come before those of the next.

    ``over`` is what happens to an example above the budget: a separate batch (``"alone"``),
    ``"skip"`` or ``"error"``; ``bad`` (``"error"``, ``"skip"``) the same for lengths that are
    missing, NaN, or not above zero. ``group`` consecutive batches have similar costs (default 8, or
    the number of ranks), so that at every step all ranks have similar work.

    ``ends``: the batches of the last step are split until every rank has one (``"split"``), left
    unchanged (``"exact"``), dropped (``"drop"``), or completed with repeated ones (``"pad"``).

    >>> plan = plan_batches([2.0, 9.0, 3.0, 8.0, 2.5, 8.5], budget=18, pool=6)
    >>> sorted(sorted(batch.tolist()) for batch in plan)
    [[0, 2, 4], [1], [3, 5]]
    """
    asked = {name: value for name, value in locals().items() if name not in ("lengths", "budget")}
    if isinstance(budget, str):
        raise _no_budget(budget)
    if isinstance(budget, (Table, Sequence)):
        cost, budget = budget if isinstance(budget, Table) else Table(budget), 1.0
    _check(budget, pool, padding, max_batch_ex, shapes, ranks, group)
    _check_words(over=(over, OVER), bad=(bad, BAD), ends=(ends, PLAN_ENDS))
    columns, price, key = _columns(lengths), Cost(cost), (seed, epoch)
    taken = (
        keyed_order(len(columns), stable_hash("plan", *key)) if order is None else np.asarray(order)
    )
    bounds = np.array([0, len(taken)] if windows is None else windows, np.int64)
    taken, bounds, wrong = _leave_out(taken, bounds, ~are_lengths(columns[taken]).all(axis=1))
    if len(wrong) and bad == "error":
        raise SampleError(_bad_message(columns, wrong))
    above = price(np.ones(len(taken)), *columns[taken].T) > budget * SLACK
    if above.any() and over == "error":
        raise SampleError(_over_message(columns, taken[above], budget))
    too_long = np.sort(taken[above])
    if over == "skip":
        taken, bounds, _ = _leave_out(taken, bounds, above)
    planned, tops = _round_to_shapes(columns[taken], shapes)
    if padding is not None:
        pool = _find_pool(padding, columns[taken], planned, price, budget, max_batch_ex)
    pool = pool or min(POOL, max(len(taken) // FEWEST_POOLS, 1))
    indices = order_by_pools(planned, price, budget, pool=pool, windows=bounds, key=key)
    starts = cut(planned[indices], price, budget, max_batch_ex)
    window = np.searchsorted(bounds, indices[starts[:-1]], side="right") - 1
    group = group or (GROUP if GROUP % ranks == 0 else ranks)
    plan = BatchPlan(
        taken[indices], starts, columns, price, budget, pool, group, too_long, wrong, tops
    )
    # Batches are full: those of similar length have similar costs, in any cost model.
    numbers = order_batches(plan.lengths.sum(axis=1), window, group, key)
    rows, starts = _reorder(plan.rows, plan.starts, numbers)
    plan = dataclasses.replace(plan, rows=rows, starts=starts, asked=asked)
    return plan.balance_ranks(ranks, ends)


def _columns(lengths: Any) -> Array:
    """Return one row per example and one column per kind of length; None becomes NaN."""
    try:
        array = np.asarray(lengths, float)
    except (TypeError, ValueError) as error:
        raise SampleError(f"lengths are numbers, one per example: {error}") from error
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise SampleError(
            f"lengths have one number per example, or one row of numbers, not shape {array.shape}"
        )
    return array[:, None] if array.ndim == 1 else array


def _bad_message(columns: Array, rows: Array) -> str:
    row = int(rows[0])
    return (
        f"{RULE}: row {row} has {columns[row].tolist()} ({len(rows)} of {len(columns)} rows have "
        "such a length); bad='skip' leaves them out"
    )


def _over_message(columns: Array, rows: Array, budget: float) -> str:
    row = int(rows.min())
    return (
        f"{len(rows)} examples are above the budget of {figure(budget)} by themselves, the first "
        f"in row {row} with length {columns[row].tolist()}: over='alone' puts each into a separate "
        "batch, over='skip' leaves them out"
    )


def _leave_out(rows: Array, bounds: Array, out: Array) -> tuple[Array, Array, Array]:
    """Return the rows that stay, the windows' bounds in them, and the sorted rows left out."""
    if not out.any():
        return rows, bounds, np.zeros(0, np.int64)
    before = np.concatenate([[0], np.cumsum(~out)])
    return rows[~out], before[bounds], np.sort(rows[out])


def _round_to_shapes(columns: Array, shapes: int | None) -> tuple[Array, tuple[Array, ...] | None]:
    """Return the lengths rounded up to ``shapes`` levels, and the levels of each kind."""
    if shapes is None or not len(columns):
        return columns, None
    tops = tuple(find_levels(column, shapes) for column in columns.T)
    return _round_columns(columns, tops), tops


def _round_columns(columns: Array, tops: tuple[Array, ...]) -> Array:
    return np.stack([round_up(c, to) for c, to in zip(columns.T, tops)], axis=1)


def _reorder(rows: Array, starts: Array, numbers: Array) -> tuple[Array, Array]:
    """Return rows and starts of the batches in the order of ``numbers``."""
    sizes = np.diff(starts)[numbers]
    ends = np.cumsum(sizes)
    shift = np.repeat(starts[numbers] - (ends - sizes), sizes)
    return rows[np.arange(len(rows)) + shift], np.concatenate([[0], ends]).astype(np.int64)


def _find_pool(
    padding: float, true: Array, planned: Array, price: Cost, budget: float, most: int | None
) -> int:
    """Return the smallest pool with less padding than that, tried on part of a large data set.

    The rows are in random order already, so the first ones are a fair sample.
    """

    def measure_padding(pool: int) -> float:
        some = slice(0, max(100_000, 8 * pool))
        indices = order_by_pools(planned[some], price, budget, pool=pool, windows=None, key=(0, 0))
        ordered = planned[some][indices]
        starts = cut(ordered, price, budget, most)
        tops = np.maximum.reduceat(ordered, starts[:-1], axis=0)
        return 1 - float(true[some].sum()) / float((np.diff(starts) * tops.sum(axis=1)).sum())

    count = len(planned)
    sizes = sorted({min(int(2 ** (step / 4)), max(count, 1)) for step in range(121)})
    low, high = 0, len(sizes) - 1  # the largest is used if none is enough
    while count and low < high:
        middle = (low + high) // 2
        if measure_padding(sizes[middle]) < 0.98 * padding:  # other epochs differ a little
            high = middle
        else:
            low = middle + 1
    if count and measure_padding(sizes[low]) > padding:
        raise PipelineError(
            f"no pool keeps padding below {padding:.2%}: sorted by length it is "
            f"{measure_padding(sizes[low]):.2%} with this budget; allow more, or a larger budget"
        )
    return sizes[low]


def _check(
    budget: Any,
    pool: int | None,
    padding: float | None,
    most: int | None,
    shapes: int | None,
    ranks: int,
    group: int | None,
) -> None:
    if not isinstance(budget, (int, float, np.number)) or not 0 < budget < float("inf"):
        raise _no_budget(budget)
    if pool is not None and padding is not None:
        raise PipelineError("pool and padding both set the randomness: pass only one of them")
    if padding is not None and not 0 < padding < 1:
        raise PipelineError(f"padding is a share between 0 and 1, such as 0.02, not {padding!r}")
    counts = {"pool": pool, "max_batch_ex": most, "shapes": shapes, "ranks": ranks, "group": group}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise PipelineError(f"{name} is at least 1, not {count!r}")


def _no_budget(given: Any) -> PipelineError:
    return PipelineError(f"the budget is a number above zero, or a table, not {given!r}")


def _check_words(**words: tuple[str, tuple[str, ...]]) -> None:
    for name, (given, known) in words.items():
        if given not in known:
            raise PipelineError(f"{name} is one of {known}, not {given!r}")
