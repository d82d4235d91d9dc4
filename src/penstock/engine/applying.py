"""The steps of a row, applied to items: to one after another, to a chunk, or to those at hand.

Nothing is raised here. What a stage raises on an item stands in the place of the item's result, and
is told where the item's turn comes.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

from penstock.handlers import Failed
from penstock.shards.lazy_bytes import whole_sample
from penstock.stages.run import Run, Ticket
from penstock.stages.segment import EachRun

READING = -1
"""The place of a failure that is none of the row's stages' but the source's."""


class Failure:
    """What a stage raised on an item, in place of the item's result."""

    __slots__ = ("error", "item", "place")

    def __init__(self, error: BaseException, place: int, item: Any) -> None:
        self.error, self.place, self.item = error, place, item


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


def has_row(run: Run[Any]) -> bool:
    """Whether the items of a run have gone through a row before."""
    return (isinstance(run, EachRun) and run.rows) or any(map(has_row, run.parents()))


def applied(steps: tuple[Any, ...], item: Any, ticket: Ticket) -> Any:
    """The result of all steps, None where one drops the item, or a :class:`Failure`."""
    place = 0
    try:
        for step, keyed in steps:
            item = step(item, ticket) if keyed else step(item)
            if item is None:
                return None
            place += 1
    except BaseException as error:  # noqa: BLE001 - told where the item's turn comes
        return Failure(error, place, item)
    return item


def timed(steps: tuple[Any, ...], item: Any, ticket: Ticket, times: list[float]) -> Any:
    """As :func:`applied`; ``times`` becomes how long each step took."""
    times[:] = []
    last = perf_counter()
    for place, step in enumerate(steps):
        item = applied((step,), item, ticket)
        now = perf_counter()
        times.append(now - last)
        last = now
        if item is None:
            return None
        if type(item) is Failure:
            item.place = place
            return item
    return item


def nobody(place: int) -> None:
    """Nobody wants to know whose memory is asked for next."""


def _turned(turn: Any, live: list[int], which: int) -> None:
    turn(live[which])


def completed(item: Any) -> Any:
    """A sample with the fields read that were left for later; or a :class:`Failure`."""
    try:
        return whole_sample(item)
    except Exception as error:  # noqa: BLE001 - told where the item's turn comes
        return Failure(error, READING, item)


def _only_moves(stage: Any) -> bool:
    """Whether a stage never looks at the values of fields; whoever writes ``apply`` says so."""
    for kind in type(stage).__mro__:
        if "apply" in vars(kind):
            return vars(kind).get("looks") is False
    return False


class AtOnce:
    """How the steps of a row take the items of a chunk in one go, as far as they can.

    ``deferred``: large fields come unread. They stay so over stages that only move them, up to one
    that takes many at once and reads them by itself; before any other the sample is made whole.
    """

    def __init__(self, runs: list[EachRun[Any]], deferred: bool) -> None:
        self.together = [run.together() for run in runs]
        self.any = any(one is not None for one in self.together)
        self.deferred = deferred
        moves = 0
        while moves < len(runs) and _only_moves(runs[moves].stage):
            moves += 1
        self.reads = moves < len(runs) and self.together[moves] is not None

    def apply(
        self,
        steps: tuple[Any, ...],
        results: list[Any],
        tickets: list[Ticket],
        turn: Any,
        times: list[float],
    ) -> None:
        """Put the results of all steps, as :func:`applied` gives each, in the items' places.

        ``times`` becomes how long each step took. Only ``results`` holds an error in the end: an
        error's traceback holds this call, and the two would wait for the garbage collector.
        """
        live = list(range(len(results)))
        if self.deferred and not self.reads:
            results[:] = [completed(item) for item in results]
            live = [n for n in live if type(results[n]) is not Failure]
        last = perf_counter()
        for place, (step, together) in enumerate(zip(steps, self.together)):
            if together is None:
                for number in live:
                    turn(number)
                    made = applied((step,), results[number], tickets[number])
                    if type(made) is Failure:
                        made.place = place
                    results[number] = made
            else:
                many = together(
                    [results[number] for number in live],
                    [tickets[number] for number in live],
                    partial(_turned, turn, live),
                )
                for number, made in zip(live, many):
                    if type(made) is Failed:
                        at = READING if made.reading else place
                        made = Failure(made.take(), at, results[number])
                    results[number] = made
                del many
            made = None
            live = [n for n in live if results[n] is not None and type(results[n]) is not Failure]
            now = perf_counter()
            times.append(now - last)
            last = now


class Aside:
    """Items that were ready: taken through the stages many at a time, past the iteration."""

    def __init__(self, runs: list[EachRun[Any]]) -> None:
        self._source, self._stages = runs[0].source, [run.stage for run in runs]
        self.taken = 0
        self.times = [0.0] * (1 + len(runs))
        """How long reading them took, and each step."""

    def told(self) -> tuple[int, list[float]]:
        """How many were taken, and their times, since this was asked last."""
        taken, times = self.taken, self.times
        self.taken, self.times = 0, [0.0] * len(times)
        return taken, times

    def results(self, most: int) -> tuple[list[Any], list[Ticket]]:
        """Up to so many of the next results, with their tickets."""
        clock, times = perf_counter, self.times
        begin = clock()
        items, tickets = self._source.ready(most)
        now = clock()
        times[0] += now - begin
        for place, stage in enumerate(self._stages, 1):
            if not items:
                break
            begin, items = now, stage.apply_ready(items)
            now = clock()
            times[place] += now - begin
        return items, tickets[: len(items)]
