"""Read the small samples of a mixture ahead, shard by shard.

A mixture of many sources has more shards in use than files may be open, so that nearly every sample
would open a shard. Instead, the order is cut into windows of thousands of samples. While those of
one window are used, those of the next are read, one source after another: each shard is opened
once, and samples that are near each other are read together. Large samples are read when they are
used.

The first window has one sample, and each one has twice as many as the one before it, so that the
first samples are available at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.context import Context
from penstock.errors import PenstockError
from penstock.shards.lazy_bytes import LATER_BYTES
from penstock.shards.sample_reader import Sample
from penstock.stages.sources.epoch_order import Rows

if TYPE_CHECKING:
    from penstock.stages.sources.mixed_order import MixedOrder

WINDOW, WINDOW_BYTES = 1 << 16, 64 << 20
"""The most samples of a window, and their bytes in the shards. Two windows are in memory."""
CHUNK = 256
"""Samples that are used between two steps of reading the next window."""
PIECE = 512
"""The most samples of one source that are read in one step."""
Group = tuple[int, Rows, Rows]
"""A source, which samples of a window are its (as indexes), and their rows in the source."""


class ReadAhead:
    """The samples that the lanes of one process need next.

    ``samples`` has them by position. One that is not there is read separately.
    """

    def __init__(self, order: MixedOrder, context: Context, lane: int, lanes: int) -> None:
        self._order, self._run, self._lanes = order, context.run, lanes
        self._first = context.rank + context.world_size * context.worker
        self._step = context.world_size * context.num_workers
        if (lane - self._first) % self._step:  # not a lane of this rank and worker
            self._first, self._step = lane, lanes
        self.key = (self._first, self._step, lanes, context.run)
        self._own = len(range(self._first, lanes, self._step))
        self.samples: dict[int, Sample] = {}
        self._filling = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Drop all samples."""
        self.samples.clear()
        self._window: _Window | None = None  # the one that is used
        self._next: _Window | None = None
        self._before: list[int] = []  # positions of the window before
        self._end = 0  # the first position that was not added yet

    def fill(self, position: int, end: int) -> None:
        """Add the sample at a position and some after it, unless that was done before.

        ``end`` is the number of positions in the epoch.
        """
        # A lane that is far behind the others reads each sample when it is used, and so does one
        # that comes while another one fills.
        if position < self._end or not self._filling.acquire(blocking=False):
            return
        try:
            window = self._window
            while self._end <= position:
                if window is None or window.left == 0:
                    window = self._window = self._take_next(position, end)
                self._add_chunk(window, end)
        finally:
            self._filling.release()

    def _take_next(self, position: int, end: int) -> _Window:
        """Return the next window, or one that begins at a position if the next ends before it."""
        for passed in self._before:  # of lanes that are far behind
            self.samples.pop(passed, None)
        self._before = []
        if self._window is not None:
            self._before = self._window.positions
            self._plan_next(self._window, end)
        window, self._next = self._next, None
        if window is None or window.positions[-1] < position:
            window = _Window(self._order, self._positions(position, 1, end))
        window.read(1.0)
        return window

    def _add_chunk(self, window: _Window, end: int) -> None:
        """Add the next samples of a window, and read a part of the window after it."""
        used = 1 - window.left / len(window.positions)
        if used:
            self._plan_next(window, end)
            if self._next is not None:
                self._next.read(used)
        self.samples.update(window.take(CHUNK))
        self._end = window.end

    def _plan_next(self, window: _Window, end: int) -> None:
        """Decide which samples are in the window after this one, if any are left."""
        if self._next is None:
            count = min(2 * len(window.positions), WINDOW)
            positions = self._positions(window.positions[-1], count + 1, end)[1:]
            self._next = _Window(self._order, positions) if len(positions) else None

    def _positions(self, position: int, count: int, end: int) -> Rows:
        """Return the next positions of the lanes of this process, from one of them on."""
        run = self._run
        block, within = divmod(position, run)
        turn, lane = divmod(block, self._lanes)
        first = (turn * self._own + (lane - self._first) // self._step) * run + within
        numbers = np.arange(first, first + count)
        turns, lanes = np.divmod(numbers // run, self._own)
        blocks = turns * self._lanes + self._first + lanes * self._step
        positions: Rows = blocks * run + numbers % run
        return positions[: int(np.searchsorted(positions, end))]


class _Window:
    """Samples that are read together."""

    def __init__(self, order: MixedOrder, positions: Rows) -> None:
        self._stage = order.stage
        groups: list[Group] = []
        with contextlib.suppress(PenstockError, OSError):  # raised when the sample is used
            groups = list(order.groups(positions))
        sizes = np.full(len(positions), LATER_BYTES)
        for part, places, rows in groups:
            with contextlib.suppress(PenstockError, OSError):
                sizes[places] = self._stage.open_part(part).sizes_of(rows)
        small = sizes < LATER_BYTES
        total = np.cumsum(np.where(small, sizes, 0))
        count = max(int(np.searchsorted(total, WINDOW_BYTES, side="right")), 1)
        small[count:] = False
        self._pieces = [piece for group in groups for piece in _cut(group, small)]
        self.positions: list[int] = positions[:count].tolist()
        self._samples: list[Sample | None] = [None] * count
        self._done = self._taken = 0

    @property
    def left(self) -> int:
        """The number of positions that were not taken yet."""
        return len(self.positions) - self._taken

    @property
    def end(self) -> int:
        """The position after the last one that was taken."""
        return self.positions[self._taken - 1] + 1

    def read(self, share: float) -> None:
        """Read until this share of the pieces is done."""
        wanted = max(round(share * len(self._pieces)), self._done)
        for part, places, rows in self._pieces[self._done : wanted]:
            with contextlib.suppress(PenstockError, OSError):  # raised when the sample is used
                found = self._stage.reader.read_source(part, rows.tolist())
                for place, sample in zip(places.tolist(), found):
                    self._samples[place] = sample
        self._done = wanted

    def take(self, count: int) -> list[tuple[int, Sample]]:
        """Return the next samples with their positions."""
        begin, end = self._taken, min(self._taken + count, len(self.positions))
        pairs = zip(self.positions[begin:end], self._samples[begin:end])
        taken = [(position, sample) for position, sample in pairs if sample is not None]
        self._samples[begin:end] = [None] * (end - begin)
        self._taken = end
        return taken


def _cut(group: Group, small: Any) -> Iterator[Group]:
    """Cut the small samples of a source into pieces in the order of its shards."""
    part, places, rows = group
    chosen = small[places]
    if not chosen.all():
        places, rows = places[chosen], rows[chosen]
    if len(rows) > PIECE:
        order = np.argsort(rows)
        places, rows = places[order], rows[order]
    for begin in range(0, len(rows), PIECE):
        yield part, places[begin : begin + PIECE], rows[begin : begin + PIECE]
