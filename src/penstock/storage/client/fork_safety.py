"""Delay a fork while threads are inside the TLS library.

The library has internal locks. A thread that holds one during a fork does not exist in the child,
so the lock is never released there, and the child would wait forever at its first secure connection
or its first signature (HMAC). Threads take such locks during the TLS handshake, when they first use
the library, and when they end, after all their Python code.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

LONGEST_WAIT_S = 1.0
"""A fork proceeds after this time: a thread that waits so long for a server holds no lock."""
_TASKS = "/proc/self/task"
_MOST_KNOWN = 1000


class Gate:
    """Threads that are inside delay forks; a fork delays threads that try to enter.

    >>> gate = Gate()
    >>> with gate.block_forks():
    ...     pass  # no fork happens here
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = self._forks = 0
        self._used_by: set[int | None] = set()

    @contextlib.contextmanager
    def block_forks(self) -> Iterator[None]:
        """Delay forks until the end of a ``with`` block."""
        self.note_thread()
        with self._changed:
            while self._forks:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def note_thread(self) -> None:
        """Delay the forks that come when this thread ends: it has used the library."""
        number = threading.current_thread().native_id
        if number not in self._used_by:
            with self._changed:
                self._used_by.add(number)
                if len(self._used_by) > _MOST_KNOWN:
                    self._used_by &= _list_threads()

    def shut(self) -> None:
        """Wait until no thread is inside, and until those that were inside and ended are gone."""
        end = time.monotonic() + LONGEST_WAIT_S
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside, LONGEST_WAIT_S)
            alive = {thread.native_id for thread in threading.enumerate()}
            ended, self._used_by = self._used_by - alive, self._used_by & alive
        while ended & _list_threads() and time.monotonic() < end:
            time.sleep(0.0001)

    def open(self) -> None:
        """Let threads enter again."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


def _list_threads() -> set[int | None]:
    """Return the ids of this process's threads as the system reports them, if it does."""
    try:
        return set(map(int, os.listdir(_TASKS)))
    except OSError:
        return set()


_gate = Gate()


def block_forks() -> contextlib.AbstractContextManager[None]:
    """Delay forks of this process until the end of a ``with`` block."""
    return _gate.block_forks()


def note_thread() -> None:
    """Delay forks of this process that come when this thread ends: it has used the library."""
    _gate.note_thread()


def _reset_in_child() -> None:
    global _gate
    _gate = Gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _gate.shut(),
        after_in_parent=lambda: _gate.open(),
        after_in_child=_reset_in_child,
    )
