"""Batches that are on the device when the trainer asks for them: the stage behind a loader.

A thread takes batches from the loader and starts their way (:mod:`penstock.loaders.device.device_copy`) while
the device works on the one before. What it has taken ahead does not show: the state is that of
the batch which the trainer was given last.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError
from penstock.loaders.device.device_copy import Mover, Waits, check_dtype
from penstock.stages.run import Run, State, Ticket
from penstock.stages.stage import Stage

AHEAD = 2
JOIN_SECONDS = 5.0
"""How long closing waits for the thread, which ends behind the batch that it waits for."""


class to_device(Stage[Any, Any]):
    """Copies batches to a device ahead of time and converts images there.

    Tensors and numpy arrays of a batch (a tuple, list or dict of them) become tensors on
    ``device``; other values pass. Images, that is uint8 of four dimensions, become
    ``dtype``, from 0 to 1, minus ``mean``, divided by ``std`` (one number, or one per colour), and
    with ``channels_last=True`` lie so in memory. Pictures that a transform with
    ``decode_on="cuda"`` left undecoded are decoded on the device. ``ahead`` batches are on their
    way or ready at any time.

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
            raise PipelineError(f"to_device: ahead is a number of batches from 1 on, not {ahead}")
        check_dtype(dtype)
        self.device, self.dtype, self.mean, self.std = device, dtype, mean, std
        self.channels_last, self.ahead = channels_last, ahead

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return DeviceRun(self, source, context)

    def mover(self) -> Mover:
        """What sends the batches; made where iteration begins, since it needs the device."""
        return Mover(
            self.device,
            dtype=self.dtype,
            mean=self.mean,
            std=self.std,
            channels_last=self.channels_last,
        )


class DeviceRun(Run[Any]):
    """:class:`to_device` at work: keeps the state and the ticket that came with the last batch."""

    source: Run[Any]
    resumable = True
    _begun = False
    _saved: State = None
    _ticket: Ticket = None

    def __init__(self, stage: to_device, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        self.one_each = source.one_each
        self.waits = Waits()

    def __iter__(self) -> Iterator[Any]:
        mover = self.stage.mover()
        self._saved, self._ticket, self._begun = self.source.saved(), None, True
        ahead = Ahead(self._sent(mover), self.stage.ahead)
        try:
            stream = iter(ahead)
            asked, host_asked = None, 0.0  # the first batch is a start, not a wait
            while (entry := next(stream, None)) is not None:
                moved, self._saved, self._ticket = entry
                batch = mover.receive(moved)
                if asked is None:
                    self.waits.zero = mover.zero()
                else:
                    self.waits.between(asked, mover.mark(), host_asked)
                del moved, entry
                yield batch
                del batch
                asked, host_asked = mover.mark(), perf_counter()
        finally:
            ahead.close()

    def _sent(self, mover: Mover) -> Iterator[tuple[Any, State, Ticket]]:
        """Batches on their way, each with what the source would save behind it."""
        source = self.source
        try:
            for item in () if self.ended else source:
                try:
                    moved = mover.send(item)
                except PenstockError as error:
                    self._locate(error)
                    raise
                del item  # a loader may use the memory again as soon as nobody holds it
                yield moved, source.saved(), source.ticket
        finally:
            mover.close()

    def _locate(self, error: PenstockError) -> None:
        """Say which sample of the batch it was that failed on its way."""
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
        mover = self.stage.mover()
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


class Ahead:
    """Items of an iterator, taken by a thread as long as fewer than ``depth`` wait.

    What the iterator raises is raised where the item would have come. :meth:`close` ends the
    thread, which closes the iterator itself; it waits for the item that is being made, though not
    for ever.

    >>> list(Ahead(iter("abc"), 2))
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
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks
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
            del value  # a batch that the trainer lets go of is gone

    def close(self) -> None:
        """End the thread, and let go of what waits."""
        self._stop = True
        self._room.release()
        self._thread.join(JOIN_SECONDS)  # a transform may never return, and Ctrl-C must
        while not self._ready.empty():
            self._ready.get()
