"""Computes the number of items of a pipeline before it runs, if possible."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from penstock.batches.batched import batched, unbatched, unlisted
from penstock.batches.planning.planned_samples import PlannedSamples, planned
from penstock.context import Context
from penstock.errors import PipelineError
from penstock.stages.run import short_repr
from penstock.stages.sources.indexed_samples import IndexedSamples
from penstock.stages.sources.mix import RANK_CHECKS

REMEDY = (
    "leave samples out with exclude=, fix the epoch's length with with_epoch(n), or say "
    "ends='exact' in every data set, after which ranks may get unequal numbers"
)


def _may_keep(stage: Any) -> bool:
    """Return False if a stage changes the number of items, or nothing is known about it."""
    return getattr(stage, "keeps_count", False) is not False


def batch_size(stages: Sequence[Any]) -> int:
    """Return the size of the first batches that the pipeline makes of its samples; else 1."""
    for stage in stages[1:]:
        if isinstance(stage, batched):
            return stage.batchsize
        if not _may_keep(stage):
            break
    return 1


def batches_out(stages: Sequence[Any], size: int | None = None) -> tuple[int, Any]:
    """Return the size of the batches that come out (else 1), and the stage before them.

    ``size`` is that of batches made after the last stage; by default that of the last ``batched``.

    >>> batches_out([[], batched(4), batched(8)])
    (8, batched(4))
    """
    indices = [index for index, stage in enumerate(stages) if isinstance(stage, batched)]
    if size is not None or not indices:
        return size or 1, stages[-1]
    return int(stages[indices[-1]].batchsize), stages[indices[-1] - 1]


def changes_count(stages: Sequence[Any]) -> Any:
    """Return the first stage after the source that changes the number of samples, or None."""
    for stage in stages[1:]:
        if not (_may_keep(stage) or isinstance(stage, (batched, planned))):
            return stage
    return None


def _keeps_count(stages: Sequence[Any]) -> bool:
    """Return True if as many samples come out, alone or in batches, as the source yields."""
    kept = (stage for stage in stages[1:] if not isinstance(stage, (batched, planned)))
    return all(getattr(stage, "keeps_count", False) for stage in kept)


# ── equal ranks ─────────────────────────────────────────────────────────────────────────


def check_ends(stages: Sequence[Any], *, warn: bool) -> None:
    """Raise if a pipeline on several ranks cannot keep the promise of ``ends``.

    ``"drop"`` and ``"pad"`` promise every rank the same number of batches. So does the default,
    unless a stage after the source changes the number of samples: then, warn if ``warn`` is True.
    """
    promises = [source.ends for source in _indexed(stages[0]) if source.ends in PROMISES]
    if not promises or any(getattr(stage, "endless", False) for stage in stages):
        return
    asked = next((ends for ends in promises if ends is not None), None)
    changes = changes_count(stages)
    if asked is None and changes is not None:
        if warn:
            warnings.warn(
                f"{short_repr(changes)} may change the number of samples, so ranks may get unequal "
                f"numbers of batches: {REMEDY} without this warning",
                stacklevel=4,
            )
        return
    cause = _unequal_after(stages)
    cause = _unequal_in(stages[0]) if cause is None else cause
    if cause is None:
        return
    default = "" if asked is not None else ", the default on several ranks,"
    text = (
        f"ends={asked or 'drop'!r}{default} promises every rank the same number of batches, but "
        f"{short_repr(cause)} may return more items on one rank than on another: {REMEDY}"
    )
    if getattr(cause, "keeps_count", False) is None:
        text += f"; if it never drops an item, set {type(cause).__name__}.keeps_count = True"
    raise PipelineError(text)


PROMISES = (None, "drop", "pad")


def _indexed(source: Any) -> Iterator[IndexedSamples]:
    """Yield the indexed shards that a source reads: itself, or in mixes and nested pipelines."""
    if isinstance(source, IndexedSamples):
        yield source
    for dataset in getattr(source, "datasets", ()):
        yield from _indexed(dataset)
    nested = getattr(source, "pipeline", None)
    if isinstance(nested, list) and nested and not _has_fixed_length(source):
        yield from _indexed(nested[0])


def _has_fixed_length(pipeline: Any) -> bool:
    return int(getattr(pipeline, "nsamples", -1)) >= 0


def _unequal_in(source: Any) -> Any:
    """Return the part of a source that may yield more items on some ranks, or None."""
    if isinstance(nested := getattr(source, "pipeline", None), list):
        if _has_fixed_length(source) or not nested:
            return None
        cause = _unequal_after(nested)
        return _unequal_in(nested[0]) if cause is None else cause
    if not _keeps_equal(source):
        return source
    causes = (_unequal_in(dataset) for dataset in getattr(source, "datasets", ()))
    return next((cause for cause in causes if cause is not None), None)


def _unequal_after(stages: Sequence[Any]) -> Any:
    """Return the first stage after the source that may yield more items on some ranks, or None."""
    sizes = 0  # levels of nested batches whose sizes are the same on all ranks
    for stage in stages[1:]:
        if isinstance(stage, batched):
            sizes += 1
        elif isinstance(stage, (unbatched, unlisted)) and sizes:
            sizes -= 1
        elif not _keeps_equal(stage):
            return stage
        elif not stage.keeps_count:
            sizes = 0  # it may keep other batches on each rank
    return None


def _keeps_equal(stage: Any) -> bool:
    # A list, or another container, is the same on every rank.
    return (
        bool(getattr(stage, "keeps_ranks_equal", False))
        or bool(getattr(stage, "keeps_count", False))
        or isinstance(stage, (Sequence, Set, Mapping))
    )


# ── lengths ─────────────────────────────────────────────────────────────────────────────


def known_length(stages: Sequence[Any], context: Context, nsamples: int) -> int | None:
    """Return the items of one epoch on this rank, for all its workers; None if unknown."""
    if nsamples > 0:
        return nsamples
    source = stages[0] if stages else None
    if not isinstance(source, IndexedSamples) or nsamples == 0 or not _keeps_count(stages):
        return None
    if getattr(source, "endless", False):
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
    if source.ends == "pad" and source.shortens:  # every rank has equally many
        full, rest = divmod(positions // context.world_size, batchers[0].batchsize)
        return full + (1 if rest and batchers[0].partial else 0)
    full, rest = divmod(positions, batchers[0].batchsize)
    count = full + (1 if rest and batchers[0].partial else 0)
    return len(range(context.rank, count, context.world_size))


RANK_CHECKS.append(check_ends)
