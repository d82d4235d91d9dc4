"""A row of stages on threads: items are taken ahead, worked on by a pool, and given in order.

Stages that keep nothing (decode, map, to_tuple …) and stand behind each other are one piece of work
per item. The row takes items from its source ahead of time, hands them to the engine's threads
in chunks, and gives the results in the order of the source. Only the thread that iterates the row
touches the runs; a worker sees an item, its ticket, and the functions.

What was taken ahead must not show in a state. With the items the row notes what its source would
have saved behind each; where that is large, only now and then, and how many items came since:
those are read again and passed over. So a state does not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from itertools import zip_longest
from time import perf_counter, thread_time
from typing import Any, Protocol

from penstock.errors import Origin
from penstock.handlers import Failed
from penstock.stages.applying import (
    READING,
    AtOnce,
    Failure,
    applied,
    completed,
    nobody,
    timed,
)
from penstock.stages.run import ENDED, EachRun, Run, State, Ticket, add_origin

CHUNK_SECONDS = 4e-3
"""A chunk is about so much work: handing it over costs some fifty microseconds."""
ONE_IN = 8
"""Of items that are worked on one by one, every so many has its steps timed."""
CHUNK_ITEMS = 64
CHEAP_SECONDS = 40e-6
"""Items that cost less than this are not worth another thread."""
DEAR_SECONDS = 200e-6
CHEAP_RUN = 4080
"""After so many items that were worked on at once, it is measured whether they are still cheap."""
MEASURED = 16
TOGETHER_SECONDS, TOGETHER_ITEMS = 12e-3, 16
"""A chunk whose items go together is one call of native code: longer, for fewer calls."""
MANY_TICKETS = 32
NOTED_ITEMS, NOTED_LEAVES = 16, 256
"""The source's state is noted every so many items, and that much less often the larger it is."""


class Engine(Protocol):
    """What a row asks of the threads that work for it."""

    threads: int
    in_flight: int
    stopped: bool
    paces: dict[int, Pace]
    alone: bool
    """Whether there is one lane, which may go as far ahead as there is room."""
    look_ahead: int
    spare: int
    """How many more items there is memory for."""

    def submit(self, chunk: Chunk) -> None:
        """Have a thread work on the chunk."""

    def room(self) -> bool:
        """Whether more items may be taken ahead."""

    def rows(self, chunk: Chunk) -> Any:
        """What gives memory for the chunk's results, if anything does; asked on the thread."""

    def closed(self, row: Row) -> None:
        """The row gives nothing more."""

    def weigh(self, result: Any) -> None:
        """Learn from a result how much memory items take."""

    def note(self, row: Row, chunk: Chunk) -> None:
        """The chunk is done: for the accounts of memory and time."""


class Stopped(BaseException):
    """The loader was closed: whoever runs its stages must let go of everything."""


class Pace:
    """How long an item of a row takes; shared by the lanes that run the same stages."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.cheap = False
        self.asks = True
        """Whether the next few items should be worked on at once, to be measured."""
        self._last: deque[float] = deque(maxlen=MEASURED)
        self._doubts, self._patience = 0, 4

    def note(self, seconds: float) -> bool:
        """An item was worked on at once and took so long. True: it is worth another thread."""
        dear = seconds > DEAR_SECONDS
        if self.seconds is None and dear:
            self.seconds = seconds  # it may have imported something: one more is asked for
            return False
        self._last.append(seconds)
        self.seconds = sum(self._last) / len(self._last)
        # The least of several: others may have wanted the processor.
        full = len(self._last) == MEASURED
        self.cheap = full and sorted(self._last)[MEASURED // 4] < CHEAP_SECONDS
        self.asks = not (dear or full)
        return dear

    def note_chunk(self, items: int, seconds: float, at_work: float) -> None:
        """So many items took a thread so long, of which it was at work for some time.

        The rest it slept, or waited for the interpreter's lock. Where items may be cheap but for
        the lock, the next few are worked on at once to know; if they are not, not so soon again.
        """
        self._last.append(seconds / items)
        self.seconds = sum(self._last) / len(self._last)
        self._doubts += at_work < items * CHEAP_SECONDS
        if self._doubts >= self._patience:
            self._doubts, self._patience = 0, min(4 * self._patience, 4096)
            self.asks = True
            self._last.clear()

    def chunk(self, most: int, together: bool = False) -> int:
        """How many items make a chunk."""
        if self.seconds is None:
            return 1
        if together:
            return max(min(int(TOGETHER_SECONDS / self.seconds), TOGETHER_ITEMS, most), 1)
        return max(min(int(CHUNK_SECONDS / (self.seconds + 1e-9)), CHUNK_ITEMS, most), 1)


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
        self.results: list[Any] = []
        self.begin = self.seconds = self.at_work = 0.0
        self.read_seconds = self.waited_seconds = 0.0
        self.times: list[float] = []  # of the first item, now and then: how long each step took
        self.thread = 0
        self.done = False
        self.failed: Failed | None = None
        self.waiting = threading.Lock()
        self.waiting.acquire()

    def work(self, engine: Any) -> None:
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

    def _apply(self, engine: Any) -> None:
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


def leaves(state: State) -> int:
    """How many values a state has, roughly."""
    if isinstance(state, dict):
        return sum(map(leaves, state.values()))
    if isinstance(state, (list, tuple)):
        if state and isinstance(state[0], (int, float, str)):
            return len(state)
        if len(state) > MANY_TICKETS:  # a buffer's: all of a kind
            return len(state) * sum(map(leaves, state[:8])) // 8
        return sum(map(leaves, state))
    return 1


def runs_of(last: EachRun[Any]) -> list[EachRun[Any]]:
    """The runs of the row that ends there."""
    runs: list[EachRun[Any]] = [last]
    while isinstance(runs[0].source, EachRun) and runs[0].source.rows:
        runs.insert(0, runs[0].source)
    return runs


def steps_of(last: EachRun[Any]) -> tuple[tuple[tuple[Any, bool], ...], Run[Any]]:
    """The functions of a row, each with whether it takes the ticket too; and the row's source."""
    runs = runs_of(last)
    steps = (
        (run.at, True) if type(run).at is not EachRun.at else (run.stage.apply, False)
        for run in runs
    )
    return tuple(steps), runs[0].source


def _has_row(run: Run[Any]) -> bool:
    """Whether the items of a run have gone through a row before."""
    return (isinstance(run, EachRun) and run.rows) or any(map(_has_row, run.parents()))


def every(state: State) -> int:
    """After how many items the source's state is noted again."""
    return NOTED_ITEMS * (1 + leaves(state) // NOTED_LEAVES)


class Row:
    """Runs of :class:`~penstock.stages.stage.Each` behind each other, at work on an engine."""

    def __init__(self, last: EachRun[Any], engine: Any) -> None:
        runs = runs_of(last)
        self.runs, self.engine, self.source = runs, engine, runs[0].source
        self.number = engine.number()
        self.steps, _ = steps_of(last)
        self.reads = not _has_row(self.source)  # of several rows one tells what was read
        self.ended = any(run.ended for run in runs)
        self.pace: Pace = engine.paces.setdefault(id(last.stage), Pace())
        self.pending: deque[Chunk] = deque()
        self.allowed = 0  # with lanes: how many items may be taken ahead
        self.given = 0
        self._rest = 0  # of the chunk at hand: with lanes, others are taken in the middle of it
        self._over: BaseException | bool = self.ended
        self.ticket: Ticket = None  # of the item given last
        self._at_source = False  # the source stands where the item given last does
        self._unmeasured = 0  # cheap items that the meter has not heard of
        self._cheaply_now = False
        self._aside = 0  # cheap items that were ready, and went past the iteration
        self._aside_times: list[float] = []  # for reading them, and of each step
        self._replayed = bool(self.source.opaque())
        # What the source saved at some item, and how many items came since.
        behind, saved = runs[0]._behind, runs[0].state()
        self._state: State = saved["source"] if behind else saved
        self._since = behind
        self._every = every(self._state)
        self._mark: tuple[State, int] = (self._state, behind)
        self._reader = self.source.defer()
        self.at_once = AtOnce(runs, self._reader is not None)
        self._upstream: Iterator[Any] = runs[0].items()

    def ready(self, most: int) -> tuple[list[Any], list[Ticket]]:
        """Results that are at hand: while items are cheap, and worked on here one by one."""
        if not self._cheaply_now:
            return [], []
        clock = perf_counter
        begin = clock()
        items, tickets = self.source.ready(most)
        now = clock()
        self._aside_times[0] += now - begin
        for place, run in enumerate(self.runs, 1):
            if not items:
                break
            begin, items = now, run.stage.apply_ready(items)
            now = clock()
            self._aside_times[place] += now - begin
        return items, tickets[: len(items)]

    def passed(self, count: int) -> None:
        """So many of them were taken."""
        self._aside += count
        self.given += count
        # The state is noted behind the same items as if each had come by itself: of the places
        # passed over now, all in one shard, the last.
        beyond = (self._since + count) % self._every
        if count > beyond:
            self.source.passed(count - beyond)
            self._note()
            count = beyond
        if count:
            self.source.passed(count)
        self._since += count
        self.ticket = self.source.ticket

    # ── giving ──────────────────────────────────────────────────────────────────────────

    def items(self) -> Iterator[Any]:
        """The results, in the order of the source."""
        try:
            while not self.ended:
                if (self._cheap or self._asks) and not self.pending:
                    if self._over:
                        break
                    if self._cheap:
                        yield from self._cheaply()
                    if not (self._over or self.ended):
                        yield from self._at_once()
                    continue
                self._fill()
                if not self.pending:
                    self._end()
                    break
                yield from self._results(self.pending.popleft())
            if isinstance(self._over, BaseException) and not self.ended:
                raise self._over
        finally:
            self.close()

    @property
    def _cheap(self) -> bool:
        """Whether items are worked on here: not where a chunk of them is one call elsewhere."""
        return self.pace.cheap and not self.at_once.any

    @property
    def _asks(self) -> bool:
        """Whether the next few items are to be measured: once, where they go together."""
        pace = self.pace
        return pace.asks and (pace.seconds is None or not self.at_once.any)

    def _results(self, chunk: Chunk) -> Iterator[Any]:
        self._wait(chunk)
        try:
            for number, result in enumerate(chunk.results):
                self._rest = len(chunk.results) - number - 1
                chunk.results[number] = None  # whoever takes it holds it alone
                if result is None:
                    continue
                ticket = chunk.tickets[number]
                if type(result) is Failure:
                    if self._goes_on(result, ticket):
                        continue
                    return
                self.ticket, self._mark = ticket, chunk.marks[number]
                self.given += 1
                yield result
                del result
        finally:
            chunk.results = []

    def _wait(self, chunk: Chunk) -> None:
        begin = perf_counter()
        chunk.waiting.acquire()
        chunk.waited_seconds = perf_counter() - begin
        self.engine.in_flight -= len(chunk.tickets)
        if self.engine.stopped:
            raise Stopped
        if chunk.failed is not None:
            error = chunk.failed.take()
            add_origin(error, self.runs[-1].stage, self.source, None, chunk.tickets[0])
            raise error
        if chunk.results:
            self.pace.note_chunk(len(chunk.results), chunk.seconds, chunk.at_work)
        self.engine.note(self, chunk)

    def _goes_on(self, failure: Failure, ticket: Ticket) -> bool:
        """Whether the handler of the stage that failed says to leave the item out."""
        if failure.place == READING and self._reader is not None:
            return self._reads_on(failure, ticket)
        run, error = self.runs[failure.place], failure.error
        if not isinstance(error, Exception):
            add_origin(error, run.stage, self.source, failure.item, ticket)
            raise error
        if run.failed(error, run.stage.handler, failure.item, ticket):
            return True
        run.ended = self.ended = True
        return False

    def _reads_on(self, failure: Failure, ticket: Ticket) -> bool:
        """Whether the handler of the stage that reads says to leave the item out."""
        reader: Any = self._reader
        error: Any = failure.error
        # The reader is further on by now: the place is that of the ticket, not its own.
        add_origin(error, reader.stage, self.source, failure.item, ticket)
        known, origin = getattr(error, "origin", None), self.source.origin(ticket)
        if known is not None and known.key is None and origin is not None:
            error.locate(Origin(known.url, origin.key, known.offset))
        if reader.failed(error, reader.stage.handler):
            return True
        reader.ended = self.ended = True
        return False

    def _cheaply(self) -> Iterator[Any]:
        """A stretch of cheap items, worked on here as if there were no threads."""
        source, deferred, taken = self.source, self.at_once.deferred, 0
        steps = [run.apply if type(run) is not EachRun else run.stage.apply for run in self.runs]
        self._at_source = self._cheaply_now = True
        self._aside, aside, resumed = 0, 0, 0.0
        self._aside_times = [0.0] * (len(steps) + 1)
        for item in self._upstream:
            taken += 1
            if resumed:  # behind those that were ready: others may have been made so
                self._aside_times[0] += perf_counter() - resumed
                resumed = 0.0
            # What _count does, and below what applied does: such items are as cheap as a call.
            self._since += 1
            if self._since >= self._every:
                self._note()
            if deferred and type(item := completed(item)) is Failure:
                if self._goes_on(item, source.ticket):
                    continue
                return
            place = 0
            try:
                for step in steps:
                    item = step(item)
                    if item is None:
                        break
                    place += 1
            except BaseException as error:  # noqa: BLE001 - the handler decides
                if self._goes_on(Failure(error, place, item), source.ticket):
                    continue
                return
            if item is not None:
                self.given += 1
                self.ticket = source.ticket
                yield item
            if taken + self._aside >= CHEAP_RUN:
                break
            if self._aside != aside:
                aside, resumed = self._aside, perf_counter()
        else:
            self._over = True
        self._cheaply_now, self._unmeasured = False, taken
        read, *times = self._aside_times
        self.engine.meter.stretch(self, self._aside, self._aside, read, times)
        if self._over:
            self.engine.meter.stretch(self, taken, 0, 0.0, [])
            self._end()

    def _at_once(self) -> Iterator[Any]:
        """A few items, worked on here and measured, to know whether they are cheap.

        As soon as one is not, the pool has the rest.
        """
        steps, source, pace, meter = self.steps, self.source, self.pace, self.engine.meter
        resumed, read, number, enough = perf_counter(), 0.0, 0, False
        times: list[float] = []
        sums = [0.0] * len(steps)
        deferred = self.at_once.deferred
        self._at_source = True
        for number, item in enumerate(self._upstream, 1):
            self._count()
            begin = perf_counter()
            read += begin - resumed
            if deferred:
                item = completed(item)
            if type(item) is not Failure:
                if number == 1:
                    meter.weigh(item)
                item = timed(steps, item, source.ticket, times)
                sums = [a + b for a, b in zip_longest(sums, times, fillvalue=0.0)]
            enough = pace.note(perf_counter() - begin) or number == MEASURED
            self.engine.weigh(item)
            if type(item) is Failure:
                if not self._goes_on(item, source.ticket):
                    return
            elif item is not None:
                self.given += 1
                self.ticket = source.ticket
                yield item
            if enough:
                break
            resumed = perf_counter()
        meter.stretch(self, self._unmeasured + number, number, read, sums)
        self._unmeasured = 0
        if enough:
            self._leave_source()
        else:
            self._over = True
            self._end()

    def _end(self) -> None:
        """The source has ended: items it gave and that were dropped are behind us, too."""
        self._at_source = False
        self._mark = (self._state, self._since)

    def _leave_source(self) -> None:
        """From here on the source may run ahead of the item given last."""
        if self._at_source:
            self._mark = (self._state, self._since)
            self._at_source = False

    # ── taking ahead ────────────────────────────────────────────────────────────────────

    def prime(self, items: int) -> None:
        """Take so many more items ahead, as far as there is room: their turn comes soon."""
        if self._cheap or self._asks or self._over:
            return
        self.allowed += items
        if self._at_source:
            return  # in the middle of a stretch: the next items are worked on at once
        while self.allowed > 0 and not self._over and self.engine.room():
            self._take(min(self._size(), self.allowed))

    def _size(self) -> int:
        """How many items make a chunk: all threads must have their share of what is ahead."""
        share = int(self.engine.look_ahead) // (2 * int(self.engine.threads))
        return self.pace.chunk(max(min(share, self.engine.spare), 1), self.at_once.any)

    def _fill(self) -> None:
        engine, taken = self.engine, 0
        while not self._over:
            if self.pending and self._asks:
                return
            if self.pending and not (engine.room() and (engine.alone or self.allowed > 0)):
                return
            size = self._size()
            if not self.pending and not self.allowed:
                # More than the lane's turn was thought to need.
                self.allowed = size * engine.threads
            self._take(size)
            taken += 1
            # A slow source must not hold back what is ready; a fast one gets further ahead.
            if taken >= 2 and self.pending and self.pending[0].done:
                return

    def _take(self, count: int) -> None:
        """Have a chunk of the next items worked on."""
        source, engine = self.source, self.engine
        ahead = self.given + self._rest + sum(len(chunk.tickets) for chunk in self.pending)
        chunk = Chunk(self.steps, self.number, ahead, self.at_once)
        items, tickets, marks = chunk.items, chunk.tickets, chunk.marks
        begin = perf_counter()
        for _ in range(count):
            try:
                item = next(self._upstream)
            except StopIteration:
                self._over = True
                break
            except BaseException as error:  # noqa: BLE001 - raised when its turn comes
                self._over = error
                break
            items.append(item)
            tickets.append(source.ticket)
            self._count()
            marks.append((self._state, self._since))
        self.allowed = max(self.allowed - len(items), 0)
        if items:
            engine.in_flight += len(items)
            self.pending.append(chunk)
            chunk.read_seconds = perf_counter() - begin
            engine.meter.took(self, chunk)
            engine.submit(chunk)

    def _count(self) -> None:
        """The source gave an item."""
        self._since += 1
        if self._since >= self._every:
            self._note()

    def _note(self) -> None:
        """Note the source's state: items are counted from here."""
        self._since = 0
        if not self._replayed:
            self._state = self.source.saved()
            self._every = every(self._state)

    # ── state ───────────────────────────────────────────────────────────────────────────

    def saved(self) -> State:
        if self.ended:
            return ENDED
        state, since = (self._state, self._since) if self._at_source else self._mark
        return {"behind": since, "source": state} if since else state

    def close(self) -> None:
        """Let go of what is on its way; the state stays."""
        self._cheaply_now = False
        for chunk in self.pending:
            self.engine.in_flight -= len(chunk.tickets)
        self.pending.clear()
        self.engine.closed(self)
        self._leave_source()
        # The runs hold this row: without this both would wait for the garbage collector.
        self.runs, self.steps, self._upstream = [], (), iter(())
