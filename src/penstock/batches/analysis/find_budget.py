"""Finds the largest budget that fits into memory, before the training and not at step 40 000."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.batches.analysis.peak_memory import free_memory, watch_memory
from penstock.batches.number_format import figure
from penstock.batches.planning.batch_plan import BatchPlan
from penstock.batches.planning.cost import Array, Table
from penstock.batches.planning.length_outliers import Outliers, outliers
from penstock.batches.planning.length_pools import cut
from penstock.errors import PipelineError, ran_out

TRIED = (1.0, 0.75, 0.5, 0.25)
"""Every budget is tried with full batches of examples as long as these quantiles."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One batch that was run: its budget, its shape, and the result."""

    budget: float
    examples: int
    lengths: tuple[float, ...]
    cost: float
    passed: bool
    peak_bytes: int
    seconds: float
    error: str = ""


@dataclasses.dataclass(frozen=True)
class BudgetReport:
    """The result of :func:`find_budget`. Printed, it is a table of the trials.

    ``budget`` is the one to use: the largest that passed (``passed``), less the margin. ``failed``
    is the smallest that did not, or None if all passed: then the data or ``highest`` was the limit.
    ``worst`` is the costliest trial that passed, ``outliers`` the report of the longest examples.
    """

    budget: float
    passed: float
    failed: float | None
    margin: float
    trials: list[Trial]
    outliers: Outliers

    @property
    def worst(self) -> Trial:
        """The costliest batch that passed."""
        return max((one for one in self.trials if one.passed), key=lambda one: one.cost)

    def __str__(self) -> str:
        limit = f"{figure(self.failed)} failed" if self.failed is not None else "nothing failed"
        lines = [
            f"budget {figure(self.budget)}: {figure(self.passed)} passed, {limit}, "
            f"margin {self.margin:.0%}",
            f"{'budget':>10} {'examples':>8} {'lengths':>14} {'cost':>10} {'peak MB':>9} "
            f"{'seconds':>8}  result",
        ]
        for one in self.trials:
            shape = " x ".join(figure(part) for part in one.lengths)
            lines.append(
                f"{one.budget:>10g} {one.examples:>8} {shape:>14} {one.cost:>10.5g} "
                f"{one.peak_bytes / 1e6:>9.1f} {one.seconds:>8.3f}  {one.error or 'passed'}"
            )
        return "\n".join(lines)


def find_budget(
    step_fn: Callable[[Any], Any],
    sampler: Any,
    *,
    load: Callable[[list[int]], Any] | None = None,
    lowest: float | None = None,
    highest: float | None = None,
    tolerance: float = 0.02,
    margin: float = 0.05,
    worst: int = 1,
    memory_limit: int | None = None,
) -> BudgetReport:
    """Return the largest budget whose worst batches ``step_fn`` can run, less a margin.

    ``sampler`` is a :class:`~penstock.PlannedBatchSampler`, a data set with a plan or a
    :class:`~penstock.BatchPlan`. For each budget tried, the plan is made and its worst batches
    are run: the ``worst`` costliest and the one with most examples, then full batches of the
    longest examples and of shorter ones, because memory may not follow the cost model, and other
    epochs have other batches. ``step_fn`` gets their rows, or the result of ``load(rows)``: let it
    do a whole step, forward, backward and optimizer.

    The search begins at the plan's budget, doubles or halves it, then bisects until two budgets
    differ by less than ``tolerance``. A budget fails if a step raises a MemoryError or torch's
    out-of-memory error, or if memory exceeds ``memory_limit`` bytes (of the device with CUDA, else
    of this process). Other errors are not caught. Free memory is released between trials. If even
    the longest example alone does not fit, or a whole budget at ``lowest``, a PipelineError is
    raised.

    >>> from penstock import plan_batches
    >>> def step(rows):
    ...     if len(rows) > 50:
    ...         raise MemoryError
    >>> report = find_budget(step, plan_batches([2.0] * 400, budget=40), margin=0)
    >>> 98 < report.budget <= 102
    True
    """
    if not (0 < tolerance < 1 and 0 <= margin < 1):
        raise PipelineError(
            f"tolerance and margin are shares of the budget, not {tolerance!r} and {margin!r}"
        )
    plan = _plan_of(sampler)
    if not isinstance(plan, BatchPlan) or not len(plan):
        raise PipelineError("find_budget needs a plan that has batches")
    if isinstance(plan.cost.given, Table):
        raise PipelineError("the budget is a table, and find_budget searches for a number")
    search = _Search(step_fn, load, plan, worst, memory_limit)
    low, high = search.bracket(lowest, highest)
    while high is not None and high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if search.passes(middle) else (low, middle)
    return BudgetReport(
        low * (1 - margin), low, high, margin, search.trials, outliers(plan.with_budget(low))
    )


def _plan_of(sampler: Any) -> Any:
    """Return the plan of a sampler or data set; else the argument itself."""
    source: Any = next(iter(getattr(sampler, "pipeline", ())), None)
    if hasattr(source, "planned"):
        return source.planned(sampler.context())
    return sampler.plan() if callable(getattr(sampler, "plan", None)) else sampler


class _Search:
    """Tries budgets, and keeps the trials for the report."""

    def __init__(
        self,
        step_fn: Callable[[Any], Any],
        load: Callable[[list[int]], Any] | None,
        plan: BatchPlan,
        worst: int,
        memory_limit: int | None,
    ) -> None:
        self.step_fn, self.load, self.plan = step_fn, load, plan
        self.worst, self.memory_limit = worst, memory_limit
        self.trials: list[Trial] = []
        rows = np.unique(plan.rows)
        self.ranked = rows[np.argsort(plan.measured[rows].sum(axis=1), kind="stable")]

    def bracket(self, lowest: float | None, highest: float | None) -> tuple[float, float | None]:
        """Return a budget that passes, and one that fails, or None if there is none to try."""
        floor, ceiling = self._single(), self._everything()
        low = max(lowest if lowest is not None else floor, floor)
        top = min(highest if highest is not None else ceiling, ceiling)
        if not self.passes(low):
            last = self.trials[-1]
            raise PipelineError(
                f"even a budget of {figure(low)} does not fit: a batch of {last.examples} examples "
                f"of length {last.lengths} failed ({last.error}); leave out the longest examples "
                "(over='skip' with a smaller budget), or give the step more memory"
            )
        at = min(max(self.plan.budget, low), top)
        if at > low:
            while not self.passes(at):
                down = max(at / 2, low)
                if down == low or self.passes(down):
                    return down, at
                at = down
        low = at
        while low < top:
            at = min(2 * low, top)
            if not self.passes(at):
                return low, at
            low = at
        return low, None

    def _single(self) -> float:
        """Return the cost of the longest example alone: no budget is below it."""
        lengths = self.plan.measured[self.ranked]
        return float(self.plan.cost(np.ones(len(lengths)), *lengths.T).max())

    def _everything(self) -> float:
        """Return the cost of all examples as one batch: a larger budget changes nothing."""
        tops = self.plan.measured[self.ranked].max(axis=0)
        return float(self.plan.cost(np.array([len(self.ranked)]), *tops[:, None])[0])

    def passes(self, budget: float) -> bool:
        """Return True if the worst batches of that budget fit into memory."""
        plan = self.plan.with_budget(budget)
        numbers = [*plan.worst_batches(self.worst), int(plan.sizes.argmax())]
        # Memory may not follow the cost model, and other epochs have other batches: so also try
        # full batches of the longest examples, and of shorter ones.
        batches = [plan[number] for number in dict.fromkeys(numbers)]
        batches += [self._full(budget, share) for share in TRIED]
        return all(self._run(budget, rows) for rows in batches)

    def _full(self, budget: float, share: float) -> Array:
        """Return as many examples as fit the budget, from the quantile ``share`` downwards."""
        rows = self.ranked[: int(share * (len(self.ranked) - 1)) + 1][::-1]
        most = self.plan.asked.get("max_batch_ex")
        starts = cut(self.plan.measured[rows], self.plan.cost, budget, most)
        return rows[: starts[1]]

    def _run(self, budget: float, batch: Array) -> bool:
        rows, error = batch.tolist(), ""
        began = time.perf_counter()
        with watch_memory() as peak:
            try:
                self.step_fn(rows if self.load is None else self.load(rows))
            except (MemoryError, RuntimeError) as caught:
                if not ran_out(caught):
                    raise
                error = f"{type(caught).__name__}: {str(caught)[:80]}".rstrip(": ")
        if not error and self.memory_limit is not None and peak.bytes > self.memory_limit:
            error = f"{peak.bytes} bytes are above the limit of {self.memory_limit}"
        tops = self.plan.measured[batch].max(axis=0)
        cost = float(self.plan.cost(np.array([len(rows)]), *tops[:, None])[0])
        passed, seconds = not error, time.perf_counter() - began
        shape = tuple(tops.tolist())
        self.trials.append(
            Trial(budget, len(rows), shape, cost, passed, peak.bytes, seconds, error)
        )
        free_memory(not passed)
        return passed
