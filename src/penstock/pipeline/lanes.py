"""A pipeline at work: its lanes, in turn, cut or restarted to the epoch's length.

The data of an epoch is dealt out to *lanes*, and every lane runs all stages by itself. A rank
owns whole lanes, a worker of it too; what a lane gives does not depend on how many there are.
So the lanes of a job on 4 ranks can go on, each where it stands, on 2.

    rank 0 ── worker 0 ── lanes 0, 4, 8 …   ┐
           └─ worker 1 ── lanes 2, 6, 10 …  ├ taken in turn: 0, 1, 2, 3, 4 …
    rank 1 ── worker 0 ── lanes 1, 5, 9 …   │
           └─ worker 1 ── lanes 3, 7, 11 …  ┘

Where the user asks for no lanes, each worker of each rank is one.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from penstock.context import Context
from penstock.errors import Origin, PipelineError, StateError
from penstock.stages.segment import EachRun
from penstock.stages.run import Run, State, Ticket

T = TypeVar("T")


def owned(lanes: int, context: Context) -> list[int]:
    """The lanes of this rank and worker.

    >>> owned(12, Context(rank=1, world_size=2, worker=0, num_workers=3))
    [1, 7]
    """
    return list(range(context.rank, lanes, context.world_size))[
        context.worker :: context.num_workers
    ]


class Lane:
    """One lane at work: its run, and how many items it gave."""

    def __init__(self, run: Run[Any]) -> None:
        self.run = run
        self.given = 0
        self.done = False
        self.replayed = bool(run.opaque())
        self.row = last_row(run)
        self._stream: Iterator[Any] | None = None
        self._behind = 0  # items given since the state that we go on from was taken

    def stream(self) -> Iterator[Any]:
        if self._stream is None:
            # What cannot be restored is done again, up to where it was.
            skip = self.given if self.replayed else self._behind
            self._stream = islice(iter(self.run), skip, None) if skip else iter(self.run)
        return self._stream

    def close(self) -> None:
        """Let go of what is open; what the run keeps stays."""
        self._stream = None
        if self.row is not None:
            self.row.close()

    def prime(self, items: int) -> None:
        """Have threads work on the next items: the lane's turn comes soon."""
        if self.row is not None and not self.done:
            self.row.prime(items)

    def state(self) -> State:
        if self.done:
            return {"given": self.given, "done": True}
        if self.replayed or self.given == 0:
            return {"given": self.given}
        state = {"given": self.given, "run": self.run.saved()}
        if self._stream is None and self._behind:
            state["behind"] = self._behind
        return state

    def restore(self, state: State) -> None:
        self.given, self.done = state["given"], state.get("done", False)
        if not self.done and self.given and not self.replayed:
            self._behind = state.get("behind", 0)
            if "run" in state:
                self.run.take(state["run"])

    def pass_over(self, count: int) -> None:
        """Leave out the next ``count`` items, unread where that can be."""
        if count and not self.done:
            if not (self._stream is None and not self.replayed and self.run.skip_ahead(count)):
                for _ in islice(self.stream(), count):
                    pass
            self.given += count


def last_row(run: Run[Any]) -> EachRun[Any] | None:
    """The last stages that an engine works on ahead of time, if there is one."""
    if run.context.engine is None:
        return None
    return next((r for r in run.chain() if isinstance(r, EachRun) and r.rows), None)


class LanesRun(Run[T]):
    """The lanes of this process at work. A ticket is (which lane, the item's ticket)."""

    resumable = True

    def __init__(
        self,
        pipeline: Any,
        context: Context,
        lanes: int | None,
        make: Callable[[Context], Run[T]],
    ) -> None:
        super().__init__(pipeline, None, context)
        self.total = lanes or context.world_size * context.num_workers
        if self.total % context.world_size:
            raise PipelineError(
                f"{self.total} lanes cannot be shared equally by {context.world_size} ranks: "
                "the number of ranks must divide the number of lanes"
            )
        mine = owned(self.total, context)
        if lanes is None:
            contexts = dict.fromkeys(mine, context)
        else:
            contexts = {n: dataclasses.replace(context, lane=n, lanes=lanes) for n in mine}
        self.lanes = {number: Lane(make(place)) for number, place in contexts.items()}
        if self.total > 1 and lanes is not None:
            for lane in self.lanes.values():
                if not lane.run.dealt:
                    raise PipelineError(
                        f"lanes={lanes} would give everything {lanes} times: nothing deals the "
                        "data out to the lanes; add split_by_node, or use an index"
                    )
        self.counted = lanes is not None
        if context.engine is not None:
            context.engine.alone = len(self.lanes) == 1
        self.current = -1
        self.finished = False

    def __iter__(self) -> Iterator[T]:
        try:
            yield from self._items()
            for lane in self.lanes.values():
                lane.done = True
            self.finished = True
        finally:
            # The pipeline keeps this run for its state. Open files and worker processes must
            # go with the iterator: left to the garbage collector, torch's workers hang for seconds.
            for lane in self.lanes.values():
                lane.close()

    def _items(self) -> Iterator[T]:
        if len(self.lanes) == 1 and not self.counted:
            ((self.current, lane),) = self.lanes.items()
            if not lane.done and not lane.replayed:
                lane.given = lane.given or 1  # counting each item would cost more than it tells
                return lane.stream()
        return self._in_turn()

    def _in_turn(self) -> Iterator[T]:
        # The next lane is always the first that gave least: plain rotation, that finds its place
        # again from the counts alone, on any hardware.
        waiting = [(lane.given, number) for number, lane in self.lanes.items() if not lane.done]
        heapq.heapify(waiting)
        engine = self.context.engine
        soon = list(waiting) if engine is not None and len(waiting) > 1 else []
        while waiting:
            if soon:
                self._prime(soon, waiting[0][0])
            _, number = waiting[0]
            lane = self.lanes[number]
            for item in lane.stream():
                self.current = number
                lane.given += 1
                yield item
                heapq.heapreplace(waiting, (lane.given, number))
                break
            else:
                lane.done = True
                heapq.heappop(waiting)

    def _prime(self, soon: list[tuple[int, int]], given: int) -> None:
        """Have threads work on what the next lanes give; ``soon`` is a heap of their turns."""
        room = self.context.engine.room
        while soon and soon[0][0] <= given + 1 and room():
            turn, number = soon[0]
            self.lanes[number].prime(self.context.run)
            if self.lanes[number].done:
                heapq.heappop(soon)
            else:
                heapq.heapreplace(soon, (turn + 1, number))

    def skip_items(self, count: int) -> None:
        """Leave out the next ``count`` items of this process."""
        left = {n: lane.run.left() for n, lane in self.lanes.items() if not lane.done}
        if any(items is None for items in left.values()):
            for _ in islice(self._in_turn(), count):
                pass
            return
        waiting = sorted((self.lanes[n].given, n) for n in left)
        shares = dict.fromkeys(left, 0)
        while count and waiting:
            given, number = heapq.heappop(waiting)
            if shares[number] == left[number]:
                continue  # this lane ends here
            shares[number] += 1
            count -= 1
            heapq.heappush(waiting, (given + 1, number))
        for number, share in shares.items():
            self.lanes[number].pass_over(share)

    @property
    def ticket(self) -> Ticket:
        return (self.current, self.lanes[self.current].run.ticket)

    def origin(self, ticket: Ticket) -> Origin | None:
        if ticket is None or ticket[0] not in self.lanes:
            return None
        return self.lanes[ticket[0]].run.origin(ticket[1])

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.lanes[ticket[0]].run.origins(ticket[1])

    def parents(self) -> list[Run[Any]]:
        return [lane.run for lane in self.lanes.values()]

    def state(self) -> State:
        return {str(number): lane.state() for number, lane in self.lanes.items()}

    def restore(self, state: State) -> None:
        for number, lane in self.lanes.items():
            if str(number) not in state:
                raise StateError(f"the state lacks lane {number}: load the states of all ranks")
            lane.restore(state[str(number)])

    def fetch(self, ticket: Ticket) -> Any:
        return self.lanes[ticket[0]].run.fetch(ticket[1])


class NestedRun(Run[T]):
    """A pipeline as the source of another: its own seed and epoch's length, the other's lanes."""

    resumable = True

    def __init__(self, pipeline: Any, context: Context) -> None:
        if pipeline.seed is not None:
            context = dataclasses.replace(context, seed=pipeline.seed)
        cut = pipeline.nsamples >= 0
        inner: Run[T] = (
            EpochRun(pipeline, context, pipeline.start) if cut else pipeline.start(context)
        )
        super().__init__(pipeline, inner, context)

    def __iter__(self) -> Iterator[T]:
        return iter(self.source or ())

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.source.origins(ticket) if self.source is not None else []

    def again(self, context: Context) -> Run[T]:
        return NestedRun(self.stage, context)


class EpochRun(Run[T]):
    """A pipeline cut, or begun again, to ``nsamples`` items. A ticket is (which pass, ticket)."""

    resumable = True

    def __init__(self, pipeline: Any, context: Context, make: Callable[[Context], Run[T]]) -> None:
        super().__init__(pipeline, None, context)
        self.make = make
        self.passes = self.given = 0
        self.gave = False
        self.run = make(context)
        self.place = self.run.place
        self.finished = False
        self._stream: Iterator[T] | None = None
        self._earlier: tuple[int, Run[T]] | None = None

    def _pass(self, number: int) -> Run[T]:
        # Far from the numbers of epochs that iter() counts, and different in each of them.
        epoch = (number << 32) + self.context.epoch
        return self.make(dataclasses.replace(self.context, epoch=epoch))

    def __iter__(self) -> Iterator[T]:
        # The one that skip_items began, if any: a second one would begin where none stands.
        # It is not kept: the run and its generator would hold each other.
        stream, self._stream = self._stream, None
        return self._items() if stream is None else stream

    def _items(self) -> Iterator[T]:
        length = self.stage.nsamples
        while length <= 0 or self.given < length:
            for item in self.run:
                self.gave = True
                self.given += 1
                yield item
                if self.given == length:
                    break
            else:
                if not self.gave:
                    break
                self.passes += 1
                self.gave = False
                self.run = self._pass(self.passes)
        self.finished = True

    def skip_items(self, count: int) -> None:
        """Leave out the next ``count`` items of this process."""
        self._stream = self._items()
        for _ in islice(self._stream, count):
            pass

    @property
    def ticket(self) -> Ticket:
        return (self.passes, self.run.ticket)

    def origin(self, ticket: Ticket) -> Origin | None:
        return self._run_of(ticket[0]).origin(ticket[1]) if ticket is not None else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self._run_of(ticket[0]).origins(ticket[1])

    def parents(self) -> list[Run[Any]]:
        return [self.run]

    def state(self) -> State:
        return [self.passes, self.given, self.gave, self.run.saved()]

    def restore(self, state: State) -> None:
        self.passes, self.given, self.gave, run = state
        if self.passes:
            self.run = self._pass(self.passes)
        self.run.take(run)

    def fetch(self, ticket: Ticket) -> Any:
        return self._run_of(ticket[0]).fetch(ticket[1])

    def _run_of(self, number: int) -> Run[T]:
        """The run of a pass: the one at hand, or an earlier one."""
        if number == self.passes:
            return self.run
        if self._earlier is None or self._earlier[0] != number:
            self._earlier = (number, self._pass(number))
        return self._earlier[1]

    def again(self, context: Context) -> Run[T]:
        return EpochRun(self.stage, context, self.make)
