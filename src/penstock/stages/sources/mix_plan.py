"""The plan of a mixture: position in the mixed order → (source, n-th sample of that source).

The plan is a pure function, so that a state is a position and finding it again takes no time. A
mixture counts samples in a *virtual time* t. The share of source ``i`` at t is its weight divided
by the sum of all weights, and W(i, t) is the integral of that share. Time is cut into blocks of
4,096. At each edge source ``i`` has yielded ``floor(W(i, t) + u(i))`` samples, where ``u`` is a
number below 1 that depends on the seed and the source's name. So every source is within one sample
of W(i, t) at every edge, for any weights. The sum of the rounded numbers is not always t: counted
against that sum, one of k sources with a constant share s is off by less than 1 + s (k - 2).
Inside a block the sources come in a random order that depends on the seed and the block.

A source with a limited number of samples stops at its limit. The others keep their
proportions; blocks then span more time, so that they still hold thousands of samples.

All sums are in integers of unlimited size, in steps of 2**-64 of a sample.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import PipelineError
from penstock.rng import stable_hash
from penstock.stages.sources.epoch_order import keyed_order

BLOCK = 4096
RANDOM_BLOCK = 65536
"""Samples per block in the mode "random": many batches, so that draws look independent."""
PIECES = 32
"""A linear change of weights is approximated by this many linear changes of shares."""
MODES = ("quota", "random", "epochs")
UNTIL = ("first", "all", "each", "forever")
_BITS = 64
_LONGEST = 40  # doublings of a block's time

Array = np.ndarray[Any, np.dtype[Any]]
Weight = Any
"""A number, or a schedule: ``{"constant": w}``, ``{"step": {t: w}}``, ``{"linear": {t: w}}``."""


@dataclasses.dataclass(frozen=True)
class SourceStats:
    """The samples that one source of a mixture has yielded so far in the epoch."""

    samples: int
    """On all ranks together; of streams, in this process, and of streams in a loader, up to the
    states that its workers or threads have sent: a few batches ago."""
    share: float
    """Of the samples so far."""
    target: float
    """Its share of the weights at this position."""
    passes: float | None
    """The number of passes over its samples; None before it was opened."""


class Schedule:
    """A weight over the number of samples of the run.

    >>> Schedule({"linear": {0: 5, 100: 1}}).at(50), Schedule({"step": {0: 5, 100: 1}}).at(99)
    (3.0, 5.0)
    """

    def __init__(self, weight: Weight, name: str = "") -> None:
        self.name, self.linear = name, False
        points: Any = {0: weight}
        if isinstance(weight, Mapping):
            if len(weight) != 1 or next(iter(weight)) not in ("constant", "step", "linear"):
                raise self._wrong(
                    f"is a number, {{step: …}} or {{linear: …}}, not {dict(weight)!r}"
                )
            ((kind, points),) = weight.items()
            self.linear = kind == "linear"
            points = {0: points} if kind == "constant" else points
            if not isinstance(points, Mapping) or not points:
                raise self._wrong(f"needs numbers of samples and weights: {{{kind}: {{0: 5}}}}")
        self.points: list[tuple[int, float]] = sorted(
            (self._time(time), self._number(value)) for time, value in points.items()
        )
        self.times = [time for time, _ in self.points]
        for time, after in itertools.pairwise(self.times):
            if time == after:
                raise self._wrong(f"has two weights after {time} samples")

    def _time(self, time: Any) -> int:
        whole = None
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(time)  # JSON has texts as keys
            whole = int(time) if isinstance(time, int) else int(number)
            whole = whole if whole == number >= 0 and not isinstance(time, bool) else None
        if whole is None:
            raise self._wrong(f"changes after a number of samples, not {time!r}")
        return whole

    def _number(self, value: Any) -> float:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value < 0:
            raise self._wrong(f"is a number of at least 0, not {value!r}")
        return float(value)

    def _wrong(self, what: str) -> PipelineError:
        return PipelineError(f"mix: the weight of {self.name!r} {what}")

    @property
    def constant(self) -> bool:
        return len({value for _, value in self.points}) == 1

    @property
    def zero(self) -> bool:
        """Whether the weight is 0 at all times."""
        return not any(value for _, value in self.points)

    def at(self, time: int, *, before: bool = False) -> float:
        """Return the weight at a time; with ``before``, just before it."""
        times, points = self.times, self.points
        place = (bisect.bisect_left if before else bisect.bisect_right)(times, time) - 1
        if place < 0:
            return points[0][1]
        if not self.linear or place + 1 == len(points):
            return points[place][1]
        (begin, low), (end, high) = points[place], points[place + 1]
        return low + (high - low) * (time - begin) / (end - begin)

    def plain(self) -> Any:
        """Return the weight as plain values, the same for equal schedules."""
        if self.constant:
            return self.points[0][1]
        return {"linear" if self.linear else "step": [list(point) for point in self.points]}


class Shares:
    """The integrals of the shares of all sources, in steps of 2**-64.

    >>> [round(share / 2**64) for share in Shares([Schedule(3), Schedule(1)]).integral(100)]
    [75, 25]
    """

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.count = len(schedules)
        self._constant = [schedule.points[0][1] for schedule in schedules]
        self._changing = [(n, s) for n, s in enumerate(schedules) if not s.constant]
        times = sorted({0, *itertools.chain(*(s.times for s in schedules if not s.constant))})
        self.knots = times[1:]
        """Where a schedule has a point."""
        self.begins: list[int] = []  # of the segments
        self.first: list[list[int]] = []  # shares at the begin of each segment
        self.slope: list[list[int]] = []  # what is added to them up to its end
        for begin, end in itertools.pairwise([*times, times[-1]]):
            self._add_segment(begin, end, times[-1])
        self._sums = [[0] * self.count]  # integrals at the begin of the first segments

    def _weights(self, time: int, *, before: bool = False) -> list[float]:
        weights = list(self._constant)
        for number, schedule in self._changing:
            weights[number] = schedule.at(time, before=before)
        return weights

    def _add_segment(self, begin: int, end: int, whole: int) -> None:
        first = self._weights(begin)
        last = self._weights(end, before=True) if end > begin else first
        changes = last != first
        # Where the sum stays, shares are as straight as weights.
        straight = not changes or math.isclose(sum(first), sum(last))
        pieces = 1 if straight else min(-(-PIECES * (end - begin) // whole), end - begin)
        edges = [begin + (end - begin) * number // pieces for number in range(pieces + 1)]
        shares = _shares(first, begin)
        for low, high in itertools.pairwise(edges):
            after = _shares(self._weights(high, before=True), high) if changes else shares
            self.begins.append(low)
            self.first.append(shares)
            self.slope.append([b - a for a, b in zip(shares, after)])
            shares = after

    def _within(self, place: int, time: int, sums: list[int]) -> list[int]:
        """Return the integrals at a time after the begin of a segment; ``sums`` are those at its
        begin."""
        if place + 1 == len(self.begins):
            return [s + q * time for s, q in zip(sums, self.first[place])]
        twice = 2 * (self.begins[place + 1] - self.begins[place])
        square = time * time
        return [
            s + q * time + d * square // twice
            for s, q, d in zip(sums, self.first[place], self.slope[place])
        ]

    def sums(self, last: int) -> list[list[int]]:
        """Return the integrals at the begin of each segment, up to the last one that is needed."""
        sums = self._sums
        if len(sums) <= last:
            sums = list(sums)  # other threads may still read the old list
            for place, (begin, end) in enumerate(itertools.pairwise(self.begins[: last + 1])):
                if place + 1 == len(sums):
                    sums.append(self._within(place, end - begin, sums[place]))
            self._sums = sums
        return sums

    def integral(self, time: int) -> list[int]:
        """Return the integral of every source's share up to a time."""
        place = bisect.bisect_right(self.begins, time) - 1
        return self._within(place, time - self.begins[place], self.sums(place)[place])

    def share(self, time: int) -> list[int]:
        """Return every source's share at the begin of the segment that holds a time."""
        return self.first[bisect.bisect_right(self.begins, time) - 1]

    @property
    def changing(self) -> bool:
        return len(self.begins) > 1


def _shares(weights: Sequence[float], time: int) -> list[int]:
    most = max(weights, default=0.0)
    if not most:
        raise PipelineError(f"mix: the weights of all sources are 0 after {time} samples")
    # Many sources have the same weight.
    whole = {w: max(int(w / most * 2**52), 1) if w else 0 for w in set(weights)}
    total = sum(map(whole.__getitem__, weights))
    shares = {w: (number << _BITS) // total for w, number in whole.items()}
    return [shares[w] for w in weights]


class MixPlan:
    """One stretch of a mixture. Position 0 is where the stretch begins.

    ``shares`` are those of the sources that take part; ``names`` seed their rounding. ``limits``
    are the most samples that each may yield in this stretch (None: any number). ``time`` is the
    number of samples of the run before the stretch.

    >>> plan = MixPlan(Shares([Schedule(3), Schedule(1)]), ["a", "b"], key=1)
    >>> plan.counts(1), plan.find(5)[0]
    ([3072, 1024], 0)
    """

    def __init__(
        self,
        shares: Shares,
        names: Sequence[str],
        *,
        key: int,
        block: int = BLOCK,
        limits: Sequence[int] | None = None,
        time: int = 0,
    ) -> None:
        self.shares, self.key, self.block, self.time = shares, key, block, time
        self.limits = None if limits is None else list(limits)
        rounding = [stable_hash("share", key, name) for name in names]
        self._rounding = rounding
        if time:
            self._rounding = [u - s for u, s in zip(rounding, shares.integral(time))]
        self._edges: list[tuple[int, int, int]] = [(0, 0, block)]  # first block, time, width
        self.blocks: int | None = None
        self._memory: dict[int, list[int]] = {}
        self._find_edges(names)

    def counts(self, block: int) -> list[int]:
        """Return the number of samples of every source before a block."""
        found = self._memory.get(block)
        if found is not None:
            return found
        if self.limits is not None and self.blocks is not None and block >= self.blocks:
            return self.limits
        time = self.time + self._edge(block)
        found = [(w + u) >> _BITS for w, u in zip(self.shares.integral(time), self._rounding)]
        if self.limits is not None:
            found = list(map(min, found, self.limits))
        last = list(self._memory.items())[-3:]
        self._memory = {**dict(last), block: found}  # other threads may still read the old one
        return found

    def begin(self, block: int) -> int:
        """Return the position at which a block begins."""
        return sum(self.counts(block))

    def find(self, position: int) -> tuple[int, int]:
        """Return the block that holds a position, and the position at which the block begins."""
        if self.blocks is None:
            low = max((position - self.shares.count) // self.block - 1, 0)
            high = (position + self.shares.count) // self.block + 2 + len(self._edges)
        else:
            low, high = 0, max(self.blocks, 1)
        while high - low > 1:  # the block is at least low and below high
            middle = (low + high) // 2
            if self.begin(middle) <= position:
                low = middle
            else:
                high = middle
        return low, self.begin(low)

    def content(self, block: int) -> tuple[Array, Array]:
        """Return for each position of a block the source, and the number of its sample."""
        before, after = self.counts(block), self.counts(block + 1)
        amounts = np.array([b - a for a, b in zip(before, after)], np.int64)
        small = np.min_scalar_type(len(amounts))  # 16 bits are sorted in a fifth of the time
        sources = np.repeat(np.arange(len(amounts), dtype=small), amounts)
        mixed = sources[keyed_order(len(sources), stable_hash("block", self.key, block))]
        # Each source's samples come in their own order.
        firsts = np.concatenate([[0], np.cumsum(amounts)[:-1]])
        numbers = np.empty(len(mixed), np.int64)
        numbers[np.argsort(mixed, kind="stable")] = np.arange(len(mixed)) - firsts[sources]
        base = np.array(before, object if max(before, default=0) >> 62 else np.int64)
        return mixed, numbers + base[mixed]

    def _edge(self, block: int) -> int:
        edges = self._edges
        place = bisect.bisect_right(edges, block, key=lambda edge: edge[0]) - 1
        first, time, width = edges[place]
        edge = time + (block - first) * width
        return min(edge, edges[place + 1][1]) if place + 1 < len(edges) else edge

    # ── ends ────────────────────────────────────────────────────────────────────────────

    def _find_edges(self, names: Sequence[str]) -> None:
        """Begin a block where a schedule changes; widen blocks where sources reach their limits."""
        limits = self.limits or []
        ends = [self._end_of(n, limit, names[n]) for n, limit in enumerate(limits)]
        events = [(time, number) for number, time in enumerate(ends)]
        events += [(t - self.time, -1) for t in self.shares.knots if t > self.time]
        longest = 8 if self.shares.changing else _LONGEST
        begin, width = 0, self.block
        ended: set[int] = set()
        for time, number in sorted(events):
            if limits and len(ended) == len(limits):
                break
            wanted = width
            if number >= 0:
                ended.add(number)
                shares = self.shares.share(self.time + time)
                alive = sum(share for n, share in enumerate(shares) if n not in ended)
                if alive > 0:
                    wanted = self.block << max(min(_BITS - alive.bit_length(), longest), 0)
            if time > begin and (number < 0 or wanted > width):
                first = self._edges[-1][0] + -(-(time - begin) // width)
                begin, width = time, max(wanted, width)
                self._edges.append((first, begin, width))
            elif wanted > width:
                width = wanted
                self._edges[-1] = (self._edges[-1][0], begin, width)
        if self.limits is not None:
            last = max(ends, default=0)
            self._edges = [edge for edge in self._edges if edge[1] < last] or self._edges[:1]
            first, begin, width = self._edges[-1]
            self.blocks = first + max(-(-(last - begin) // width), 0)

    def _end_of(self, number: int, limit: int, name: str) -> int:
        """Return a time at which a source has reached its limit."""
        target = (limit << _BITS) - self._rounding[number]
        shares = self.shares
        sums = shares.sums(len(shares.begins) - 1)
        place = max(bisect.bisect_left(sums, target, key=lambda one: one[number]) - 1, 0)
        begin = shares.begins[place]
        if place + 1 == len(shares.begins):
            share, missing = shares.first[place][number], target - sums[place][number]
            if missing <= 0:
                return max(begin - self.time, 0)
            if not share:
                raise PipelineError(
                    f"mix: the source {name!r} never comes to its end: its weight is 0 after "
                    f"{begin} samples"
                )
            return max(begin + -(-missing // share) - self.time, 0)
        return max(shares.begins[place + 1] - self.time, 0)

    def first_end(self, lengths: Sequence[int | None]) -> int:
        """Return the position at which the first source would begin again."""
        block = self._first_block(lengths, any)
        if block is None:
            raise PipelineError("mix: until='first' needs a source that ends")
        sources, numbers = (array.tolist() for array in self.content(block))
        for place, (source, number) in enumerate(zip(sources, numbers)):
            length = lengths[source]
            if length is not None and number >= length:
                return self.begin(block) + place
        return self.begin(block + 1)

    def last_end(self, lengths: Sequence[int | None]) -> int:
        """Return the position at which every source has yielded all of its samples."""
        block = self._first_block([None if n is None else n - 1 for n in lengths], all)
        if block is None:
            raise PipelineError(
                "mix: until='all' needs sources that end, and weights that do not stay 0"
            )
        sources, numbers = (array.tolist() for array in self.content(block))
        last = 0
        for place, (source, number) in enumerate(zip(sources, numbers)):
            if number + 1 == lengths[source]:
                last = place + 1
        return self.begin(block) + last

    def _first_block(
        self, lengths: Sequence[int | None], which: Callable[[Any], bool]
    ) -> int | None:
        """Return the first block after which any, or all, of the counts are above the lengths."""

        def over(block: int) -> bool:
            pairs = zip(self.counts(block + 1), lengths)
            return which(length is not None and count > length for count, length in pairs)

        high = 1
        while not over(high - 1):
            high *= 2
            if high > 1 << 60:
                return None
        low = high // 2  # over(high - 1), and not over(low - 1)
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (low, middle) if over(middle - 1) else (middle, high)
        return high - 1 if not over(low - 1) or low == 0 else low - 1
