"""How many items a pipeline gives, where that can be known before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.batches.batched import batched
from penstock.batches.planning.planned_samples import PlannedSamples, planned
from penstock.context import Context
from penstock.stages.sources.indexed_samples import IndexedSamples
from penstock.stages.inspect import info, log_keys
from penstock.stages.shuffle import shuffle


def _keeps(stage: Any) -> bool:
    return getattr(stage, "keeps_count", False) or isinstance(stage, (shuffle, info, log_keys))


def batch_size(stages: Sequence[Any]) -> int:
    """The size of the first batches that the pipeline makes of its source's samples; else 1."""
    for stage in stages[1:]:
        if isinstance(stage, batched):
            return stage.batchsize
        if not _keeps(stage):
            break
    return 1


def batches_out(stages: Sequence[Any], size: int | None = None) -> tuple[int, Any]:
    """The size of the batches that come out (else 1), and the stage that gives their samples.

    ``size`` is that of batches made behind the last stage; by default the last ``batched`` says.

    >>> batches_out([[], batched(4), batched(8)])
    (8, batched(4))
    """
    places = [place for place, stage in enumerate(stages) if isinstance(stage, batched)]
    if size is not None or not places:
        return size or 1, stages[-1]
    return int(stages[places[-1]].batchsize), stages[places[-1] - 1]


def keeps_count(stages: Sequence[Any]) -> bool:
    """Whether the source's samples are as many as come out, alone or in batches."""
    return all(_keeps(stage) or isinstance(stage, (batched, planned)) for stage in stages[1:])


def known_length(stages: Sequence[Any], context: Context, nsamples: int) -> int | None:
    """The items of one epoch on this rank, all its workers together; None where nobody knows."""
    if nsamples > 0:
        return nsamples
    source = stages[0] if stages else None
    if not isinstance(source, IndexedSamples) or nsamples == 0 or not keeps_count(stages):
        return None
    batchers = [stage for stage in stages[1:] if isinstance(stage, batched)]
    if isinstance(source, PlannedSamples):
        if batchers or sum(isinstance(stage, planned) for stage in stages) != 1:
            return None
        return len(source.planned(context).of_rank(context.rank, context.world_size))
    positions = source.positions(context)
    if not batchers:
        return len(range(context.rank, positions, context.world_size))
    if len(batchers) > 1:
        return None
    full, rest = divmod(positions, batchers[0].batchsize)
    count = full + (1 if rest and batchers[0].partial else 0)
    return len(range(context.rank, count, context.world_size))
