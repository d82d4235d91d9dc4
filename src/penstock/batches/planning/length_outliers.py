"""Reports the examples that determine the memory needed: those far longer than the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.batches.number_format import figure
from penstock.batches.planning.batch_plan import BatchPlan

QUANTILES = (0.5, 0.95, 0.99, 0.999, 1.0)


@dataclasses.dataclass(frozen=True)
class Outliers:
    """The longest examples of a plan. Printed, it is a short report.

    ``quantiles`` of the lengths (of their sum, if an example has several), ``longest`` rows with
    their lengths, the rows that are ``over`` the budget alone, the ``bad`` rows that have
    no valid length, and the share of the padded cost that the longest 1 % of examples take.
    """

    examples: int
    quantiles: dict[str, float]
    longest: list[tuple[int, list[float]]]
    over: list[int]
    bad: list[int]
    longest_share: float
    names: Sequence[str] | None = None

    def name(self, row: int) -> str:
        """Return the name of a row: its key if known, else its number."""
        return f"row {row}" if self.names is None else str(self.names[row])

    def __str__(self) -> str:
        if not self.examples:
            return "no examples"
        marks = ", ".join(f"{name} {figure(value)}" for name, value in self.quantiles.items())
        lines = [
            f"{self.examples} examples; lengths: {marks}",
            f"the longest 1 % take {self.longest_share:.1%} of the cost",
            f"{len(self.over)} above the budget, {len(self.bad)} without a length",
        ]
        lines += [
            f"  {self.name(row)}: {' x '.join(figure(part) for part in length)}"
            + (" (above the budget)" if row in self.over else "")
            for row, length in self.longest
        ]
        return "\n".join(lines)


def outliers(plan: BatchPlan, count: int = 10, names: Sequence[str] | None = None) -> Outliers:
    """Return the report of a plan's longest examples.

    >>> from penstock import plan_batches
    >>> print(outliers(plan_batches([1.0, 2.0, 9.0, 2.0], budget=8), count=2))
    4 examples; lengths: p50 2, p95 7.95, p99 8.79, p99.9 8.979, max 9
    the longest 1 % take 64.3% of the cost
    1 above the budget, 0 without a length
      row 2: 9 (above the budget)
      row 1: 2
    """
    rows = np.unique(np.concatenate([plan.rows, plan.over]))
    size = plan.measured[rows].sum(axis=1)
    ranked = np.argsort(-size, kind="stable")
    each = plan.cost(np.ones(len(rows)), *plan.measured[rows].T)
    top = ranked[: max(len(rows) // 100, 1)]
    return Outliers(
        examples=len(rows),
        quantiles={_mark(q): float(np.quantile(size, q)) for q in QUANTILES if len(rows)},
        longest=[(int(rows[n]), plan.measured[rows[n]].tolist()) for n in ranked[:count]],
        over=plan.over.tolist(),
        bad=plan.bad.tolist(),
        longest_share=_share(each, top),
        names=names,
    )


def _share(each: Any, top: Any) -> float:
    finite = np.where(np.isfinite(each), each, 0.0)
    return float(finite[top].sum() / max(finite.sum(), 1e-12)) if len(each) else 0.0


def _mark(quantile: float) -> str:
    return "max" if quantile == 1 else f"p{quantile * 100:g}"
