"""The order of an epoch of a mixture: position → row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from penstock.context import Context
from penstock.errors import PipelineError, StateError
from penstock.stages.sources.epoch_order import Rows
from penstock.stages.sources.mix_plan import BLOCK, MixPlan
from penstock.stages.sources.read_ahead import ReadAhead

if TYPE_CHECKING:
    from penstock.stages.sources.mixed_samples import MixedSamples

ENDLESS = 1 << 62
"""Positions of an endless order."""
KEPT_POSITIONS = 32 * BLOCK
"""Positions of the blocks that are kept: the lanes of a process read in several blocks."""


@dataclasses.dataclass
class MixtureRange:
    """A part of an epoch's order: from a position on, and after counts of each source."""

    begin: int
    plan: MixPlan
    parts: list[int | None]
    """The source of each of the plan's numbers; None if it was removed."""
    base: list[int]
    names: list[str]

    def counts_at(self, position: int) -> dict[str, int]:
        """Return the number of samples of each source before a position, by name."""
        block, first = self.plan.find(position - self.begin)
        sources = self.plan.content(block)[0][: position - self.begin - first]
        more = np.bincount(sources, minlength=len(self.base)).tolist()
        counts = zip(self.base, self.plan.counts(block), more)
        return dict(zip(self.names, map(sum, counts)))


@dataclasses.dataclass(frozen=True)
class _Block:
    """The samples from position ``begin`` to ``end``."""

    begin: int
    end: int
    number: int
    stretch: MixtureRange
    sources: Rows
    """By position: the number of the source in the plan."""
    parts: Rows
    """By position: the number of the source in the mixture; -1 if it was removed."""
    numbers: Rows
    """By position: the number of the sample among those of its source."""

    def removed(self, place: int) -> StateError:
        """Return an error: the source of a sample is not in the mixture."""
        name = self.stretch.names[self.sources.item(place)]
        return StateError(
            f"the state has samples of the source {name!r}, which is gone: keep it, with weight 0, "
            "until the epoch ends"
        )


class MixedOrder:
    """The order of an epoch: position → row.

    A row is that of the source times the number of sources, plus the number of the source.
    """

    def __init__(self, stage: MixedSamples, seed: int, epoch: int) -> None:
        self.stage, self.key = stage, (seed, epoch)
        self.stretches = stage.plan_stretches(seed, epoch)
        self._blocks: list[_Block] = []  # the last ones used
        self._passes: dict[int, tuple[int, int, Any]] = {}
        self._ahead: WeakValueDictionary[Any, ReadAhead] = WeakValueDictionary()

    def __len__(self) -> int:
        return self.count

    @property
    def count(self) -> int:
        end = self.stage.end_of(self.stretches, *self.key)
        return ENDLESS if end is None else end

    def row(self, position: int) -> int:
        """Return the row at a position of the epoch."""
        block = self._find_block(position)
        place = position - block.begin
        part, number = block.parts.item(place), block.numbers.item(place)
        if part < 0:
            raise block.removed(place)
        first, _, order = self._find_pass(part, number)
        row: int = order.row(number - first)
        return row * self.stage.radix + part

    def rows(self, positions: Rows) -> Rows:
        """Return the rows at ascending positions of the epoch."""
        found = np.empty(len(positions), np.int64)
        for part, places, rows in self.groups(positions):
            found[places] = rows * self.stage.radix + part
        return found

    def groups(self, positions: Rows) -> Iterator[tuple[int, Rows, Rows]]:
        """Group the samples at ascending positions by source.

        Yield the number of the source, which of the positions are its samples (as indexes), and
        their rows in the source.
        """
        if not len(positions):
            return
        parts, numbers = self._numbers(positions)
        places = np.argsort(parts, kind="stable")
        parts, numbers = parts[places], numbers[places]
        edges = (np.flatnonzero(np.diff(parts)) + 1).tolist()
        for begin, end in pairwise([0, *edges, len(parts)]):
            part: int = parts.item(begin)
            yield part, places[begin:end], self._rows_of(part, numbers[begin:end])

    def _numbers(self, positions: Rows) -> tuple[Rows, Rows]:
        """Return for each position the source, and the number of its sample in the source."""
        parts: list[Rows] = []
        numbers: list[Rows] = []
        while len(positions):
            block = self._find_block(positions.item(0))
            count = int(np.searchsorted(positions, block.end))
            places = positions[:count] - block.begin
            parts.append(block.parts[places])
            if parts[-1].min() < 0:
                raise block.removed(places.item(int(np.argmin(parts[-1]))))
            numbers.append(block.numbers[places])
            positions = positions[count:]
        # Numbers of 16 bits are sorted in a fifth of the time.
        small = np.concatenate(parts).astype(np.min_scalar_type(self.stage.radix))
        return small, np.concatenate(numbers)

    def _rows_of(self, part: int, numbers: Rows) -> Rows:
        """Return the rows of ascending numbers of the samples of a source."""
        found: list[Rows] = []
        while len(numbers):
            first, end, order = self._find_pass(part, numbers.item(0))
            count = len(numbers)
            if numbers.item(-1) >= end:
                count = int(np.searchsorted(numbers, end))
            inside = (numbers[:count] - first).astype(np.int64, copy=False)
            found.append(order.rows(inside))
            numbers = numbers[count:]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _find_pass(self, part: int, number: int) -> tuple[int, int, Any]:
        """Return the pass over a source that contains a number: its first number, the one after
        its last, and its order."""
        known = self._passes.get(part)
        if known is not None and known[0] <= number < known[1]:
            return known
        source = self.stage.parts[part]
        seed, epoch = self.key
        own_seed = source.seed_for(seed)
        turn = 0
        samples = self.stage.open_part(part)
        order = samples.order(own_seed, epoch)
        length = len(order)
        if not length:
            raise PipelineError(f"mix: the source {source.name!r} has no samples")
        if number >= length:
            turn = number // length
            order = samples.order(own_seed, (turn << 32) + epoch)
        found = (turn * length, (turn + 1) * length, order)
        self._passes[part] = found
        return found

    def _find_block(self, position: int) -> _Block:
        """Return the block that contains a position; the last ones used are cached."""
        blocks = self._blocks
        for block in reversed(blocks):
            if block.begin <= position < block.end:
                return block
        stretch = self._find_stretch(position)
        for block in blocks:
            if block.end == position and block.stretch is stretch:
                number, begin = block.number + 1, position
                break
        else:
            number, first = stretch.plan.find(position - stretch.begin)
            begin = stretch.begin + first
        block = _load_block(stretch, number, begin, position)
        kept = KEPT_POSITIONS // max(stretch.plan.block, len(block.parts)) or 1
        self._blocks = [*blocks[-kept:], block]  # other threads may still read the old list
        return block

    def _find_stretch(self, position: int) -> MixtureRange:
        return next(s for s in reversed(self.stretches) if s.begin <= position or not s.begin)

    def read_ahead(self, context: Context, lane: int, lanes: int) -> ReadAhead:
        """Return what reads ahead for all lanes of this process."""
        made = ReadAhead(self, context, lane, lanes)
        return self._ahead.setdefault(made.key, made)


def _load_block(stretch: MixtureRange, number: int, begin: int, position: int) -> _Block:
    """Return a block, or the first one after it that contains a position."""
    sources, numbers = stretch.plan.content(number)
    while not len(sources) and stretch.plan.begin(number + 1) <= position - stretch.begin:
        number += 1
        sources, numbers = stretch.plan.content(number)
    if any(stretch.base):
        numbers = numbers + np.array(stretch.base)[sources]
    parts = np.array([-1 if part is None else part for part in stretch.parts])[sources]
    return _Block(begin, begin + len(sources), number, stretch, sources, parts, numbers)
