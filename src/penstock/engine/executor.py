"""The threads that work for a loader, and how far ahead they may be.

An :class:`Engine` lives as long as one iteration. It belongs to the thread that runs the
pipeline; the workers only take chunks from a queue. Nothing here is shared between iterations,
so a fork, a second iterator or a loader inside another has threads of its own, or none.
"""

from __future__ import annotations

import queue
import sys
import threading
import weakref
from typing import Any

from penstock.engine.checkpoints import Noted
from penstock.engine.engine import Stopped
from penstock.engine.item_cost import Pace
from penstock.engine.job import Chunk
from penstock.engine.observer import StatsListener
from penstock.engine.segment_run import Row
from penstock.memory import output as rows_of_batches
from penstock.memory.batch_buffers import Blocks, Rows, Store, use
from penstock.stages.segment import EachRun

LOOK_AHEAD = 256
"""The most items ahead, unless there are more than thirty-two threads."""
BESIDE = 4 if "t" in getattr(sys, "abiflags", "") else 3
"""So many batches are there beside what is ahead and what waits: the samples of one, the batch made
of them, the one in the loop. In free-threaded Python the thread that has made an object frees it,
when it runs again: one more."""
SCALARS = frozenset((int, float, bool, type(None)))


class Engine:
    """A pool of threads for the rows of one iteration.

    ``look_ahead`` items may be on their way at a time. With the batches that wait they take no
    more than ``budget_bytes``, as far as sizes are known by then: room is left for the batch that
    is being made and for the one that the training loop has. One item for each thread, and one
    batch, are always allowed. With ``blocks``, what the stage ``last`` gives is written there.
    """

    def __init__(
        self,
        threads: int,
        *,
        batch_size: int = 1,
        budget_bytes: int = 1 << 30,
        blocks: Blocks | None = None,
        last: Any = None,
        meter: StatsListener | None = None,
    ) -> None:
        self.threads, self.batch_size, self.budget_bytes = threads, batch_size, budget_bytes
        self.look_ahead = max(min(max(batch_size, 32), LOOK_AHEAD), 8 * threads)
        self.blocks, self.meter = blocks, meter or StatsListener()
        self._last, self._in_place = last, set[int]()
        self.in_flight = 0
        self.stopped = False
        self.alone = True
        self.paces: dict[int, Pace] = {}
        self.item_bytes = 0.0  # of one result, on average
        self.batch_bytes = self.queued_bytes = 0  # of one batch, of all that wait
        self._rows = 0
        self._noted: weakref.WeakSet[Noted] = weakref.WeakSet()
        self._tasks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []

    def row(self, last: EachRun[Any]) -> Row:
        """The row of stages that ends there."""
        row = Row(last, self)
        # Only what goes straight into a batch: a stage between may keep samples, or repeat them.
        if last.stage is self._last:
            self._in_place.add(row.number)
        return row

    def room(self) -> bool:
        """Whether more items may be taken ahead."""
        if self.in_flight < self.threads or not self.item_bytes:
            return self.in_flight < self.threads
        return self.in_flight < self.look_ahead and not self.full

    @property
    def full(self) -> bool:
        """Whether the memory is used up."""
        return self._spare_bytes <= 0

    @property
    def spare(self) -> int:
        """How many more items there is memory for."""
        return int(max(self._spare_bytes, 0) / (self.item_bytes or 1))

    @property
    def _spare_bytes(self) -> float:
        used = self.in_flight * self.item_bytes + self.queued_bytes
        batch = self.batch_bytes or self.batch_size * self.item_bytes  # before there is one
        return self.budget_bytes - used - BESIDE * batch

    def submit(self, chunk: Chunk) -> None:
        """Have a thread work on the chunk."""
        if not self._workers:
            self._start()
        self._tasks.put(chunk)
        if self.stopped:  # asked behind the put: or nobody might be left to take it
            raise Stopped

    def note(self, row: Row, chunk: Chunk) -> None:
        """A chunk is done: how large its results are, and what the meter wants to know."""
        if chunk.results:
            self.weigh(chunk.results[0])
        self.meter.worked(row, chunk)

    def weigh(self, result: Any) -> None:
        """Learn from a result how much memory items take."""
        size = held_bytes(result)
        weight = 0.25 if self.item_bytes else 1.0
        self.item_bytes += (size - self.item_bytes) * weight

    def number(self) -> int:
        """A number for a row of stages."""
        self._rows += 1
        return self._rows

    def rows(self, chunk: Chunk) -> Rows | None:
        """Where the results of a chunk are written, if batches are made in place."""
        if self.blocks is None or chunk.row not in self._in_place:
            rows_of_batches.give_by(None)  # the chunk before may have been of another row
            return None
        return self.blocks.rows(chunk.row, chunk.first)

    def notes(self, noted: Noted) -> None:
        """Report the shards that the source of a row opens."""
        self._noted.add(noted)

    def shard_opened(self, lane: int | None) -> None:
        """Have the state of the sources of a lane saved with their next item."""
        for noted in self._noted:
            if noted.source.context.lane == lane:
                noted.note_next()

    def closed(self, row: Row) -> None:
        """A row gives nothing more."""
        if self.blocks is not None:
            self.blocks.forget(row.number)

    def _start(self) -> None:
        # Threads start when the first chunk needs them: cheap rows never do.
        for number in range(self.threads):
            thread = threading.Thread(
                target=work, args=(self, self._tasks), name=f"penstock-worker-{number}", daemon=True
            )
            thread.start()
            self._workers.append(thread)  # now it can be waited for

    def stop(self) -> None:
        """Let the threads end: each after the item it is at. Safe to call from anywhere, twice."""
        self.stopped = True
        for _ in range(self.threads):
            self._tasks.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads, but not for ever: a transform may sleep."""
        for thread in self._workers:
            if thread is not threading.current_thread():
                thread.join(timeout_s)


def engine_of_worker(threads: int, batch_size: int, last: Any, max_memory: int) -> Engine:
    """The threads of a worker process; its batches are made in place, then sent from there."""
    store = Store(pinned=False, most_bytes=max_memory // 2)
    use(store)
    blocks = Blocks(store, batch_size) if batch_size > 1 else None
    return Engine(threads, batch_size=batch_size, budget_bytes=max_memory, blocks=blocks, last=last)


def work(engine: Engine, tasks: queue.SimpleQueue[Chunk | None]) -> None:
    """What a thread of the pool does."""
    while (chunk := tasks.get()) is not None:
        if engine.stopped:
            chunk.finish()
        else:
            chunk.work(engine)
        del chunk  # or its results would wait here for the next one
    rows_of_batches.give_by(None)


def held_bytes(value: Any, depth: int = 4) -> int:
    """How much memory a sample or a batch holds, roughly: its arrays, bytes and texts.

    >>> held_bytes({"__key__": "a", "jpg": bytes(1000)}) > 1000
    True
    """
    if type(value) in SCALARS:  # most of what a record holds, and the last that is found below
        return 32
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, dict):
        return 200 + sum(held_bytes(item, depth - 1) for item in value.values()) if depth else 200
    if isinstance(value, (list, tuple)):
        if not depth or not value:
            return 64
        if len(value) > 64:  # a column of a batch: by its first ones
            return len(value) * sum(held_bytes(item, depth - 1) for item in value[:16]) // 16
        return 64 + sum(held_bytes(item, depth - 1) for item in value)
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if hasattr(value, "size") and hasattr(value, "getbands"):  # an image of Pillow
        width, height = value.size
        return int(width * height * len(value.getbands()))
    return 32
