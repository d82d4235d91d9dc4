"""Which engine suits a pipeline: measured on a few of its samples.

Threads help as far as the work on a sample leaves the interpreter's lock: decoders, numpy and
torch do, plain Python does not. So samples are worked on by two threads at once, and it is counted
how much computing they get done in a second: never more than a second's where one holds the
lock, however busy the machine is. What is measured is not delivered: it comes from runs of its own.

On free-threaded Python there is no such lock and nothing to measure, unless a package that the
first sample imports brings the lock back.
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import islice
from time import perf_counter, thread_time
from typing import Any

from penstock.engine.applying import applied, steps_of
from penstock.stages.segment import EachRun
from penstock.engine.item_cost import CHEAP_SECONDS
from penstock.stages.run import FunctionRun, IterableRun, Run, shown
from penstock.stages.sources.shard_list import ShardListRun
from penstock.stages.sources.split import SplitByWorker

SAMPLES, ROUNDS = 6, 5
SECONDS = 0.5
"""No more than about so long is spent on it."""
GAIN = 1.3
"""Two threads must do at least so much more than one."""
AT_HAND = 0.85
"""Where two threads had a processor for less of their time, others kept the machine busy."""
UNLOCKED = "threads: this Python has no interpreter lock"
WAITS = 0.5
"""Work that computes less than this part of its time waits for something, and leaves the lock."""


def measure(pipeline: Any) -> tuple[str, str]:
    """``"threads"`` or ``"processes"``, and a sentence that says why."""
    if cores() < 2:
        return "threads", "threads: there is one processor, which processes cannot share better"
    return _measured(pipeline.start(pipeline.context()))


def locked() -> bool:
    """Whether this interpreter runs one thread at a time, as all do that are not free-threaded."""
    return not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()


def cores() -> int:
    """The processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _measured(last: Run[Any]) -> tuple[str, str]:
    if "-" in _urls(last):
        return "threads", "threads: worker processes have not this one's standard input"
    if whole := _whole(last):
        return "threads", f"threads: each worker process would give all of {whole}"
    once = last.opaque() or [url for url in _urls(last) if _once(url)]
    if once and not locked():
        return "threads", UNLOCKED
    if once:
        return "processes", f"processes: not measured, as {once[0]} may give its samples only once"
    end = next((run for run in last.chain() if isinstance(run, EachRun) and run.rows), None)
    if end is None:
        return "threads", "threads: no stage here works on single samples"
    steps, source = steps_of(end)
    work = [(item, source.ticket) for item in islice(source, 3 + ROUNDS * 3 * SAMPLES)]
    if len(work) < 3 + 3 * SAMPLES:
        return "threads", "threads: too few samples to measure"
    _apply(steps, work[:1])  # what is imported or opened by the first sample
    if not locked():
        return "threads", UNLOCKED
    alone, cost = (figure / 2 for figure in _apply(steps, work[1:3]))
    size = max(min(int(SECONDS / 3 / (alone + 1e-9)), SAMPLES), 2)
    quicker = more = computing = at_hand = 0.0
    begin = perf_counter()
    # The best of a few rounds: others may keep the processors busy just then.
    for at in range(3, len(work) - 3 * size + 1, 3 * size):
        one, computed = _apply(steps, work[at : at + size])
        alone, cost = min(alone, one / size), min(cost, computed / size)
        computing = max(computing, computed / one)
        rest = work[at + size : at + 3 * size]
        both, ready, computed = _two(steps, rest[::2], rest[1::2])
        quicker, more = max(quicker, 2 * one / ready), max(more, computed / both)
        at_hand = max(at_hand, ready / both)
        if more > 1.6 or perf_counter() - begin > SECONDS:
            break
    gain = more if computing > WAITS else quicker
    cost = cost if computing > WAITS else alone
    if cost < CHEAP_SECONDS:
        said = f"a sample takes {cost * 1e6:.0f} µs, less than sending it to another process"
        return "threads", f"threads: {said}"
    said = f"two threads do {gain:.1f} times the work of one ({alone * 1e3:.2f} ms a sample)"
    if gain >= GAIN:
        return "threads", f"threads: {said}"
    why = "so it holds the interpreter lock"
    if at_hand < AT_HAND:
        why = "as it holds the interpreter lock, or as other programs took the processors"
    return "processes", f"processes: {said}, {why}"


def _apply(steps: Any, work: list[Any]) -> tuple[float, float]:
    """The seconds that it took with a processor at hand, and those that this thread computed."""
    queued, begin, computed = _queued(), perf_counter(), thread_time()
    for item, ticket in work:
        applied(steps, item, ticket)  # what fails is told when it is delivered
    computed = thread_time() - computed
    return max(perf_counter() - begin - (_queued() - queued), computed, 1e-9), computed


def _queued() -> float:
    """How long this thread was ready and had no processor; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _two(steps: Any, one: list[Any], other: list[Any]) -> tuple[float, float, float]:
    """The seconds of two threads at once, those with a processor at hand, and those computed."""
    done: list[tuple[float, float]] = []
    spans: list[float] = []

    def work(items: list[Any]) -> None:
        begin = perf_counter()
        done.append(_apply(steps, items))
        spans.append(perf_counter() - begin)

    thread = threading.Thread(target=work, args=(other,), daemon=True)
    begin = perf_counter()
    thread.start()
    work(one)
    thread.join()
    both, computed = perf_counter() - begin, sum(computed for _, computed in done)
    queued = (sum(spans) - sum(ready for ready, _ in done)) / 2
    return both, max(both - queued, computed / 2, 1e-9), computed


def _urls(last: Run[Any]) -> list[str]:
    return [str(url) for run in last.chain() for url in getattr(run.stage, "urls", ())]


def _once(url: str) -> bool:
    return url.startswith("pipe:")


def _whole(run: Run[Any]) -> str:
    """What no stage shares out to worker processes, if anything; it would come once from each."""
    if isinstance(run.stage, SplitByWorker):
        return ""
    parents = list(run.parents())
    listed = type(run) is ShardListRun  # others of its kind share out themselves
    if not parents and (listed or isinstance(run, (FunctionRun, IterableRun))):
        return shown(run.stage)
    return next(filter(None, map(_whole, parents)), "")
