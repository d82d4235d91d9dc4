"""The parts of an object that are fetched ahead of its reader, by threads, within a memory bound.

A thread lives only as long as there is something to fetch, so nothing is left behind by a file
that is read to its end, closed, or dropped. Threads know the window, never the file: a file that
nobody holds any more is closed by the interpreter, which ends them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from .fetching import Cancelled, Source
from .transport import Answer

WAKE_BYTES = 256 << 10
"""A waiting reader is woken when it has what it asked for, or so much."""


class _Part:
    """One range of the object on its way into memory."""

    def __init__(self, begin: int, buffer: bytearray, size: int, answer: Answer | None) -> None:
        self.begin, self.end = begin, begin + size
        self.buffer = buffer
        self.view = memoryview(buffer)[:size]
        self.filled = 0
        self.answer = answer
        self.error: BaseException | None = None
        self.stop = threading.Event()


class Window:
    """What lies ahead of the reader, from ``begin`` on. Read from one thread."""

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
        self._spare: list[bytearray] = []
        self._next = begin
        self._held = self._threads = 0
        self._wanted: tuple[_Part, int] | None = None
        self._closed = False
        if answer is not None:
            part = self._add(answer_bytes, answer)
            if part.end == self._size:  # a small object needs no thread
                self._todo.clear()
                self._fetch(part)
        self._extend()

    def holds(self, position: int) -> bool:
        """Whether the bytes there are here, or on their way."""
        begin = self._parts[0].begin if self._parts else self._next
        return begin <= position < self._next or position == begin == self._next

    def readinto(self, position: int, view: memoryview) -> int:
        """Bytes from ``position`` on, as many as are there; waits for the first of them."""
        while self._parts and self._parts[0].end <= position:
            self._pass()
        part = self._parts[0]
        at = position - part.begin
        least = min(at + min(len(view), WAKE_BYTES), part.end - part.begin)
        if part.filled < least:
            self._wait(part, at, least)
        count = min(part.filled - at, len(view))
        view[:count] = part.view[at : at + count]
        if position + count == part.end:
            self._pass()
        return count

    def close(self) -> None:
        """End the threads; they let go of their connections."""
        with self._changed:
            self._closed = True
            for part in self._parts:
                part.stop.set()
                if part.answer is not None:
                    part.answer.close()
            self._todo.clear()
            self._parts.clear()
            self._spare.clear()

    def _wait(self, part: _Part, at: int, least: int) -> None:
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
        part = self._parts.popleft()
        part.stop.set()
        self._held -= len(part.buffer)
        if len(part.buffer) == self._part_bytes and part.filled == len(part.view):
            self._spare.append(part.buffer)
        self._extend()

    def _add(self, size: int, answer: Answer | None = None) -> _Part:
        full = size == self._part_bytes
        buffer = self._spare.pop() if full and self._spare else bytearray(size)
        part = _Part(self._next, buffer, size, answer)
        self._next += size
        self._held += len(buffer)
        self._parts.append(part)
        self._todo.append(part)
        return part

    def _extend(self) -> None:
        """Ask for as much as the memory bound allows, with as many threads as are wanted."""
        with self._changed:
            while self._next < self._size:
                size = min(self._part_bytes, self._size - self._next)
                if self._held and self._held + size > self._ahead:
                    break
                self._add(size)
            starting = min(self._connections - self._threads, len(self._todo))
            self._threads += max(starting, 0)
        for _ in range(starting):
            threading.Thread(target=self._work, name="penstock-fetch", daemon=True).start()

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
            part.filled = count
            wanted = self._wanted
            if wanted is not None and wanted[0] is part and count >= wanted[1]:
                with self._changed:
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
    source: Source, spans: Sequence[tuple[int, int]], connections: int
) -> list[bytearray]:
    """The bytes of all spans (begin, end), several at a time; the first error is raised."""
    data = [bytearray(end - begin) for begin, end in spans]
    todo = deque(zip(spans, data))
    errors: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                (begin, _), buffer = todo.popleft()
            except IndexError:
                return
            try:
                source.fill(begin, memoryview(buffer), lambda _: None, stop=stop)
            except Cancelled:
                return
            except BaseException as exn:  # noqa: BLE001 - raised below
                errors.append(exn)
                stop.set()

    others = [
        threading.Thread(target=work, name="penstock-fetch", daemon=True)
        for _ in range(min(connections, len(spans)) - 1)
    ]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    return data
