"""A fork waits for the threads that are inside the TLS library.

The library has locks of its own. A thread that holds one at the moment of a fork does not exist in
the child, so nobody ever gives the lock back there, and the child's first secure connection would
wait for ever. Threads take such locks when they greet a server, when they first use the library,
and once more when they end, behind all Python code of theirs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

LONGEST_WAIT_S = 1.0
"""A fork goes on then: who waits for a server that long holds no lock."""
_TASKS = "/proc/self/task"
_MOST_KNOWN = 1000


class Gate:
    """Threads hold forks off while they are inside; a fork holds off those that want to enter.

    >>> gate = Gate()
    >>> with gate.held_off():
    ...     pass  # no fork happens here
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = self._forks = 0
        self._used_by: set[int | None] = set()

    @contextlib.contextmanager
    def held_off(self) -> Iterator[None]:
        """No fork in the block."""
        with self._changed:
            while self._forks:
                self._changed.wait()
            self._used_by.add(threading.current_thread().native_id)
            if len(self._used_by) > _MOST_KNOWN:
                self._used_by &= _tasks()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def shut(self) -> None:
        """Wait until nobody is inside, and until those who were and have ended are gone."""
        end = time.monotonic() + LONGEST_WAIT_S
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside, LONGEST_WAIT_S)
            alive = {thread.native_id for thread in threading.enumerate()}
            ended, self._used_by = self._used_by - alive, self._used_by & alive
        while ended & _tasks() and time.monotonic() < end:
            time.sleep(0.0001)

    def open(self) -> None:
        """Let them in again."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


def _tasks() -> set[int | None]:
    """The threads that the system knows in this process, where it tells."""
    try:
        return set(map(int, os.listdir(_TASKS)))
    except OSError:
        return set()


_gate = Gate()


def held_off() -> contextlib.AbstractContextManager[None]:
    """No fork of this process in the block."""
    return _gate.held_off()


def _in_child() -> None:
    global _gate
    _gate = Gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _gate.shut(),
        after_in_parent=lambda: _gate.open(),
        after_in_child=_in_child,
    )
