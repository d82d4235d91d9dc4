"""Load a state into a pipeline whose mixture has changed since."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from penstock.context import Context
from penstock.errors import StateError
from penstock.pipeline.fingerprint import without_mixture
from penstock.pipeline.lanes import Lane
from penstock.pipeline.state import StateDict, check
from penstock.stages.run import State
from penstock.stages.segment import EachRun
from penstock.stages.sources.mixed_samples import MixedSamples
from penstock.stages.sources.stream_mix import StreamMix

_OF_MIXTURE = re.compile(r"(\w+\[\d+\]: )*(mix[\[(]|SourceStages\()")


def find_mix(stages: Sequence[Any]) -> MixedSamples | StreamMix | None:
    """Return the mixture that a pipeline reads, planned or not, through nested pipelines."""
    source = stages[0] if stages else None
    while isinstance(inner := getattr(source, "pipeline", None), list) and inner:
        source = inner[0]
    return source if isinstance(source, (MixedSamples, StreamMix)) else None


def adopt(saved: StateDict, now: StateDict) -> StateDict:
    """Return a state of another mixture as one of this mixture; other differences are errors."""
    then, here = (
        {
            **one,
            "stages": [text for text in one["stages"] if not _OF_MIXTURE.match(text)],
            "tree": without_mixture(one.get("tree"), other.get("tree")),
        }
        for one, other in ((saved, now), (now, saved))
    )
    check({**then, "state": None, "data": now["data"]}, here)
    return {**saved, **{name: now[name] for name in ("stages", "tree", "data")}}


def catch_up(pipeline: Any, mixture: StreamMix, state: State, context: Context) -> State:
    """Return the state of a pipeline's lanes with nothing left to skip.

    Threads and workers save a state periodically, and between two of them the number of items since
    the last one. Those items are skipped when a run resumes, so they must be the ones that the
    mixture of the state chose.
    """
    if isinstance(state, list):  # cut to a length: [passes, given, gave, lanes]
        epoch = (state[0] << 32) + context.epoch
        context = dataclasses.replace(context, epoch=epoch)
        return [*state[:3], catch_up(pipeline, mixture, state[3], context)]
    lanes: dict[str, State] = {}
    with mixture.acts_as_saved():
        for number, one in state.items():
            check_lane(pipeline, mixture, one)
            place = _context(pipeline, int(number), context)
            lanes[number] = _skipped(pipeline, one, place) if "behind" in str(one) else one
    return lanes


def check_lane(pipeline: Any, mixture: StreamMix, state: State) -> None:
    """Raise an error for the state of a lane from which another mixture cannot continue."""
    if state.get("done") and pipeline.nsamples < 0 and (added := mixture.added()):
        raise StateError(
            "a part of the streams has ended in this epoch, so that samples of the new source "
            f"{added[0]!r} would be left out: save the state at the end of an epoch"
        )
    if not state.get("done") and state["given"] and "run" not in state:
        raise StateError(
            "a stage cannot save its state, so that a resume runs the epoch again up to there: "
            "another mixture can only begin with the next epoch"
        )


def _context(pipeline: Any, number: int, context: Context) -> Context:
    if pipeline.lanes is not None:
        context = dataclasses.replace(context, rank=0, world_size=1, worker=0, num_workers=1)
        return dataclasses.replace(context, lane=number, lanes=pipeline.lanes)
    worker, rank = divmod(number, context.world_size)
    return dataclasses.replace(context, rank=rank, worker=worker)


def _skipped(pipeline: Any, state: State, context: Context) -> State:
    """Return the state of a lane after the items that a resume would skip."""
    while True:
        lane = Lane(pipeline.start(context))
        lane.restore(state)
        groups = [run for run in lane.run.chain() if isinstance(run, EachRun) and run._behind]
        if groups:  # the one next to the source first
            stream, count = iter(groups[-1].source), groups[-1]._behind
            groups[-1]._behind = 0
        else:
            stream, count = iter(lane.run), lane._behind
            state = {name: value for name, value in state.items() if name != "behind"}
        for _ in islice(stream, count):
            pass
        state = {**state, "run": lane.run.saved()}
        if not groups:
            return state
