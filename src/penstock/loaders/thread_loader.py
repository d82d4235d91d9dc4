"""A loader on threads of this process: nothing is pickled, and finished batches wait in a queue.

One thread runs the pipeline: it reads, shuffles, batches and collates. Stateless stages (decode,
map, …) run on a pool of threads (:mod:`penstock.engine.executor`). Batches go through a queue to
the training loop, each with the state of its lanes:

    pipeline thread ──► chunks ──► pool ──► results in order ──► batch ──► queue ──► loop

The two ends share only queues, so the threads end when the iterator is garbage collected.
"""

from __future__ import annotations

import atexit
import math
import os
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from penstock.context import Context
from penstock.engine.engine import Stopped
from penstock.engine.executor import Engine, held_bytes
from penstock.engine.observer import StatsListener
from penstock.errors import PipelineError
from penstock.loaders.to_tensors import torch_data
from penstock.loaders.worker_state import (
    StatefulCollate,
    StatefulDataset,
    StatefulItem,
    collect_lane_states,
)
from penstock.memory.batch_buffers import Blocks, Store, use
from penstock.pipeline.item_counts import batches_out

JOIN_SECONDS = 1.0
"""How long closing waits for a thread; one that takes longer ends after its current item."""
SIGNAL_S = 1.0
"""How long a signal may wait for the training loop, at most."""
END = object()
_alive: weakref.WeakSet[Iteration] = weakref.WeakSet()


class ThreadLoader:
    """Takes the place of torch's DataLoader in a :class:`~penstock.WebLoader` on threads.

    It has those attributes of a DataLoader that trainers read.
    """

    streams = 1
    """One stream of samples for any number of threads, so that a state fits any number."""

    def __init__(
        self,
        dataset: StatefulDataset,
        *,
        num_workers: int,
        batch_size: int | None,
        collate_fn: Any,
        prefetch_factor: int,
        max_memory: int,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0.0,
        meter: StatsListener | None = None,
    ) -> None:
        self.dataset, self.num_workers, self.batch_size = dataset, num_workers, batch_size
        self.collate_fn, self.prefetch_factor = collate_fn, prefetch_factor
        self.max_memory = max_memory
        self.pin_memory, self.drop_last, self.timeout = pin_memory, drop_last, timeout
        self.meter = meter or StatsListener()
        self.store = Store(pinned=self.pins, most_bytes=max_memory // 2)
        self._iterator: Any = None  # exists in torch's DataLoader; unused here

    def __iter__(self) -> Iterator[StatefulItem]:
        if self.num_workers == 0 or self._in_the_loop():
            return self._iterate_stateful(*self.dataset.begin())
        torch_data()  # in this thread: two threads importing torch at once see half a module
        engine = self.make_engine()
        return Iteration(self, engine, self.iterate_stateful(*self.dataset.begin(engine)))

    def _in_the_loop(self) -> bool:
        """Return whether a stage must run in the training loop's thread, without other threads."""
        found = self.dataset.whole_process()
        if found:
            warnings.warn(
                f"{found[0]} seeds the generators of the whole process, which other threads use "
                "too: the pipeline runs in the training loop, without threads; rng=True runs on "
                "them",
                stacklevel=4,
            )
        return bool(found)

    @property
    def pins(self) -> bool:
        """True if batches are built in pinned memory: if requested and there is a GPU."""
        if not self.pin_memory or torch_data() is None:
            return False
        return bool(sys.modules["torch"].cuda.is_available())

    def make_engine(self) -> Engine:
        """Return the engine of one iteration, not started yet."""
        size, last = batches_out(self.dataset.pipeline.pipeline, self.batch_size)
        return Engine(
            self.num_workers,
            batch_size=size,
            budget_bytes=self.max_memory,
            blocks=Blocks(self.store, size) if size > 1 else None,
            last=last,
            meter=self.meter,
        )

    def iterate_stateful(self, root: Any, context: Context) -> Iterator[StatefulItem]:
        """Yield batches with the states of the lanes they came from."""
        use(self.store)  # a generator runs where it is consumed: in the pipeline's thread
        for stateful in self._iterate_stateful(root, context):
            yield stateful.pin_memory() if self.store.pinned else stateful
            del stateful  # so that a batch is freed as soon as the training loop drops it

    def _iterate_stateful(self, root: Any, context: Context) -> Iterator[StatefulItem]:
        collate, size = self.collate_fn, self.batch_size
        if not isinstance(collate, StatefulCollate) or size is None:
            for item in root:
                yield collate(
                    StatefulItem(
                        item, collect_lane_states(root, context), root.ticket, context.worker
                    )
                )
                del item
            return
        items: list[Any] = []
        tickets: list[Any] = []
        touched: set[int] = set()
        for item in root:
            items.append(item)
            tickets.append(root.ticket)
            touched.add(getattr(root, "current", 0))
            if len(items) == size:
                batch, items = collate.apply(items), []
                yield StatefulItem(
                    batch, collect_lane_states(root, context, touched), tickets, context.worker
                )
                tickets, touched = [], set()
        if items and not self.drop_last:
            batch = collate.apply(items)
            yield StatefulItem(
                batch, collect_lane_states(root, context, touched), tickets, context.worker
            )


class Iteration:
    """One pass over a loader on threads. Its threads end when it ends, is closed or is freed."""

    def __init__(self, loader: ThreadLoader, engine: Engine, items: Iterator[StatefulItem]) -> None:
        self._engine, self._process = engine, os.getpid()
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._credits: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._over = False
        self._meter, self._timeout = loader.meter, loader.timeout or None
        self._thread = threading.Thread(
            target=drive,
            args=(items, self._ready, self._credits, engine),
            kwargs={"most": loader.prefetch_factor},
            name="penstock-loader",
            daemon=True,
        )
        _alive.add(self)
        self._thread.start()

    def __iter__(self) -> Iterator[StatefulItem]:
        return self

    def __next__(self) -> StatefulItem:
        if self._over:
            raise StopIteration
        if self._process != os.getpid():
            raise PipelineError(
                "this iterator's threads belong to the parent process: call iter(loader) again "
                "in this one"
            )
        begin = perf_counter()
        try:
            entry = self._next_entry(begin)
        except queue.Empty:
            self.close()
            raise PipelineError(f"no batch arrived within timeout={self._timeout} s") from None
        if entry is END:
            self.close()
            raise StopIteration
        if isinstance(entry, Raised):
            self.close()
            raise entry.error
        stateful, size_bytes = entry
        self._credits.put(size_bytes)
        self._meter.gave(self._ready.qsize(), size_bytes, perf_counter() - begin)
        return stateful  # type: ignore[no-any-return]

    def _next_entry(self, begin: float) -> Any:
        """Wait for an entry, or raise queue.Empty at the end of the timeout.

        Python raises KeyboardInterrupt when a wait ends; a signal that arrives just before the wait
        begins does not end it. So no wait is longer than ``SIGNAL_S``.
        """
        end = begin + (self._timeout or math.inf)
        while True:
            left = end - perf_counter()
            try:
                return self._ready.get(timeout=max(min(left, SIGNAL_S), 0))
            except queue.Empty:
                if left <= SIGNAL_S:
                    raise

    def close(self) -> None:
        """End the threads and wait up to ``JOIN_SECONDS`` for each."""
        self._stop()
        if self._process == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)
            self._engine.join(JOIN_SECONDS)

    def _stop(self) -> None:
        # SimpleQueue is reentrant: this may run in the garbage collector.
        self._over = True
        if self._process == os.getpid():
            self._engine.stop()
            self._credits.put(None)

    def __del__(self) -> None:
        self._stop()


class Raised:
    """An exception that ended the pipeline's thread, to be raised in the training loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def drive(
    items: Iterator[StatefulItem],
    ready: queue.SimpleQueue[Any],
    credits: queue.SimpleQueue[int | None],
    engine: Engine,
    *,
    most: int,
) -> None:
    """Run the pipeline's thread: make batches while the queue and the memory limit allow."""
    waiting = 0
    meter = engine.meter
    last: Any = END
    try:
        begin = perf_counter()
        for stateful in items:
            size = held_bytes(stateful.item)
            meter.made(size, perf_counter() - begin)
            ready.put((stateful, size))
            del stateful
            waiting, engine.batch_bytes = waiting + 1, size
            engine.queued_bytes += size
            begin = perf_counter()
            while not engine.stopped and (waiting >= most or (waiting and engine.full)):
                taken = credits.get()
                if taken is None:
                    break
                waiting -= 1
                engine.queued_bytes -= taken
            meter.blocked(perf_counter() - begin)
            if engine.stopped:
                break
            begin = perf_counter()
    except Stopped:
        pass
    except BaseException as error:  # noqa: BLE001 - raised again in the training loop
        last = Raised(error)
    finally:
        close: Callable[[], None] | None = getattr(items, "close", None)
        if close is not None:
            close()
        engine.stop()
        ready.put(last)


def _end_all() -> None:
    """End all threads at exit: none may run while the interpreter tears down modules."""
    for iteration in list(_alive):
        iteration.close()


atexit.register(_end_all)
