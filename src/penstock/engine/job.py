"""A chunk: items of a row that a thread of the pool works on, and what came of them.

The row's thread fills it and waits for it; in between it is the worker's, who sees items, their
tickets and the functions, nothing else.
"""

from __future__ import annotations

import threading
from time import perf_counter, thread_time
from typing import Any

from penstock.engine.applying import AtOnce, Failure, applied, completed, nobody, timed
from penstock.engine.engine import Engine
from penstock.handlers import Failed
from penstock.stages.run import Ticket

ONE_IN = 8
"""Of items that are worked on one by one, every so many has its steps timed."""


class Chunk:
    """Items on their way through a row."""

    __slots__ = (
        "at_once",
        "at_work",
        "begin",
        "done",
        "failed",
        "first",
        "items",
        "marks",
        "passes",
        "read_seconds",
        "results",
        "row",
        "seconds",
        "steps",
        "thread",
        "tickets",
        "times",
        "waited_seconds",
        "waiting",
    )

    def __init__(self, steps: tuple[Any, ...], row: int, first: int, at_once: AtOnce) -> None:
        self.steps, self.row, self.first, self.at_once = steps, row, first, at_once
        self.items: list[Any] = []
        self.tickets: list[Ticket] = []
        self.marks: list[Any] = []
        self.passes: int | None = None  # of an endless source, after the last of the items
        self.results: list[Any] = []
        self.begin = self.seconds = self.at_work = 0.0
        self.read_seconds = self.waited_seconds = 0.0
        self.times: list[float] = []  # of the first item, now and then: how long each step took
        self.thread = 0
        self.done = False
        self.failed: Failed | None = None
        self.waiting = threading.Lock()
        self.waiting.acquire()

    def work(self, engine: Engine) -> None:
        """Apply the stages to the items; called by a thread of the pool, once.

        What a stage raises is a result. Anything else, such as memory that is not to be had for a
        batch, is kept for the thread that waits for the chunk: it must not wait for ever.
        """
        begin, begin_at_work = perf_counter(), thread_time()
        try:
            self._apply(engine)
            self.begin, self.thread = begin, threading.get_ident()
            self.seconds, self.at_work = perf_counter() - begin, thread_time() - begin_at_work
        except BaseException as error:  # noqa: BLE001 - told where the chunk's turn comes
            self.failed, self.results = Failed(error), []  # of which some may be half done
        finally:
            self.items = []
            self.finish()

    def _apply(self, engine: Engine) -> None:
        results, steps, tickets = self.results, self.steps, self.tickets
        rows = engine.rows(self)
        if self.at_once.any and not engine.stopped:
            turn = nobody if rows is None else rows.at
            results += self.items
            self.items = []
            self.at_once.apply(steps, results, tickets, turn, self.times)
        for number, item in enumerate(self.items):
            if engine.stopped:
                break
            if rows is not None:
                rows.at(number)
            if self.at_once.deferred and type(item := completed(item)) is Failure:
                results.append(item)
            elif number or self.first % ONE_IN:
                results.append(applied(steps, item, tickets[number]))
            else:
                results.append(timed(steps, item, tickets[0], self.times))

    def finish(self) -> None:
        """Let the row go on."""
        self.done = True
        self.waiting.release()
