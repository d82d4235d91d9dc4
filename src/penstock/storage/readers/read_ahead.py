"""The parts of an object that are fetched ahead of its reader, by threads, within a memory bound.

A thread lives only as long as there is something to fetch, so nothing is left behind by a file
that is read to its end, closed, or dropped. Threads know the window, never the file: a file that
nobody holds any more is closed by the interpreter, which ends them.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import deque
from collections.abc import Sequence

from penstock.storage.client.response import Answer
from penstock.storage.client.deadlines import Stop
from penstock.storage.client.retrying import Cancelled, Source
from penstock.memory.memory import private_memory

SPARE_BYTES = 32 << 20
"""So much memory is kept for the next object."""
WAKE_BYTES = 256 << 10
"""A waiting reader is woken when it has what it asked for, or so much."""


_spare: list[mmap.mmap] = []
"""Buffers for the next parts: memory that is in place already comes much cheaper than new."""


def _buffer(size: int) -> mmap.mmap:
    # Not a bytearray: that would be filled with zeros, by the thread that wants to read.
    for number, buffer in enumerate(_spare):
        if len(buffer) == size:
            with contextlib.suppress(IndexError):  # another thread may have been quicker
                found = _spare.pop(number)
                if len(found) == size:
                    return found
    return private_memory(size)


def _keep(buffer: mmap.mmap) -> None:
    _spare.append(buffer)
    while sum(map(len, _spare)) > SPARE_BYTES:
        with contextlib.suppress(IndexError):
            _spare.pop(0)


class _Part:
    """One range of the object on its way into memory."""

    def __init__(self, begin: int, size: int, answer: Answer | None) -> None:
        self.begin, self.end, self.size = begin, begin + size, size
        self.buffer = _buffer(size)
        self.view = memoryview(self.buffer)
        self.filled = 0
        self.answer = answer
        self.error: BaseException | None = None
        self.stop = Stop()

    def leave(self) -> None:
        """Nobody wants it any more. A whole one's connection may serve another part by now."""
        if self.filled == self.size:
            self.stop.set()
        else:
            self.stop.cut()


def _closed() -> ValueError:
    return ValueError("the file was closed while it was read")


class Window:
    """What lies ahead of the reader, from ``begin`` on. Read from one thread.

    Nothing but the body of ``answer``, if there is one, is fetched before the first read.
    """

    def __init__(
        self,
        source: Source,
        begin: int,
        *,
        ahead_bytes: int,
        part_bytes: int,
        connections: int,
        answer: Answer | None = None,
        answer_bytes: int = 0,
    ) -> None:
        self._source, self._size = source, source.size or 0
        self._ahead, self._part_bytes, self._connections = ahead_bytes, part_bytes, connections
        self._changed = threading.Condition()
        self._parts: deque[_Part] = deque()  # in order; the first is the one being read
        self._todo: deque[_Part] = deque()
        self._begin = self._next = begin
        self._held = self._threads = 0
        self._most_threads = 1 if answer is not None else connections
        self._wanted: tuple[_Part, int] | None = None
        self._closed = False
        if answer is not None:
            self._add(answer_bytes, answer)

    def holds(self, position: int) -> bool:
        """Whether the bytes there are here, on their way, or the next to be asked for."""
        begin = self._parts[0].begin if self._parts else self._next
        return begin <= position < max(self._next, begin + 1)

    def read(self, position: int, size: int) -> bytes:
        """1 to ``size`` bytes at ``position``, which the object has."""
        return bytes(self.ready(position, size))

    def readinto(self, position: int, view: memoryview) -> int:
        """The same, into the reader's memory."""
        data = self.ready(position, len(view))
        view[: len(data)] = data
        return len(data)

    def ready(self, position: int, wanted: int) -> memoryview:
        """Bytes from ``position`` on, at least one; valid until the next call."""
        while self._parts and self._first().end <= position:
            self._pass()
        self._extend()
        part = self._first()
        at = position - part.begin
        # The very first bytes are handed on at once: they may be a whole sample.
        least = 1 if part.begin == self._begin else min(wanted, WAKE_BYTES)
        least = min(at + least, part.size)
        if part.filled < least:
            self._wait(part, at, least)
        return part.view[at : min(part.filled, at + wanted)]

    def _first(self) -> _Part:
        try:
            return self._parts[0]
        except IndexError:  # by another thread, just now
            raise _closed() from None

    def start(self) -> None:
        """Have as much under way as may be."""
        self._most_threads = self._connections
        self._extend()

    def _extend(self) -> None:
        """Ask for as much as the memory bound allows, with as many threads as are wanted."""
        if self._next >= self._size and not self._todo:
            return
        with self._changed:
            if self._closed:
                raise _closed()
            while self._next < self._size:
                size = min(self._part_bytes, self._size - self._next)
                if self._held and self._held + size > self._ahead:
                    break
                self._add(size)
            if len(self._parts) == 1 and self._parts[0].end == self._size:
                return  # all that is wanted is one part: the reader fetches it itself
            for _ in range(min(self._most_threads - self._threads, len(self._todo))):
                try:
                    threading.Thread(target=self._work, name="penstock-fetch", daemon=True).start()
                except RuntimeError:  # no more threads to be had: the reader does the work
                    return
                self._threads += 1
            # Twice as many at the next read: all at once, they would hold up the first sample.
            self._most_threads = min(2 * self._most_threads, self._connections)

    def close(self) -> None:
        """End the threads; they let go of their connections. Who still reads gets an error."""
        with self._changed:
            self._closed = True
            for part in self._parts.copy():  # its reader may go on meanwhile
                part.leave()
                part.error = part.error or _closed()
                if part.answer is not None:
                    part.answer.close()
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

    def _pass(self) -> None:
        """Leave the first part behind: its memory is free for the next one."""
        try:
            part = self._parts.popleft()
        except IndexError:  # by another thread, just now
            raise _closed() from None
        part.leave()
        self._held -= part.size
        if part.size == self._part_bytes and part.filled == part.size:  # nobody writes to it now
            _keep(part.buffer)

    def _add(self, size: int, answer: Answer | None = None) -> None:
        part = _Part(self._next, size, answer)
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
        def came(count: int) -> None:
            with self._changed:  # else the reader could begin to wait just behind the question
                part.filled = count
                wanted = self._wanted
                if wanted is not None and wanted[0] is part and count >= wanted[1]:
                    self._changed.notify_all()

        answer, part.answer = part.answer, None
        try:
            self._source.fill(part.begin, part.view, came, answer=answer, stop=part.stop)
        except Cancelled:
            pass
        except BaseException as exn:  # noqa: BLE001 - raised where the bytes are asked for
            part.error = exn
            with self._changed:
                self._changed.notify_all()


def fetch_all(
    source: Source, spans: Sequence[tuple[int, int]], *, part_bytes: int, connections: int
) -> list[bytearray]:
    """The bytes of all spans (begin, end), several at a time; the first error is raised."""
    data = [bytearray(end - begin) for begin, end in spans]
    todo: deque[tuple[int, memoryview]] = deque()
    for (begin, end), buffer in zip(spans, data):
        for at in range(0, end - begin, part_bytes):
            todo.append((begin + at, memoryview(buffer)[at : at + part_bytes]))
    errors: list[BaseException] = []
    stop = Stop()

    def work() -> None:
        while not stop.is_set():
            try:
                begin, view = todo.popleft()
            except IndexError:
                return
            try:
                source.fill(begin, view, lambda _: None, stop=stop)
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
