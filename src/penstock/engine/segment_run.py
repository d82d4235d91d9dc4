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

from collections import deque
from collections.abc import Iterator
from itertools import zip_longest
from time import perf_counter
from typing import Any

from penstock.engine.applying import (
    READING,
    Aside,
    AtOnce,
    Failure,
    completed,
    has_row,
    runs_of,
    steps_of,
    timed,
)
from penstock.engine.checkpoints import Noted
from penstock.engine.engine import Engine, Stopped
from penstock.engine.item_cost import Pace
from penstock.engine.job import Chunk
from penstock.errors import Origin
from penstock.stages.drop_guard import CHECKED_ITEMS, Dropping
from penstock.stages.run import ENDED, State, Ticket, add_origin
from penstock.stages.segment import EachRun

CHEAP_RUN = 4080
"""After so many items that were worked on at once, it is measured whether they are still cheap."""
TOLD_ITEMS = 128
"""After so many the meter hears of them: whoever asks it meanwhile is not to wait for the rest."""
LONG_READ_S = 0.05
"""A wait for the source that the meter hears of before the batch it was for is made."""


class Row:
    """Runs of :class:`~penstock.stages.stage.Each` behind each other, at work on an engine."""

    def __init__(self, last: EachRun[Any], engine: Engine) -> None:
        runs = runs_of(last)
        self.runs, self.engine, self.source = runs, engine, runs[0].source
        self.number = engine.number()
        self.steps, _ = steps_of(last)
        self.reads = not has_row(self.source)  # of several rows one tells what was read
        self.ended = any(run.ended for run in runs)
        self.pace = engine.paces.setdefault(id(last.stage), Pace())
        self.pending: deque[Chunk] = deque()
        self.allowed = 0  # with lanes: how many items may be taken ahead
        self.given = 0
        self._rest = 0  # of the chunk at hand: with lanes, others are taken in the middle of it
        self._over: BaseException | bool = self.ended
        # Of the item given last. Before the first and after the end it is the source's, as it
        # would be without threads: a generator may yield then.
        self.ticket: Ticket = self.source.ticket
        self._at_source = False  # the source stands where the item given last does
        self._aside: Aside | None = None  # while items are cheap
        self._noted = Noted(runs[0])
        if self.reads:  # a later row gets the items at another time
            engine.notes(self._noted)
        self._mark = self._noted.mark  # behind the item given last
        self._dropping = Dropping(*runs)
        self._dropped, self._kept = 0, 0  # since so many were given
        self._reader = self.source.defer()
        self.at_once = AtOnce(runs, self._reader is not None)
        self._upstream: Iterator[Any] = runs[0].items()

    def ready(self, most: int) -> tuple[list[Any], list[Ticket]]:
        """Results that are at hand: while items are cheap, and worked on here one by one."""
        return self._aside.results(most) if self._aside is not None else ([], [])

    def passed(self, count: int) -> None:
        """So many of them were taken."""
        if self._aside is not None:
            self._aside.taken += count
        self.given += count
        self._noted.passed(count)
        self.ticket = self.source.ticket

    # ── giving ──────────────────────────────────────────────────────────────────────────

    def items(self) -> Iterator[Any]:
        """The results, in the order of the source."""
        try:
            while not self.ended:
                if (self._cheap or self._asks) and not self.pending:
                    if self._over:
                        self._end()
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
                    self._drop(chunk)
                    continue
                ticket = chunk.tickets[number]
                if type(result) is Failure:
                    if self._goes_on(result, ticket):
                        self._drop(chunk)
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
        self.ticket = ticket
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
        source, noted, deferred = self.source, self._noted, self.at_once.deferred
        steps = [run.apply if type(run) is not EachRun else run.stage.apply for run in self.runs]
        self._at_source = True
        self._aside = aside = Aside(self.runs)
        clock, taken, told, read = perf_counter, 0, 0, 0.0
        resumed = clock()
        for item in self._upstream:
            taken += 1
            # What count does, and below what applied does: such items are as cheap as a call.
            noted.since += 1
            if noted.since >= noted.every:
                noted.note()
            if deferred and type(item := completed(item)) is Failure:
                if self._goes_on(item, source.ticket):
                    self._drop()
                    resumed = clock()
                    continue
                return
            read += clock() - resumed
            place = 0
            try:
                for step in steps:
                    item = step(item)
                    if item is None:
                        break
                    place += 1
            except BaseException as error:  # noqa: BLE001 - the handler decides
                if self._goes_on(Failure(error, place, item), source.ticket):
                    self._drop()
                    resumed = clock()
                    continue
                return
            if item is not None:
                self.given += 1
                self.ticket = source.ticket
                yield item
            else:
                self._drop()
            if taken + aside.taken >= TOLD_ITEMS:
                told += self._tell(taken, read, aside)
                taken, read = 0, 0.0
                if told >= CHEAP_RUN:
                    break
            resumed = clock()
        else:
            self._over = True
            read += clock() - resumed
        self._tell(taken, read, aside)
        self._aside = None
        if self._over:
            self._end()

    def _tell(self, taken: int, read: float, aside: Aside) -> int:
        """Let the meter hear of cheap items: of those taken here, and of those that were ready."""
        ready, (more, *times) = aside.told()
        self.engine.meter.stretch(self, taken + ready, read + more, ready, times)
        return taken + ready

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
            self._noted.count()
            begin = perf_counter()
            if deferred:
                item = completed(item)
            read += perf_counter() - resumed
            if read > LONG_READ_S:
                meter.stretch(self, 0, read, 0, [])
                read = 0.0
            if type(item) is not Failure:
                if number == 1:
                    meter.weigh(item)
                item = timed(steps, item, source.ticket, times)
                sums = [a + b for a, b in zip_longest(sums, times, fillvalue=0.0)]
            enough = pace.note(perf_counter() - begin) or number == pace.wanted
            self.engine.weigh(item)
            if type(item) is Failure:
                if not self._goes_on(item, source.ticket):
                    return
                self._drop()
            elif item is not None:
                self.given += 1
                self.ticket = source.ticket
                yield item
            else:
                self._drop()
            if enough:
                break
            resumed = perf_counter()
        meter.stretch(self, number, read, number, sums)
        if enough:
            self._leave_source()
        else:
            self._over = True
            self._end()

    def _drop(self, chunk: Chunk | None = None) -> None:
        """Count an item as dropped; of a chunk, which was taken when the source was not so far."""
        if not self._dropping.counts:
            return
        if self.given != self._kept:
            self._kept, self._dropped = self.given, 0
        self._dropped += 1
        if not self._dropped % CHECKED_ITEMS:
            passes = self.source.full_passes() if chunk is None else chunk.passes
            self._dropping.check(self._dropped, passes)

    def _end(self) -> None:
        """The source has ended: items it gave and that were dropped are behind us, too."""
        self.runs[-1].dropped = self._dropped if self.given == self._kept else 0
        self._at_source = False
        self._mark = self._noted.mark
        self.ticket = self.source.ticket

    def _leave_source(self) -> None:
        """From here on the source may run ahead of the item given last."""
        if self._at_source:
            self._mark = self._noted.mark
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
        share = self.engine.look_ahead // (2 * self.engine.threads)
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
        count_item = self._noted.count
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
            marks.append(count_item())
        self.allowed = max(self.allowed - len(items), 0)
        if items:
            engine.in_flight += len(items)
            self.pending.append(chunk)
            chunk.passes = source.full_passes()
            chunk.read_seconds = perf_counter() - begin
            engine.meter.took(self, chunk)
            engine.submit(chunk)

    # ── state ───────────────────────────────────────────────────────────────────────────

    def saved(self) -> State:
        if self.ended:
            return ENDED
        state, since = self._noted.mark if self._at_source else self._mark
        return {"behind": since, "source": state} if since else state

    def close(self) -> None:
        """Let go of what is on its way; the state stays."""
        self._aside = None
        for chunk in self.pending:
            self.engine.in_flight -= len(chunk.tickets)
        self.pending.clear()
        self.engine.closed(self)
        self._leave_source()
        # The runs hold this row: without this both would wait for the garbage collector.
        self.runs, self.steps, self._upstream = [], (), iter(())
