"""Reports the cost and the mixing of batches, for any sampler, plan or loader."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.batches.analysis.batch_lengths import BatchLengths, collect_lengths
from penstock.batches.lengths import Floats
from penstock.batches.number_format import figure
from penstock.batches.planning.cost import Cost, CostFunction
from penstock.errors import PipelineError

SHOWN = 10
"""The most outliers that are listed; all are counted."""


@dataclasses.dataclass(frozen=True, slots=True)
class PaddingReport:
    """Figures of an epoch's batches. ``print`` it, or use ``to_json()`` or ``to_svg()``."""

    name: str
    samples: int
    batches: int
    padding: float
    """The share of padding in the padded batches."""
    length: float
    """The length of all samples together, without padding."""
    smallest: int
    median: float
    largest: int
    """The number of samples in a batch."""
    shapes: int
    """The number of different lengths that batches are padded to."""
    costliest: float
    """The cost of the costliest batch: its padded size, or by ``cost``."""
    budget: float | None
    fill: float | None
    """The mean cost of a batch, as a share of the budget."""
    floor: int | None
    """The number of full batches without any padding: no scheme can have fewer."""
    over_budget: int
    """The number of batches that cost more than the budget."""
    outliers: list[int]
    """The first few samples that are above the budget alone, by number (or by their order)."""
    outlier_count: int
    rejoin: float | None
    """The probability that two samples of a batch share a batch in the next epoch, too."""
    spread: float
    """The distance of a batch's samples in the order of lengths: at random 0.333, sorted 0."""
    repeated: int | None
    """The number of samples that came again, or None if their numbers are unknown."""
    ranks: int | None
    steps: int | None
    balance: float | None
    """Mean over greatest cost of the ranks of a step: 1 if no rank waits for another."""
    lengths: Floats = dataclasses.field(repr=False, compare=False)
    costs: Floats = dataclasses.field(repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        names = [field.name for field in dataclasses.fields(self) if field.compare]
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> str:
        """Return all figures as a JSON object."""
        return json.dumps(self.as_dict())

    def to_svg(self) -> str:
        """Return a drawing of the lengths, and of how full the batches are."""
        from penstock.batches.analysis.charts import report_svg

        return report_svg(self)

    def __str__(self) -> str:
        lines = [*self._size_lines(), *self._mix_lines()]
        width = max(len(what) for what, _ in lines)
        head = [self.name] if self.name else []
        return "\n".join([*head, *(f"{what.ljust(width)}  {text}" for what, text in lines)])

    def _size_lines(self) -> Iterable[tuple[str, str]]:
        yield "samples", f"{self.samples:,}, length {figure(self.length)} in all"
        floor = "" if self.floor is None else f" (at least {self.floor:,} are needed)"
        yield "batches", f"{self.batches:,}{floor}"
        yield "padding", f"{self.padding:.2%}"
        sizes = f"{self.smallest:,} to {self.largest:,} samples, median {figure(self.median, 4)}"
        yield "batch sizes", f"{sizes}; {self.shapes:,} different lengths"
        if self.budget is not None:
            yield "fill of the budget", f"{self.fill:.1%}, at most {self._worst_share():.1%}"
            if self.over_budget:
                named = ", ".join(map(str, self.outliers))
                alone = f", {self.outlier_count:,} of them for one long sample: {named}"
                more = "…" if self.outlier_count > len(self.outliers) else ""
                because = alone + more if self.outlier_count else ""
                yield "above the budget", f"{self.over_budget:,} batches{because}"

    def _worst_share(self) -> float:
        return self.costliest / self.budget if self.budget else 0.0

    def _mix_lines(self) -> Iterable[tuple[str, str]]:
        yield "spread", f"{self.spread:.4f} (0.333 at random, 0 sorted)"
        if self.rejoin is not None:
            yield "rejoin", f"{self.rejoin:.4f} (the chance to be together next epoch too)"
        if self.repeated:
            yield "repeated", f"{self.repeated:,} samples"
        if self.balance is not None:
            yield f"balance, {self.ranks} ranks", f"{self.balance:.3f} over {self.steps:,} steps"


def padding_report(
    batches: Any,
    lengths: Any = None,
    budget: float | None = None,
    *,
    again: Iterable[Any] | None = None,
    ranks: int | None = None,
    cost: CostFunction | None = None,
    name: str = "",
) -> PaddingReport:
    """Return a report on an epoch's batches: padding, fill of the budget, and mixing.

    ``batches`` is anything that yields batches: a batch sampler or a plan, with the ``lengths`` of
    all samples; or a loader, whose batches have padded data or ``lengths``, or from which
    ``lengths``, a function of the batch, takes them. A sampler with lengths and a budget
    (``DynamicBatchSampler``, ``PlannedBatchSampler``) needs neither.

    A batch costs its padded size, or ``cost(n, T)`` of n samples padded to T. ``again`` has the
    batches of the next epoch, for ``rejoin``; a sampler with epochs provides them itself, and its
    state is restored. With ``ranks``, batches are assigned in turn, and ``balance`` compares the
    costs of a step. A length that is not a finite number above 0 raises a
    :class:`~penstock.errors.SampleError`, no batches at all a
    :class:`~penstock.errors.PipelineError`.

    >>> print(padding_report([[0, 1], [2, 3]], lengths=[4, 2, 5, 5], budget=10))
    samples             4, length 16 in all
    batches             2 (at least 2 are needed)
    padding             11.11%
    batch sizes         2 to 2 samples, median 2; 2 different lengths
    fill of the budget  90.0%, at most 100.0%
    spread              0.1250 (0.333 at random, 0 sorted)
    """
    if ranks is not None and ranks < 1:
        raise PipelineError(f"there is at least 1 rank, not {ranks!r}")
    lengths = _own_lengths(batches) if lengths is None else lengths
    budget = _own_budget(batches) if budget is None else budget
    first, second = _two_epochs(batches, again)
    found = collect_lengths(first, lengths)
    if not len(found.sizes):
        raise PipelineError("there are no batches to report on: the data is empty, or already used")
    rejoin = None
    if second is not None and found.numbers is not None:
        rejoin = measure_rejoin(found, collect_lengths(second, lengths))
    return _report(found, budget, rejoin, ranks, Cost(cost), name)


def _own_lengths(batches: Any) -> Any:
    """Return the lengths of all samples that a sampler has, or its function for a batch."""
    if hasattr(batches, "plan") and hasattr(batches, "lengths"):
        return batches.lengths
    return getattr(batches, "get_durations", None)


def _own_budget(batches: Any) -> float | None:
    for name in ("max_batch_length", "budget"):
        if isinstance(value := getattr(batches, name, None), (int, float)):
            return value
    return None


def _report(
    found: BatchLengths,
    budget: float | None,
    rejoin: float | None,
    ranks: int | None,
    cost: Cost,
    name: str,
) -> PaddingReport:
    costs = cost(found.sizes, found.padded)
    padded = float((found.sizes * found.padded).sum())
    length = float(found.lengths.sum())
    floor, over, alone = None, 0, np.zeros(0, np.int64)
    if budget is not None:
        limit = budget * (1 + 1e-9)  # 0.1 + 0.2 counts as within 0.3
        each = cost(np.ones(len(found.lengths)), found.lengths)
        floor, over = max(1, math.ceil(each.sum() / limit)), int((costs > limit).sum())
        alone = np.flatnonzero(each > limit)
    named = alone if found.numbers is None else found.numbers[alone]
    repeated = None if found.numbers is None else len(found.numbers) - len(np.unique(found.numbers))
    return PaddingReport(
        name=name,
        samples=len(found.lengths),
        batches=len(found.sizes),
        padding=max(0.0, 1 - length / padded),
        length=length,
        smallest=int(found.sizes.min()),
        median=float(np.median(found.sizes)),
        largest=int(found.sizes.max()),
        shapes=len(np.unique(found.padded)),
        costliest=float(costs.max()),
        budget=budget,
        fill=None if budget is None else float(costs.mean()) / budget,
        floor=floor,
        over_budget=over,
        outliers=[int(number) for number in named[:SHOWN]],
        outlier_count=len(alone),
        rejoin=rejoin,
        spread=measure_spread(found),
        repeated=repeated,
        ranks=ranks,
        steps=None if ranks is None else -(-len(costs) // ranks),
        balance=None if ranks is None else balance(costs, ranks),
        lengths=found.lengths,
        costs=costs,
    )


def _two_epochs(batches: Any, again: Any) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """Return the batches of this epoch and of the next one, or None if those are unknown."""
    epoch = getattr(batches, "epoch", None)
    if again is not None or not isinstance(epoch, int):
        return batches, again
    if hasattr(batches, "plan"):
        return batches.plan(epoch), batches.plan(epoch + 1)
    if not hasattr(batches, "set_epoch"):
        return batches, None
    kept = batches.state_dict() if hasattr(batches, "state_dict") else None
    first = list(batches)
    batches.set_epoch(epoch + 1)
    second = list(batches)
    batches.set_epoch(epoch)
    if kept is not None:
        batches.load_state_dict(kept)
    return first, second


def measure_rejoin(first: BatchLengths, second: BatchLengths) -> float | None:
    """Return the share of pairs in a batch of the first epoch that share one in the second.

    None if there are no pairs, or the numbers of the samples are unknown.

    >>> lengths = [1, 1, 1, 1]
    >>> one, two = [[0, 1, 2], [3]], [[0, 1], [2, 3]]
    >>> measure_rejoin(collect_lengths(one, lengths), collect_lengths(two, lengths))
    0.3333333333333333
    """
    if first.numbers is None or second.numbers is None:
        return None
    pairs = int((first.sizes * (first.sizes - 1)).sum())
    if not pairs:
        return None
    last = int(max(first.numbers.max(), second.numbers.max(initial=0)))
    # A sample that the second epoch does not have counts as a batch of one.
    meets = np.arange(last + 1, dtype=np.int64) + len(second.sizes)
    meets[second.numbers] = second.batch
    cells = first.batch * (len(second.sizes) + last + 1) + meets[first.numbers]
    _, counts = np.unique(cells, return_counts=True)
    return float((counts * (counts - 1)).sum() / pairs)


def measure_spread(found: BatchLengths) -> float:
    """Return the mean distance of two samples of a batch in the order of all lengths (0 to 1).

    >>> round(measure_spread(collect_lengths([[0, 1], [2, 3]], [1, 2, 3, 4])), 3)
    0.25
    """
    _, ranks, counts = np.unique(found.lengths, return_inverse=True, return_counts=True)
    middle = (np.cumsum(counts) - counts / 2) / len(found.lengths)
    part = middle[ranks]
    order = np.lexsort((part, found.batch))
    within = np.arange(len(part)) - np.repeat(np.cumsum(found.sizes) - found.sizes, found.sizes)
    # In a sorted batch of n, sample i is above i others and below n - 1 - i.
    weight = 2 * within + 1 - np.repeat(found.sizes, found.sizes)
    apart = np.bincount(found.batch, part[order] * weight, len(found.sizes))
    # Each of n samples is compared with n - 1 others: every pair counts twice.
    several = found.sizes > 1
    others = found.sizes[several] - 1
    return float((2 * apart[several] / others).sum() / (others + 1).sum()) if len(others) else 0.0


def balance(costs: Floats, ranks: int) -> float:
    """Return the mean cost of a rank's batch as a share of the largest in its step (1: balanced).

    ``ranks`` consecutive batches are a step; in a last step that is not full, some ranks idle.

    >>> balance(np.array([4.0, 2.0, 4.0, 4.0]), 2)
    0.875
    """
    steps = np.zeros((-(-len(costs) // ranks), ranks))
    steps.flat[: len(costs)] = costs
    return float(steps.mean(axis=1).sum() / steps.max(axis=1).sum())


def compared(reports: Sequence[PaddingReport]) -> str:
    """Return a table of reports, one line each.

    >>> report = padding_report([[0, 1]], lengths=[1, 2], budget=4, name="all")
    >>> print(compared([report]))
    scheme  batches  padding    fill  largest  rejoin  spread
    all           1    25.0%  100.0%        2       -   0.500
    """
    head = ["scheme", "batches", "padding", "fill", "largest", "rejoin", "spread"]
    rows = [head]
    for report in reports:
        fill = "-" if report.fill is None else f"{report.fill:.1%}"
        rejoin = "-" if report.rejoin is None else f"{report.rejoin:.4f}"
        row = [report.name, f"{report.batches:,}", f"{report.padding:.1%}", fill]
        rows.append([*row, f"{report.largest:,}", rejoin, f"{report.spread:.3f}"])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )
