"""Names the bottleneck of a loader and the remedy, in one sentence.

The questions in order: did it run long enough to judge? Does the trainer wait at all? If so, what
does the pipeline's thread do meanwhile: wait for the pool, read, or make batches? If it waits for
the pool, which stage runs there, and do its threads use the CPU, or do they wait themselves?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.loaders.stats.stats import StageStats, Stats

WAITS_LITTLE = 0.05
FEW_BATCHES, SHORT_S = 8, 1.0
"""Less than this, not counting the first batch, is not significant."""
COMPUTES = 0.6
"""A stage whose threads use the CPU for a smaller share of their time is waiting itself."""
WAITS_FOR_A_CORE, PART_OF_FAIR = 0.2, 0.25
"""The same if all cores are busy; and with many threads, as a part of an equal share."""
HELD_UP, MOSTLY_AT_REST = 0.3, 0.01
"""A pipeline's thread that is delayed for this share of its time waits for the GIL, unless the pool
is nearly idle: then no thread holds the GIL, and the shards are slow."""
MOSTLY_IDLE = 0.4
ONE_CORE = 1.25
NEARLY_ALL = 0.85


def describe_bottleneck(stats: Stats) -> str:
    """Return a sentence with the bottleneck and the remedy."""
    if stats.batches < FEW_BATCHES or stats.later_s < SHORT_S:
        return (
            f"too short to say what holds the loader back: {stats.batches:,} batches, and "
            f"{max(stats.later_s, 0.0):.1f} s since the first; it takes {FEW_BATCHES} batches and "
            f"{SHORT_S:g} s"
        )
    if stats.wait_share < WAITS_LITTLE:
        if _lock_is_short(stats):
            return (
                f"the trainer waits for data {stats.wait_share:.0%} of its time, but its own "
                f"Python and the loader's threads wait for the interpreter lock: {_LOCK}"
            )
        return (
            f"the trainer sets the pace: it waits for data {stats.wait_share:.0%} of its time, and "
            "a faster loader would change nothing"
        )
    waits = f"the trainer waits for data {stats.wait_share:.0%} of its time"
    if stats.engine == "processes":
        return f"{waits}: {_processes(stats)}"
    if not stats.pipeline:
        return f"{waits}: the pipeline runs in the trainer's own thread, set num_workers=…"
    work = {what: stats.pipeline[what] for what in ("reading", "inline", "pool", "batching")}
    most = max(work, key=lambda what: work[what])
    part = work[most] / (sum(stats.pipeline.values()) or 1.0)
    if most == "pool":
        return f"{waits}: {_pool(stats)}"
    if _lock_is_short(stats) and most != "reading":
        return (
            f"{waits}: the pipeline's thread waits for the interpreter lock "
            f"{stats.held_up:.0%} of its time: {_LOCK}"
        )
    if _lock_is_short(stats):
        return (
            f"{waits}: reading takes {part:.0%} of the pipeline's thread, and most of that it "
            "waits: for the shards, then keep them nearer (cache_dir=…), or for the interpreter "
            f"lock, then {_LOCK}"
        )
    if most == "reading":
        return (
            f"{waits}: reading takes {part:.0%} of the pipeline's thread: keep the shards nearer "
            "(cache_dir=…), or make stages that shuffle before decoding lighter"
        )
    if most == "inline":
        return (
            f"{waits}: {_slowest(stats).name} on small samples takes {part:.0%} of the pipeline's "
            "thread, too little each for threads to help: batch first, or engine='processes'"
        )
    if stats.samples is None:
        return (
            f"{waits}: reading and making batches take {part:.0%} of the pipeline's thread, and no "
            "stage between them separates the two: keep the shards nearer (cache_dir=…), or make "
            "batches of arrays of one shape"
        )
    return (
        f"{waits}: making batches takes {part:.0%} of the pipeline's thread: let the last map "
        "return arrays of one shape, and move work after batched() into a map before it"
    )


_LOCK = "build the native module (penstock native build), use fewer threads, or engine='processes'"


def _lock_is_short(stats: Stats) -> bool:
    """Return whether threads wait for the GIL although there are free cores.

    The pipeline's thread has work and does not use the CPU, and neither the pool nor the machine
    is busy.
    """
    if stats.engine != "threads" or stats.workers < 2 or stats.held_up < HELD_UP:
        return False
    if not stats.interpreter_lock:
        return False
    busy = max(stats.machine_busy or 0.0, stats.cores_busy / stats.cores)
    return MOSTLY_AT_REST < (stats.pool_busy or 0.0) < NEARLY_ALL and busy < NEARLY_ALL


def _slowest(stats: Stats) -> StageStats:
    return max(stats.stages, key=lambda stage: stage.seconds)


def _pool(stats: Stats) -> str:
    stage = _slowest(stats)
    uses = f"{stage.name} uses {stage.share:.0%} of {stats.workers} threads"
    if (stats.pool_busy or 0.0) < MOSTLY_IDLE:
        return (
            f"{uses}, and the pipeline still waits for them: the samples are too small to be worth "
            "handing over; use fewer threads, or give the machine less other work"
        )
    computing = stage.cpu_seconds / (stage.seconds or 1.0)
    busy = max(stats.machine_busy or 0.0, stats.cores_busy / stats.cores)
    # A thread that waits for a core uses the CPU less; with many threads, much less.
    for_a_core = min(WAITS_FOR_A_CORE, PART_OF_FAIR * stats.cores / stats.workers)
    one_core = stats.cores_busy < ONE_CORE and stats.workers > 1 and stats.interpreter_lock
    if computing >= (for_a_core if busy >= NEARLY_ALL else COMPUTES):
        if busy >= NEARLY_ALL and one_core and stats.cores_busy < NEARLY_ALL * stats.cores:
            # Threads without a core and threads without the GIL cannot be told apart here.
            return (
                f"{uses} and all {stats.cores} cores are busy, only {stats.cores_busy:.1f} with "
                "this process: other programs have the rest, then give the machine less to do, or "
                "it holds the interpreter lock, then engine='processes'"
            )
        if busy >= NEARLY_ALL:
            return (
                f"{uses} and all {stats.cores} cores are busy: decode at lower scale or on the GPU "
                "(decode_on='cuda'), or use a machine with more cores"
            )
        return f"{uses}: add threads or decode at lower scale"
    if one_core and stats.cores_busy > NEARLY_ALL:
        return (
            f"{uses} but only one core is busy, so it holds the interpreter lock: "
            "engine='processes', or functions that release it"
        )
    return (
        f"{uses} and computes {computing:.0%} of that: it waits for something itself, "
        "such as a network or a sleep, and more threads let more of them wait at once"
    )


def _processes(stats: Stats) -> str:
    if stats.workers == 0:
        return "the pipeline runs in the trainer's own thread, set num_workers=…"
    return (
        f"{stats.workers} worker processes are too few or too slow: add workers, or "
        "engine='threads', which also reports which stage it is"
    )
