"""Fetch parts of an object ahead of its reader, on threads, within a memory limit.

A thread lives only as long as there is something to fetch, so a file that is read to its end,
closed or dropped leaves no thread. Threads refer to the parts, never to the file: the interpreter
closes a file without references, which ends them.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import deque
from collections.abc import Sequence

from penstock.memory.scratch import private_memory
from penstock.storage.client.deadlines import Stop
from penstock.storage.client.response import Response
from penstock.storage.client.retrying import Cancelled, RemoteObject

SPARE_BYTES = 32 << 20
"""Memory that is kept for the next object."""
WAKE_BYTES = 256 << 10
"""A waiting reader is woken when what it requested has arrived, or this much."""


_spare: list[mmap.mmap] = []
"""Buffers for the next parts: memory that is already mapped is much cheaper than new memory."""


def _take_buffer(size: int) -> mmap.mmap:
    # Not a bytearray, which the reading thread would fill with zeros first.
    for number, buffer in enumerate(_spare):
        if len(buffer) == size:
            with contextlib.suppress(IndexError):  # another thread may have been faster
                found = _spare.pop(number)
                if len(found) == size:
                    return found
    return private_memory(size)


def _keep_buffer(buffer: mmap.mmap) -> None:
    _spare.append(buffer)
    while sum(map(len, _spare)) > SPARE_BYTES:
        with contextlib.suppress(IndexError):
            _spare.pop(0)


class _Part:
    """One range of the object that is being fetched."""

    def __init__(self, begin: int, size: int, response: Response | None) -> None:
        self.begin, self.end, self.size = begin, begin + size, size
        self.buffer = _take_buffer(size)
        self.view = memoryview(self.buffer)
        self.filled = 0
        self.response = response
        self.error: BaseException | None = None
        self.stop = Stop()

    def cancel(self) -> None:
        """Stop fetching. If the part is complete, its connection may already serve another."""
        if self.filled == self.size:
            self.stop.set()
        else:
            self.stop.cut()


def _closed_error() -> ValueError:
    return ValueError("the file was closed while it was read")


class ReadAhead:
    """Fetches the object from ``begin`` on, ahead of one reading thread.

    Before the first read, only the body of ``response`` is fetched, if there is one.
    """

    def __init__(
        self,
        source: RemoteObject,
        begin: int,
        *,
        ahead_bytes: int,
        part_bytes: int,
        connections: int,
        response: Response | None = None,
        response_bytes: int = 0,
    ) -> None:
        self._source, self._size = source, source.size or 0
        self._ahead, self._part_bytes, self._connections = ahead_bytes, part_bytes, connections
        self._changed = threading.Condition()
        self._parts: deque[_Part] = deque()  # in order; the first is the one being read
        self._todo: deque[_Part] = deque()
        self._begin = self._next = begin
        self._held = self._threads = 0
        self._most_threads = 1 if response is not None else connections
        self._wanted: tuple[_Part, int] | None = None
        self._closed = False
        if response is not None:
            self._add(response_bytes, response)

    def holds(self, position: int) -> bool:
        """Return whether the bytes at ``position`` are fetched, in flight, or requested next."""
        begin = self._parts[0].begin if self._parts else self._next
        return begin <= position < max(self._next, begin + 1)

    def read(self, position: int, size: int) -> bytes:
        """Return 1 to ``size`` bytes at ``position``, which must be before the object's end."""
        return bytes(self._wait_for(position, size))

    def readinto(self, position: int, view: memoryview) -> int:
        """Read at least one byte at ``position`` into the view; return the number of bytes."""
        data = self._wait_for(position, len(view))
        view[: len(data)] = data
        return len(data)

    def _wait_for(self, position: int, wanted: int) -> memoryview:
        """Return at least one byte at ``position``; valid until the next call."""
        while self._parts and self._first().end <= position:
            self._drop_first()
        self._extend()
        part = self._first()
        at = position - part.begin
        # The very first bytes are returned at once: they may be a whole sample.
        least = 1 if part.begin == self._begin else min(wanted, WAKE_BYTES)
        least = min(at + least, part.size)
        if part.filled < least:
            self._wait(part, at, least)
        return part.view[at : min(part.filled, at + wanted)]

    def _first(self) -> _Part:
        try:
            return self._parts[0]
        except IndexError:  # closed by another thread
            raise _closed_error() from None

    def start(self) -> None:
        """Start as many requests as the limits allow."""
        self._most_threads = self._connections
        self._extend()

    def _extend(self) -> None:
        """Add parts up to the memory limit, and start the threads that fetch them."""
        if self._next >= self._size and not self._todo:
            return
        with self._changed:
            if self._closed:
                raise _closed_error()
            while self._next < self._size:
                size = min(self._part_bytes, self._size - self._next)
                if self._held and self._held + size > self._ahead:
                    break
                self._add(size)
            if len(self._parts) == 1 and self._parts[0].end == self._size:
                return  # only one part is left: the reader fetches it itself
            for _ in range(min(self._most_threads - self._threads, len(self._todo))):
                try:
                    threading.Thread(target=self._work, name="penstock-fetch", daemon=True).start()
                except RuntimeError:  # the system allows no more threads: the reader does the work
                    return
                self._threads += 1
            # Twice as many at the next read: all at once, they would delay the first sample.
            self._most_threads = min(2 * self._most_threads, self._connections)

    def close(self) -> None:
        """End the threads and their connections. A thread that still reads gets an error."""
        with self._changed:
            self._closed = True
            for part in self._parts.copy():  # the reader may change the list meanwhile
                part.cancel()
                part.error = part.error or _closed_error()
                if part.response is not None:
                    part.response.close()
            self._todo.clear()
            self._parts.clear()
            self._changed.notify_all()

    def _wait(self, part: _Part, at: int, least: int) -> None:
        with self._changed:
            mine = part in self._todo and self._threads <= 0
            if mine:
                self._todo.remove(part)
        if mine:
            self._fetch(part)
        with self._changed:
            self._wanted = (part, least)
            try:
                while part.filled < least and part.error is None:
                    self._changed.wait()
            finally:
                self._wanted = None
        if part.filled <= at and part.error is not None:
            raise part.error

    def _drop_first(self) -> None:
        """Drop the first part, which has been read; its memory is free for the next one."""
        try:
            part = self._parts.popleft()
        except IndexError:  # closed by another thread
            raise _closed_error() from None
        part.cancel()
        self._held -= part.size
        if part.size == self._part_bytes and part.filled == part.size:  # no thread writes to it
            _keep_buffer(part.buffer)

    def _add(self, size: int, response: Response | None = None) -> None:
        part = _Part(self._next, size, response)
        self._next += size
        self._held += size
        self._parts.append(part)
        self._todo.append(part)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._todo or self._closed:
                    self._threads -= 1
                    return
                part = self._todo.popleft()
            self._fetch(part)

    def _fetch(self, part: _Part) -> None:
        def report(count: int) -> None:
            with self._changed:  # else the reader could begin to wait right after the check
                part.filled = count
                wanted = self._wanted
                if wanted is not None and wanted[0] is part and count >= wanted[1]:
                    self._changed.notify_all()

        response, part.response = part.response, None
        try:
            self._source.fill(part.begin, part.view, report, response=response, stop=part.stop)
        except Cancelled:
            pass
        except BaseException as exn:  # noqa: BLE001 - raised where the bytes are read
            part.error = exn
            with self._changed:
                self._changed.notify_all()


def fetch_all(
    source: RemoteObject, spans: Sequence[tuple[int, int]], *, part_bytes: int, connections: int
) -> list[bytearray]:
    """Fetch the bytes of all spans (begin, end), several at a time; raise the first error."""
    data = [bytearray(end - begin) for begin, end in spans]
    todo: deque[tuple[int, memoryview]] = deque()
    for (begin, end), buffer in zip(spans, data):
        for at in range(0, end - begin, part_bytes):
            todo.append((begin + at, memoryview(buffer)[at : at + part_bytes]))
    errors: list[BaseException] = []
    stop = Stop()

    def work() -> None:
        state = source.patience.start()
        while not stop.is_set():
            try:
                begin, view = todo.popleft()
            except IndexError:
                return
            try:
                source.fill(begin, view, lambda _: None, stop=stop, state=state)
                state.record_success()
            except Cancelled:
                return
            except BaseException as exn:  # noqa: BLE001 - raised below
                errors.append(exn)
                stop.set()

    others = [
        threading.Thread(target=work, name="penstock-fetch", daemon=True)
        for _ in range(min(connections, len(todo)) - 1)
    ]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    return data
