"""A loader on threads of this process: nothing is pickled, and batches wait ready in a queue.

One thread runs the pipeline: it reads, shuffles, batches and collates. The rows of stages that keep
nothing (decode, map …) go to a pool of threads (:mod:`penstock.engine.executor`). What is made goes
through a queue to the training loop, stamped with the state of its lanes:

    pipeline's thread ──► chunks ──► pool ──► results in order ──► batch ──► queue ──► loop

The two ends hold nothing in common but queues, so an iterator that is thrown away ends its threads.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from penstock.memory.batch_buffers import Blocks, Store, use
from penstock.context import Context
from penstock.errors import PipelineError
from penstock.loaders.to_tensors import torch_data
from penstock.engine.observer import Meter
from penstock.engine.executor import Engine, held_bytes
from penstock.loaders.worker_state import Stamp, StampedCollate, StampedDataset, lanes_of
from penstock.pipeline.plan import batches_out
from penstock.engine.engine import Stopped

JOIN_SECONDS = 1.0
"""How long closing waits for a thread; one that sleeps longer ends when its item is done."""
END = object()
_alive: weakref.WeakSet[Iteration] = weakref.WeakSet()


class ThreadLoader:
    """What :class:`~penstock.WebLoader` runs with ``engine="threads"``, as torch's DataLoader else.

    It has a DataLoader's attributes as far as others ask for them.
    """

    streams = 1
    """One stream of samples, whatever the number of threads: a state fits any."""

    def __init__(
        self,
        dataset: StampedDataset,
        *,
        num_workers: int,
        batch_size: int | None,
        collate_fn: Any,
        prefetch_factor: int,
        max_memory: int,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0.0,
        meter: Meter | None = None,
    ) -> None:
        self.dataset, self.num_workers, self.batch_size = dataset, num_workers, batch_size
        self.collate_fn, self.prefetch_factor = collate_fn, prefetch_factor
        self.max_memory = max_memory
        self.pin_memory, self.drop_last, self.timeout = pin_memory, drop_last, timeout
        self.meter = meter or Meter()
        self.store = Store(pinned=self.pins, most_bytes=max_memory // 2)
        self._iterator: Any = None  # as torch's has it; never used

    def __iter__(self) -> Iterator[Stamp]:
        if self.num_workers == 0 or self._in_the_loop():
            return self._stamps(*self.dataset.begin())
        torch_data()  # here: two threads that import torch at once find halves of it
        engine = self.make_engine()
        return Iteration(self, engine, self.stamps(*self.dataset.begin(engine)))

    def _in_the_loop(self) -> bool:
        """Whether a stage must run in the training loop's thread, with nothing at work beside."""
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
        """Whether batches are put into pinned memory: where asked for, and there is a GPU."""
        if not self.pin_memory or torch_data() is None:
            return False
        return bool(sys.modules["torch"].cuda.is_available())

    def make_engine(self) -> Engine:
        """The threads of one iteration, not started yet."""
        size, last = batches_out(self.dataset.pipeline.pipeline, self.batch_size)
        return Engine(
            self.num_workers,
            batch_size=size,
            budget_bytes=self.max_memory,
            blocks=Blocks(self.store, size) if size > 1 else None,
            last=last,
            meter=self.meter,
        )

    def stamps(self, root: Any, context: Context) -> Iterator[Stamp]:
        """The batches with the states of the lanes they came from."""
        use(self.store)  # generators run where they are asked: this is the pipeline's thread
        for stamp in self._stamps(root, context):
            yield stamp.pin_memory() if self.store.pinned else stamp
            del stamp  # a batch that the training loop lets go of is gone

    def _stamps(self, root: Any, context: Context) -> Iterator[Stamp]:
        collate, size = self.collate_fn, self.batch_size
        if not isinstance(collate, StampedCollate) or size is None:
            for item in root:
                yield collate(Stamp(item, lanes_of(root, context), root.ticket, context.worker))
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
                batch, items = collate.plain(items), []
                yield Stamp(batch, lanes_of(root, context, touched), tickets, context.worker)
                tickets, touched = [], set()
        if items and not self.drop_last:
            batch = collate.plain(items)
            yield Stamp(batch, lanes_of(root, context, touched), tickets, context.worker)


class Iteration:
    """One pass over a loader on threads. Thrown away, closed or ended, its threads end."""

    def __init__(self, loader: ThreadLoader, engine: Engine, stamps: Iterator[Stamp]) -> None:
        self._engine, self._process = engine, os.getpid()
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._credits: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._over = False
        self._meter, self._timeout = loader.meter, loader.timeout or None
        self._thread = threading.Thread(
            target=drive,
            args=(stamps, self._ready, self._credits, engine),
            kwargs={"most": loader.prefetch_factor},
            name="penstock-loader",
            daemon=True,
        )
        _alive.add(self)
        self._thread.start()

    def __iter__(self) -> Iterator[Stamp]:
        return self

    def __next__(self) -> Stamp:
        if self._over:
            raise StopIteration
        if self._process != os.getpid():
            raise PipelineError(
                "this iterator's threads belong to the process that was forked: begin a new "
                "iter(loader) in this one"
            )
        begin = perf_counter()
        try:
            entry = self._ready.get(timeout=self._timeout)
        except queue.Empty:
            self.close()
            raise PipelineError(f"no batch came within timeout={self._timeout} s") from None
        if entry is END:
            self.close()
            raise StopIteration
        if isinstance(entry, Raised):
            self.close()
            raise entry.error
        stamp, size_bytes = entry
        self._credits.put(size_bytes)
        self._meter.gave(self._ready.qsize(), size_bytes, perf_counter() - begin)
        return stamp  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the threads and wait for them, though not long for one that sleeps."""
        self._stop()
        if self._process == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)
            self._engine.join(JOIN_SECONDS)

    def _stop(self) -> None:
        # Queues without locks of Python's own: this may run in the garbage collector.
        self._over = True
        if self._process == os.getpid():
            self._engine.stop()
            self._credits.put(None)

    def __del__(self) -> None:
        self._stop()


class Raised:
    """What ended the pipeline's thread, on its way to the training loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def drive(
    stamps: Iterator[Stamp],
    ready: queue.SimpleQueue[Any],
    credits: queue.SimpleQueue[int | None],
    engine: Engine,
    *,
    most: int,
) -> None:
    """What the pipeline's thread does: makes batches as long as there is room for them."""
    waiting = 0
    meter = engine.meter
    last: Any = END
    try:
        begin = perf_counter()
        for stamp in stamps:
            size = held_bytes(stamp.item)
            meter.made(size, perf_counter() - begin)
            ready.put((stamp, size))
            del stamp
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
    except BaseException as error:  # noqa: BLE001 - raised where the loop asks for the next
        last = Raised(error)
    finally:
        close: Callable[[], None] | None = getattr(stamps, "close", None)
        if close is not None:
            close()
        engine.stop()
        ready.put(last)


def _end_all() -> None:
    """At the interpreter's exit: threads must not be at work while modules go away."""
    for iteration in list(_alive):
        iteration.close()


atexit.register(_end_all)
