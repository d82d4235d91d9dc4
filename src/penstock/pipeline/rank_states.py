"""One state for all ranks: computed from the state of any rank, or gathered from all of them.

All ranks of a job take equally many steps. With an index and lanes, and stages that keep the number
of samples, a lane's position follows from the number of its steps. So trainers that save only the
state of rank 0 save enough. For all other pipelines the ranks exchange their states over
torch.distributed when a state is requested.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock.batches.batched import batched
from penstock.context import current_context, in_worker
from penstock.errors import StateError
from penstock.handlers import reraise_exception
from penstock.pipeline.lanes import LanesRun
from penstock.pipeline.state import StateDict, merge
from penstock.stages.sources.indexed_samples import IndexedSamples
from penstock.stages.stage import Each


def positions_follow(pipeline: Any) -> bool:
    """Return whether the positions of all ranks follow from the number of steps of one."""
    stages = pipeline.pipeline
    if pipeline.lanes is None or pipeline.nsamples >= 0 or not stages:
        return False
    if not isinstance(stages[0], IndexedSamples):
        return False
    # Only stages without a buffer: its content does not follow from the number of steps.
    keeping = (
        isinstance(s, Each) and bool(s.keeps_count)
        for s in stages[1:]
        if not isinstance(s, batched)
    )
    if not all(keeping):
        return False
    # What a handler skips on one rank is unknown to the other ranks.
    handlers = (getattr(stage, "handler", reraise_exception) for stage in stages)
    return all(handler is reraise_exception for handler in handlers)


def position_after(make: Callable[[int], LanesRun[Any]], workers: int, steps: int) -> Any:
    """Return the lanes of a rank after ``steps`` steps, and the worker that made the last one.

    ``make(worker)`` starts the lanes of a worker. torch asks workers in turn, and no longer asks
    those that have ended.
    """
    runs = [make(worker) for worker in range(workers)]
    left = [sum(lane.run.left() or 0 for lane in run.lanes.values()) for run in runs]
    shares, last = [0] * workers, -1
    active = [worker for worker in range(workers) if left[worker]]
    while steps and active:
        rounds = min(steps // len(active), *(left[w] - shares[w] for w in active))
        if rounds:
            for worker in active:
                shares[worker] += rounds
            steps, last = steps - rounds * len(active), active[-1]
        else:
            for worker in active[:steps]:
                shares[worker] += 1
                last = worker
            steps = 0
        active = [worker for worker in active if shares[worker] < left[worker]]
    lanes: dict[str, Any] = {}
    for run, share in zip(runs, shares):
        run.skip_items(share)
        for lane in run.lanes.values():
            lane.done = lane.run.left() == 0
        lanes.update(run.state())
    return lanes, last


def next_position(pipeline: Any, lanes: Any, epoch: int) -> int:
    """Return a position of the pipeline's mixture that none of these lanes has reached.

    All ranks must find the same one, so the lanes of all ranks are needed.
    """
    context = dataclasses.replace(pipeline.context(), epoch=epoch)
    if pipeline.nsamples >= 0:
        raise StateError(
            "a mixture that is cut by with_epoch() continues with other weights or sources only "
            "at the end of an epoch: save the state there"
        )
    if pipeline.lanes is not None:
        context = dataclasses.replace(context, rank=0, world_size=1, worker=0, num_workers=1)
    elif context.world_size > 1:
        raise StateError(
            "on several ranks only a mixture with lanes=… can continue with other weights or "
            "sources inside an epoch"
        )
    run = LanesRun(pipeline, context, pipeline.lanes, pipeline.start)
    run.restore(lanes)
    return max((lane.next_position() for lane in run.lanes.values()), default=0)


def check_steps(saved: dict[str, Any], computed: dict[str, Any]) -> None:
    """Raise an error for a state whose lanes are not where its number of steps would put them."""
    for lane, state in computed.items():
        found = saved.get(lane, {"given": 0})
        # Threads, workers and lanes that failed may save an earlier position and how far they were
        # after it.
        replayed = "behind" in str(found) or (found["given"] and "run" not in found)
        comparable = not ("done" in found or "done" in state or replayed)
        if comparable and found != state:
            raise StateError(
                f"lane {lane} is not where its steps would have brought it, so a stage left out "
                "samples, and the other ranks' positions do not follow from this rank's state: "
                "load the states of all ranks, load_state_dict([state_of_rank_0, …])"
            )


def gathers(world_size: int) -> bool:
    """Return whether the ranks can exchange states: torch.distributed is initialised with all of
    them."""
    if world_size == 1 or in_worker():
        return False
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() == world_size)


def gather(state: StateDict) -> StateDict:
    """Gather the states of all ranks into one; every rank must call it."""
    world_size = current_context().world_size
    states: list[Any] = [None] * world_size
    sys.modules["torch.distributed"].all_gather_object(states, state)
    parts = [part_of(one, rank, world_size) for rank, one in enumerate(states)]
    return merge(parts)


def part_of(state: StateDict, rank: int, ranks: int) -> StateDict:
    """Return one rank's part of a state; a state of a single rank is returned whole."""
    if state["rank"] is not None:
        return state

    def owned(lanes: Any) -> Any:
        if isinstance(lanes, list):  # cut to a length: [passes, given, gave, lanes]
            return [*lanes[:3], owned(lanes[3])]
        return lanes and {n: lane for n, lane in lanes.items() if int(n) % ranks == rank}

    return {**state, "rank": rank, "state": owned(state["state"])}


def describe_ranks(follow: bool, world_size: int) -> Sequence[str]:
    """Describe the states of several ranks, for describe()."""
    if world_size == 1:
        return ()
    if follow:
        return ("state: that of one rank is enough for all ranks",)
    if gathers(world_size):
        return ("state: gathered from all ranks, so call state_dict() on every rank",)
    return ("state: of this rank only; save that of every rank",)
