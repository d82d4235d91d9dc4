"""The sentence that names what holds a loader back, and the remedy.

The order of the questions: did it run long enough to tell? Does the trainer wait at all? If so,
what does the pipeline's thread do meanwhile: wait for the pool, read, or make batches? If it waits
for the pool, which stage works there, and do its threads use processors, or do they wait
themselves?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.loaders.stats.stats import StageStats, Stats

WAITS_LITTLE = 0.05
FEW_BATCHES, SHORT_S = 8, 1.0
"""What is less than that, the first batch left out, is chance."""
COMPUTES = 0.6
"""A stage whose threads use less processor time than this share of its time waits itself."""
WAITS_FOR_A_CORE, PART_OF_FAIR = 0.2, 0.25
"""The same where all cores are busy; and where threads are many, as a part of an equal share."""
HELD_UP, MOSTLY_AT_REST = 0.3, 0.01
"""A pipeline's thread that is held up for so much of its time lacks the interpreter's lock, unless
the pool does next to nothing: then there is nobody to hold it, and the shards are slow."""
MOSTLY_IDLE = 0.4
ONE_CORE = 1.25
NEARLY_ALL = 0.85


def sentence(stats: Stats) -> str:
    """What holds the loader back, and what helps."""
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
        return f"{waits}: the pipeline runs in the trainer's own thread, say num_workers=…"
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
            "stage between them tells which: keep the shards nearer (cache_dir=…), or make "
            "batches of arrays of one shape"
        )
    return (
        f"{waits}: making batches takes {part:.0%} of the pipeline's thread: let the last map give "
        "arrays of one shape, and move work behind batched() into a map before it"
    )


_LOCK = "build the native module (penstock native build), say fewer threads, or engine='processes'"


def _lock_is_short(stats: Stats) -> bool:
    """Whether threads stand in each other's way while there are cores for them.

    The thread that runs the pipeline is at work and does not compute, and neither the pool nor the
    machine is busy.
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
            f"{uses}, and they are waited for all the same: the samples are too small to be worth "
            "handing over; say fewer threads, or give the machine less other work"
        )
    computing = stage.cpu_seconds / (stage.seconds or 1.0)
    busy = max(stats.machine_busy or 0.0, stats.cores_busy / stats.cores)
    # A thread that has to wait for a core computes less than it could: of many, much less.
    for_a_core = min(WAITS_FOR_A_CORE, PART_OF_FAIR * stats.cores / stats.workers)
    one_core = stats.cores_busy < ONE_CORE and stats.workers > 1 and stats.interpreter_lock
    if computing >= (for_a_core if busy >= NEARLY_ALL else COMPUTES):
        if busy >= NEARLY_ALL and one_core and stats.cores_busy < NEARLY_ALL * stats.cores:
            # Threads that lack a core and threads that lack the lock look alike from here.
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
        return "the pipeline runs in the trainer's own thread, say num_workers=…"
    return (
        f"{stats.workers} worker processes are too few or too slow: add workers, or "
        "engine='threads', which also tells which stage it is"
    )
