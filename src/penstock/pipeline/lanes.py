"""A running pipeline: its lanes, in turn, cut or restarted to the epoch's length.

The data of an epoch is distributed to *lanes*, and every lane runs all stages separately. A rank
owns whole lanes, and so does a worker; the items of a lane do not depend on the number of ranks. So
a job on 4 ranks can resume on 2, each lane at its own position.

    rank 0 ── worker 0 ── lanes 0, 4, 8 …   ┐
           └─ worker 1 ── lanes 2, 6, 10 …  ├ taken in turn: 0, 1, 2, 3, 4 …
    rank 1 ── worker 0 ── lanes 1, 5, 9 …   │
           └─ worker 1 ── lanes 3, 7, 11 …  ┘

If ``lanes`` is not set, each worker of each rank is a lane.
"""

from __future__ import annotations

import dataclasses
import heapq
import operator
from collections.abc import Callable, Iterator
from itertools import chain, compress, islice, repeat
from time import perf_counter
from typing import Any, TypeVar

from penstock.context import Context
from penstock.errors import Origin, PipelineError, StateError
from penstock.pipeline.state import save_orders
from penstock.stages.drop_guard import check_empty_pass
from penstock.stages.reading.shard_versions import LaneVersions
from penstock.stages.repeat import PassesRun
from penstock.stages.run import Run, State, Ticket, as_count
from penstock.stages.segment import EachRun
from penstock.stages.sources.mixed_samples import MixedRun
from penstock.stages.sources.stream_mix import StreamMixRun

T = TypeVar("T")
CHECKPOINT_SHARE = 1 / 500
"""The share of a pipeline's time that checkpoints may take."""


def list_lanes(lanes: int, context: Context) -> list[int]:
    """Return the lanes of this rank and worker.

    >>> list_lanes(12, Context(rank=1, world_size=2, worker=0, num_workers=3))
    [1, 7]
    """
    return list(range(context.rank, lanes, context.world_size))[
        context.worker :: context.num_workers
    ]


class Checkpoints:
    """Periodic states of a run, and the number of items since, in case the run fails.

    A run that failed has taken items that it did not yield, so its own state is of no use.
    ``begun`` is the lane's state before the first item, ``behind`` how many items it skips first.
    """

    def __init__(self, run: Run[Any], share: float, begun: State, behind: int) -> None:
        self.run, self.share = run, share
        # One assignment: Ctrl-C must not come between a state and its count.
        self._last = (begun, behind + 1, repeat(True, 1))

    def counted(self, stream: Iterator[T]) -> Iterator[T]:
        """Return the stream, with its items counted at almost no cost."""
        return compress(stream, chain.from_iterable(self._blocks()))

    def _blocks(self) -> Iterator[Iterator[bool]]:
        """Yield iterators that are as long as the number of items until the next checkpoint."""
        items, begin = 1, perf_counter()
        yield self._last[2]
        while True:  # the run has made an item that counts as the first of the next block
            now = perf_counter()
            state = {"run": self.run.saved()}
            end = perf_counter()
            wanted = items * (end - now) / (self.share * max(now - begin, 1e-9))
            items, begin = min(int(wanted) + 1, 4 * items), end
            block = repeat(True, items)
            self._last = (state, items - 1, block)
            yield block

    def last(self) -> tuple[State, int]:
        """Return the last state, and the number of items yielded since."""
        state, most, block = self._last
        return state, most - operator.length_hint(block)


class Lane:
    """A running lane: its run, and the number of items it has yielded.

    ``share`` is the share of the time that its checkpoints may take; 0: it takes none.
    """

    def __init__(self, run: Run[Any], share: float = 0.0) -> None:
        self.run = run
        self.given = 0
        self.done = False
        self.replayed = bool(run.opaque())
        *_, root = run.chain()
        # For a loader: the number of workers that the replayed order depends on.
        self._workers: int | None = getattr(root, "ordered_by_workers", None)
        self.row = last_row(run)
        self._stream: Iterator[Any] | None = None
        self._behind = 0  # items yielded since the state to resume from was taken
        self._fresh = True  # the run is at its beginning, or replayed from there
        self._share = 0.0 if self.replayed or run.state_survives_errors else share
        self._checkpoints: Checkpoints | None = None
        self.failed = False  # an exception ended the stream

    def stream(self) -> Iterator[Any]:
        if self._stream is None:
            skip = self._behind
            if self._share:
                begun = {} if self._fresh else {"run": self.run.saved()}
                self._checkpoints = Checkpoints(self.run, self._share, begun, skip)
            stream = islice(iter(self.run), skip, None) if skip else iter(self.run)
            if self._checkpoints is not None:
                stream = self._checkpoints.counted(stream)
            self._stream, self._behind, self._fresh = stream, 0, self.replayed
        return self._stream

    def close(self) -> None:
        """Close open files and workers; the run's state is kept."""
        self._stream = None
        if self.row is not None:
            self.row.close()

    def prime(self, items: int) -> None:
        """Start work on the lane's next items in threads, because its turn comes soon."""
        if self.row is not None and not self.done:
            self.row.prime(items)

    def state(self) -> State:
        if self.done:
            return {"given": self.given, "done": True}
        given, behind = self.given, self._behind
        state: State = {}
        if self.failed and self._checkpoints is not None:
            state, behind = self._checkpoints.last()
            given = given if state else behind
        elif not self._fresh and given:
            state = {"run": self.run.saved()}
        state = {"given": given, **state}
        # Between a checkpoint and the failure, or in a replay, shards are opened again.
        if given and (self.failed or "run" not in state) and (versions := self._versions()):
            state["versions"] = versions
        if given and behind and "run" in state:
            state["behind"] = behind
        if given and (behind or "run" not in state) and self._workers is not None:
            state["workers"] = self._workers
        return state

    def _versions(self) -> State:
        versions = self.run.context.versions
        return [] if versions is None else versions.state()

    def restore(self, state: State) -> None:
        self.given, self.done = as_count(state["given"]), bool(state.get("done", False))
        if self.done or not self.given:
            return
        if self.replayed and "run" in state:  # which does not count every item
            names = ", ".join(self.run.opaque())
            raise StateError(
                f"the state holds the positions of all stages, and now {names} cannot be resumed "
                "at a position: assign the same functions and pass the same objects as when the "
                "state was saved"
            )
        if state.get("workers", self._workers) != self._workers:
            raise StateError(
                f"the items of the loader came in the order of {state['workers']} workers when "
                f"the state was saved, and come in that of {self._workers} now: this state is "
                "resumed by a replay, so use as many workers as then"
            )
        if self.run.context.versions is not None:
            self.run.context.versions.restore(state.get("versions", []))
        if self.replayed or "run" not in state:
            self._behind = self.given
            return
        self._behind, self._fresh = as_count(state.get("behind", 0)), False
        self.run.take(state["run"])

    def left(self) -> int | None:
        """Return how many items are still to come, or None if unknown."""
        items = self.run.left()
        return None if items is None else items - self._behind

    def roots(self) -> list[Run[Any]]:
        """Return the runs of the sources."""
        found, waiting = [], [self.run]
        while waiting:
            run = waiting.pop()
            parents = run.parents()
            waiting += parents
            if not parents or isinstance(run, StreamMixRun):
                found.append(run)
        return found

    def next_position(self) -> int:
        """Return a position in the order of the lane's mixture that the lane has not reached."""
        (root,) = self.roots()
        if not isinstance(root, MixedRun):
            raise StateError("the state of this pipeline cannot continue with another mixture")
        # Items yielded since the state was taken are read again, and skipped.
        behind = sum(getattr(run, "_behind", 0) for run in self.run.chain())
        behind += self._behind * root.context.run
        return root.next_position() + behind * root.lanes

    def pass_over(self, count: int) -> None:
        """Skip the next ``count`` items, without reading them if possible."""
        if count and not self.done:
            if self._stream is None and not self.replayed and self.run.skip_ahead(count):
                self._fresh = False
            else:
                for _ in islice(self.stream(), count):
                    pass
            self.given += count


def lane_position(state: State, lane: int, lanes: int, run: int) -> int | None:
    """Return about where in the source's order a lane's state is, without restoring it.

    >>> lane_position({"given": 2, "run": [[7, 8], 5]}, 1, 4, 2)
    19
    """
    inner, behind = state.get("run"), state.get("behind", 0) * run
    while not isinstance(inner, int):
        if isinstance(inner, dict) and "source" in inner:
            behind, inner = behind + inner.get("behind", 0), inner["source"]
        elif isinstance(inner, (list, tuple)) and inner:
            inner = inner[-1]  # what a stage keeps, and then its source's state
        else:
            return None
    block, within = divmod(int(inner + behind), run)
    return (block * lanes + lane) * run + within


def last_row(run: Run[Any]) -> EachRun[Any] | None:
    """Return the last group of stages that an engine runs ahead of time, or None."""
    if run.context.engine is None:
        return None
    return next((r for r in run.chain() if isinstance(r, EachRun) and r.rows), None)


class LanesRun(Run[T]):
    """The running lanes of this process. A ticket is (which lane, the item's ticket)."""

    resumable = True
    described: tuple[list[str], dict[str, str], dict[str, str]] | None = None
    """The description of the pipeline's stages, once a state was taken."""
    orders: dict[str, Any] = {}  # noqa: RUF012  (replaced, never changed)
    """What decided the order of its loaders' batches when the epoch began."""

    def __init__(
        self,
        pipeline: Any,
        context: Context,
        lanes: int | None,
        make: Callable[[Context], Run[T]],
        checkpoints: bool = False,
    ) -> None:
        super().__init__(pipeline, None, context)
        self.total = lanes or context.world_size * context.num_workers
        if self.total % context.world_size:
            raise PipelineError(
                f"{self.total} lanes cannot be shared equally by {context.world_size} ranks: "
                "the number of ranks must divide the number of lanes"
            )
        mine = list_lanes(self.total, context)
        if lanes is None:
            contexts = {n: dataclasses.replace(context, versions=LaneVersions()) for n in mine}
        else:
            contexts = {
                n: dataclasses.replace(context, lane=n, lanes=lanes, versions=LaneVersions())
                for n in mine
            }
        share = CHECKPOINT_SHARE / len(mine) if checkpoints and mine else 0.0
        self.lanes = {number: Lane(make(own), share) for number, own in contexts.items()}
        if self.total > 1 and lanes is not None:
            for lane in self.lanes.values():
                if not lane.run.dealt:
                    raise PipelineError(
                        f"lanes={lanes} would yield everything {lanes} times: nothing splits the "
                        "data between the lanes; add split_by_node, or use an index"
                    )
        self.counted = lanes is not None
        if context.engine is not None:
            context.engine.alone = len(self.lanes) == 1
        self.current = -1
        self._turn = -1  # the lane that makes the next item
        self.finished = False

    def __iter__(self) -> Iterator[T]:
        try:
            yield from self._items()
            for lane in self.lanes.values():
                lane.done = True
            self.finished = True
        except GeneratorExit:  # closed between two items
            raise
        except BaseException:
            if self._turn in self.lanes:
                self.lanes[self._turn].failed = True
            raise
        finally:
            # The pipeline keeps this run for its state. Open files and worker processes must
            # go with the iterator: left to the garbage collector, torch's workers hang for seconds.
            for lane in self.lanes.values():
                lane.close()

    def _items(self) -> Iterator[T]:
        if len(self.lanes) == 1 and not self.counted:
            ((self.current, lane),) = self.lanes.items()
            if not lane.done and not lane.replayed:
                self._turn, stream = self.current, lane.stream()
                lane.given = lane.given or 1  # counting each item is not worth its cost
                return stream
        return self._in_turn()

    def _in_turn(self) -> Iterator[T]:
        # The next lane is always the first with the fewest items: a plain rotation that is restored
        # from the counts alone, on any hardware.
        waiting = [(lane.given, number) for number, lane in self.lanes.items() if not lane.done]
        heapq.heapify(waiting)
        engine = self.context.engine
        soon = list(waiting) if engine is not None and len(waiting) > 1 else []
        while waiting:
            if soon:
                self._prime(soon, waiting[0][0])
            self._turn = number = waiting[0][1]
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
        """Start work on the next items of the next lanes; ``soon`` is a heap of their turns."""
        room = self.context.engine.room
        while soon and soon[0][0] <= given + 1 and room():
            turn, number = soon[0]
            self.lanes[number].prime(self.context.run)
            if self.lanes[number].done:
                heapq.heappop(soon)
            else:
                heapq.heapreplace(soon, (turn + 1, number))

    def skip_items(self, count: int) -> None:
        """Skip the next ``count`` items of this process."""
        left = {n: lane.left() for n, lane in self.lanes.items() if not lane.done}
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
        return iter(() if self.ended or self.source is None else self.source)

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.source.origins(ticket) if self.source is not None else []

    def again(self, context: Context) -> Run[T]:
        return NestedRun(self.stage, context)


class EpochRun(PassesRun[T]):
    """A pipeline cut, or begun again, to ``nsamples`` items. A ticket is (which pass, ticket)."""

    described: tuple[list[str], dict[str, str], dict[str, str]] | None = None
    """The description of the pipeline's stages, once a state was taken."""
    orders: dict[str, Any] = {}  # noqa: RUF012  (replaced, never changed)
    """What decided the order of its loaders' batches when the epoch began."""

    def __init__(self, pipeline: Any, context: Context, make: Callable[[Context], Run[T]]) -> None:
        super().__init__(pipeline, None, context)
        self.make = make
        self.run = make(context)
        self.stream_id, self.dealt = self.run.stream_id, self.run.dealt
        self.endless = pipeline.nsamples == 0
        self.finished = False
        self._stream: Iterator[T] | None = None

    def current(self) -> Run[T]:
        return self.run

    def begin_pass(self, counts_drops: bool = False) -> None:
        self.run = self.start_pass(self.passes, counts_drops)

    def start_pass(self, number: int, counts_drops: bool = False) -> Run[T]:
        # Far from the numbers of epochs that iter() counts, and different in each of them.
        epoch = (number << 32) + self.context.epoch
        return self.make(dataclasses.replace(self.context, epoch=epoch, counts_drops=counts_drops))

    def __iter__(self) -> Iterator[T]:
        # Continue the stream that skip_items began, if any: a second one would start elsewhere.
        # It is not kept: the run and its generator would hold each other.
        stream, self._stream = self._stream, None
        return self._items() if stream is None else stream

    def _items(self) -> Iterator[T]:
        length = self.stage.nsamples
        empty = 0  # consecutive passes that yielded nothing
        while length <= 0 or self.given < length:
            for item in self.run:
                self.gave = True
                self.given += 1
                yield item
                if self.given == length:
                    break
            else:
                if not self.gave and self.run.is_empty():
                    break
                empty = 0 if self.gave else empty + 1
                if empty:
                    check_empty_pass(self.run, empty)
                run = self.start_pass(self.passes + 1, counts_drops=empty > 0)
                self.orders = save_orders(self.stage.pipeline)
                self.passes, self.gave, self.run = self.passes + 1, False, run
        self.finished = True

    def skip_items(self, count: int) -> None:
        """Skip the next ``count`` items of this process."""
        self._stream = self._items()
        for _ in islice(self._stream, count):
            pass

    @property
    def ticket(self) -> Ticket:
        return (self.passes, self.run.ticket)

    def parents(self) -> list[Run[Any]]:
        return [self.run]

    def full_passes(self) -> int | None:
        if not self.endless:
            return None
        inside = self.run.full_passes()
        return self.passes if inside is None else inside

    def again(self, context: Context) -> Run[T]:
        return EpochRun(self.stage, context, self.make)
