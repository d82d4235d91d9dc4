"""Which engine suits a pipeline: measured on a few of its samples.

Threads help as far as the work on a sample leaves the interpreter's lock: decoders, numpy and
torch do, plain Python does not. So samples are worked on by two threads at once, and it is counted
how much computing they get done in a second: never more than a second's where one holds the
lock, however busy the machine is. What is measured is not delivered: it comes from runs of its own.
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import islice
from time import perf_counter, thread_time
from typing import Any

from penstock.stages.applying import applied
from penstock.stages.row import CHEAP_SECONDS, steps_of
from penstock.stages.run import EachRun, Run

SAMPLES, ROUNDS = 6, 5
SECONDS = 0.5
"""No more than about so long is spent on it."""
GAIN = 1.3
"""Two threads must do at least so much more than one."""
WAITS = 0.5
"""Work that computes less than this part of its time waits for something, and leaves the lock."""


def measure(pipeline: Any) -> tuple[str, str]:
    """``"threads"`` or ``"processes"``, and a sentence that says why."""
    if cores() < 2:
        return "threads", "threads: there is one processor, which processes cannot share better"
    if not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled():
        return _measured(pipeline.start(pipeline.context()))
    return "threads", "threads: this Python has no interpreter lock"


def cores() -> int:
    """The processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _measured(last: Run[Any]) -> tuple[str, str]:
    once = last.opaque() or [url for url in _urls(last) if _once(url)]
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
    alone = _apply(steps, work[1:3])[0] / 2
    size = max(min(int(SECONDS / 3 / (alone + 1e-9)), SAMPLES), 2)
    quicker = more = computing = 0.0
    begin = perf_counter()
    # The best of a few rounds: others may keep the processors busy just then.
    for at in range(3, len(work) - 3 * size + 1, 3 * size):
        one, computed = _apply(steps, work[at : at + size])
        computing = max(computing, computed / one)
        rest = work[at + size : at + 3 * size]
        both, computed = _two(steps, rest[::2], rest[1::2])
        quicker, more = max(quicker, 2 * one / both), max(more, computed / both)
        alone = min(alone, one / size)
        if more > 1.6 or perf_counter() - begin > SECONDS:
            break
    gain = more if computing > WAITS else quicker
    if alone < CHEAP_SECONDS:
        said = f"a sample takes {alone * 1e6:.0f} µs, less than sending it to another process"
        return "threads", f"threads: {said}"
    said = f"two threads do {gain:.1f} times the work of one ({alone * 1e3:.2f} ms a sample)"
    if gain >= GAIN:
        return "threads", f"threads: {said}"
    return "processes", f"processes: {said}, so it holds the interpreter lock"


def _apply(steps: Any, work: list[Any]) -> tuple[float, float]:
    """The seconds that it took, and those that this thread computed."""
    begin, computed = perf_counter(), thread_time()
    for item, ticket in work:
        applied(steps, item, ticket)  # what fails is told when it is delivered
    return perf_counter() - begin, thread_time() - computed


def _two(steps: Any, one: list[Any], other: list[Any]) -> tuple[float, float]:
    """The same of two threads at once; both together computed so long."""
    computed = []
    thread = threading.Thread(target=lambda: computed.append(_apply(steps, other)[1]), daemon=True)
    begin = perf_counter()
    thread.start()
    computed.append(_apply(steps, one)[1])
    thread.join()
    return perf_counter() - begin, sum(computed)


def _urls(last: Run[Any]) -> list[str]:
    return [str(url) for run in last.chain() for url in getattr(run.stage, "urls", ())]


def _once(url: str) -> bool:
    return url == "-" or url.startswith("pipe:")
