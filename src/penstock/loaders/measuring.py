"""Which engine suits a pipeline: measured on a few of its samples.

Threads help as far as the work on a sample leaves the interpreter's lock: decoders, numpy and
torch do, plain Python does not. So the same number of samples is worked on by one thread and
by two. What is measured is not delivered: it comes from runs of its own.
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import islice
from time import perf_counter
from typing import Any

from penstock.stages.applying import applied
from penstock.stages.row import CHEAP_SECONDS, steps_of
from penstock.stages.run import EachRun, Run

SAMPLES, ROUNDS = 6, 5
SECONDS = 0.5
"""No more than about so long is spent on it."""
GAIN = 1.3
"""Two threads must do at least so much more than one."""


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
    alone, gain = _apply(steps, work[1:3]) / 2, 0.0
    size = max(min(int(SECONDS / 3 / (alone + 1e-9)), SAMPLES), 2)
    begin = perf_counter()
    # The best of a few rounds: others may keep the processors busy just then.
    for at in range(3, len(work) - 3 * size + 1, 3 * size):
        one = _apply(steps, work[at : at + size])
        rest = work[at + size : at + 3 * size]
        gain = max(gain, 2 * one / _two(steps, rest[::2], rest[1::2]))
        alone = min(alone, one / size)
        if gain > 1.6 or perf_counter() - begin > SECONDS:
            break
    if alone < CHEAP_SECONDS:
        said = f"a sample takes {alone * 1e6:.0f} µs, less than sending it to another process"
        return "threads", f"threads: {said}"
    said = f"two threads do {gain:.1f} times the work of one ({alone * 1e3:.2f} ms a sample)"
    if gain >= GAIN:
        return "threads", f"threads: {said}"
    return "processes", f"processes: {said}, so it holds the interpreter lock"


def _apply(steps: Any, work: list[Any]) -> float:
    begin = perf_counter()
    for item, ticket in work:
        applied(steps, item, ticket)  # what fails is told when it is delivered
    return perf_counter() - begin


def _two(steps: Any, one: list[Any], other: list[Any]) -> float:
    thread = threading.Thread(target=_apply, args=(steps, other), daemon=True)
    begin = perf_counter()
    thread.start()
    _apply(steps, one)
    thread.join()
    return perf_counter() - begin


def _urls(last: Run[Any]) -> list[str]:
    return [str(url) for run in last.chain() for url in getattr(run.stage, "urls", ())]


def _once(url: str) -> bool:
    return url == "-" or url.startswith("pipe:")
