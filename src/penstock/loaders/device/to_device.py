"""Copies batches to the device before the trainer requests them: the stage after a loader.

A thread takes batches from the loader and starts their copies
(:mod:`penstock.loaders.device.device_copy`) while the device works on the previous batch.
Prefetched batches do not count: the state is that of the last batch that the trainer received.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError
from penstock.loaders.device.device_copy import DeviceIdle, Mover, check_dtype
from penstock.stages.run import Run, State, Ticket
from penstock.stages.stage import Stage

AHEAD = 2
JOIN_SECONDS = 5.0
"""How long closing waits for the thread, which ends after the batch in progress."""


class to_device(Stage[Any, Any]):
    """Copies batches to a device ahead of time and converts images there.

    Tensors and numpy arrays of a batch (a tuple, list or dict of them) become tensors on
    ``device``; other values are unchanged. Images (uint8 with four dimensions) are scaled to 0…1,
    normalised by ``mean`` and ``std`` (one number, or one per colour) and converted to ``dtype``,
    with ``channels_last=True`` also to that memory format. Pictures that a transform with
    ``decode_on="cuda"`` left undecoded are decoded on the device. Up to ``ahead`` batches are
    copied in advance.

    >>> import numpy as np
    >>> batch = (np.full((1, 3, 2, 2), 255, "uint8"), np.array([7]))
    >>> images, labels = next(to_device("cpu", mean=0.5, std=0.25)([batch]))
    >>> images[0, 0, 0].tolist(), labels.tolist()
    ([2.0, 2.0], [7])
    """

    keeps_count = True

    def __init__(
        self,
        device: Any = "cuda",
        *,
        dtype: Any = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        channels_last: bool = False,
        ahead: int = AHEAD,
    ) -> None:
        if ahead < 1:
            raise PipelineError(f"to_device: ahead must be at least 1 batch, not {ahead}")
        check_dtype(dtype)
        self.device, self.dtype, self.mean, self.std = device, dtype, mean, std
        self.channels_last, self.ahead = channels_last, ahead

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return DeviceRun(self, source, context)

    def make_mover(self) -> Mover:
        """Return the object that copies batches; called when iteration starts, on the device."""
        return Mover(
            self.device,
            dtype=self.dtype,
            mean=self.mean,
            std=self.std,
            channels_last=self.channels_last,
        )


class DeviceRun(Run[Any]):
    """A running :class:`to_device`: keeps the state and the ticket of the last batch."""

    source: Run[Any]
    resumable = True
    state_survives_errors = True
    _begun = False
    _saved: State = None
    _ticket: Ticket = None

    def __init__(self, stage: to_device, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        self.one_each = source.one_each
        self.waits = DeviceIdle()

    def __iter__(self) -> Iterator[Any]:
        mover = self.stage.make_mover()
        self._saved, self._ticket, self._begun = self.source.saved(), None, True
        ahead = Prefetch(self._send_batches(mover), self.stage.ahead)
        try:
            stream = iter(ahead)
            asked, host_asked = None, 0.0  # the first batch is a start, not a wait
            while (entry := next(stream, None)) is not None:
                batch = mover.receive(entry[0])
                _, self._saved, self._ticket = entry
                if asked is None:
                    self.waits.zero = mover.zero()
                else:
                    self.waits.between(asked, mover.mark(), host_asked)
                del entry
                yield batch
                del batch
                asked, host_asked = mover.mark(), perf_counter()
        finally:
            ahead.close()

    def _send_batches(self, mover: Mover) -> Iterator[tuple[Any, State, Ticket]]:
        """Yield batches whose copies were started, with the source's state after each."""
        source = self.source
        try:
            for item in () if self.ended else source:
                try:
                    moved = mover.send(item)
                except PenstockError as error:
                    self._locate(error)
                    raise
                del item  # a loader may reuse the memory as soon as nothing refers to it
                yield moved, source.saved(), source.ticket
        finally:
            mover.close()

    def _locate(self, error: PenstockError) -> None:
        """Add the origin of the sample that failed to an error."""
        if error.place is not None and error.origin is None and self.source.one_each:
            origins = self.source.origins(self.source.ticket)
            if error.place < len(origins):
                error.locate(origins[error.place])

    @property
    def ticket(self) -> Ticket:
        return self._ticket if self._begun else self.source.ticket

    def state(self) -> State:
        return self._saved if self._begun else self.source.saved()

    def restore(self, state: State) -> None:
        self.source.take(state)

    def fetch(self, ticket: Ticket) -> Any:
        mover = self.stage.make_mover()
        try:
            return mover.receive(mover.send(self.source.fetch(ticket)))
        finally:
            mover.close()

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.source.origins(ticket)

    def left(self) -> int | None:
        return None if self._begun else self.source.left()

    def skip_ahead(self, count: int) -> bool:
        return not self._begun and self.source.skip_ahead(count)


class Prefetch:
    """Iterates over items that a thread takes in advance, at most ``depth`` of them.

    An exception of the iterator is raised in place of its item. :meth:`close` ends the thread,
    which closes the iterator; it waits up to ``JOIN_SECONDS`` for the item in progress.

    >>> list(Prefetch(iter("abc"), 2))
    ['a', 'b', 'c']
    """

    def __init__(self, items: Iterator[Any], depth: int) -> None:
        self._ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._stop = False
        self._thread = threading.Thread(
            target=self._take, args=(items,), name="penstock-device", daemon=True
        )
        self._thread.start()

    def _take(self, items: Iterator[Any]) -> None:
        try:
            while True:
                self._room.acquire()
                if self._stop:
                    break
                self._ready.put(("item", next(items)))
        except StopIteration:
            self._ready.put(("end", None))
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer's thread
            self._ready.put(("error", error))
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def __iter__(self) -> Iterator[Any]:
        while True:
            kind, value = self._ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            self._room.release()
            yield value
            del value  # so that a batch is freed as soon as the trainer drops it

    def close(self) -> None:
        """End the thread and drop the items that wait."""
        self._stop = True
        self._room.release()
        self._thread.join(JOIN_SECONDS)  # a transform may never return, and Ctrl-C must
        while not self._ready.empty():
            self._ready.get()
