"""Chooses the engine of a pipeline by measuring a few of its samples.

Threads help if the work on a sample releases the GIL: decoders, numpy and torch do, plain Python
does not. So two threads process samples at once, and the CPU time that they use per second is
measured: never more than one second if they hold the GIL, however busy the machine is. The measured
samples come from separate runs and are not delivered.

Free-threaded Python has no GIL and needs no measurement, unless a package that the first sample
imports enables the GIL again.
"""

from __future__ import annotations

import sys
import threading
from itertools import islice
from time import perf_counter, thread_time
from typing import Any

from penstock.context import cores
from penstock.engine.applying import applied, steps_of
from penstock.engine.item_cost import CHEAP_SECONDS
from penstock.stages.run import FunctionRun, IterableRun, Run, short_repr
from penstock.stages.segment import EachRun
from penstock.stages.sources.shard_list import ShardListRun
from penstock.stages.sources.split import SplitByWorker

SAMPLES, ROUNDS = 6, 5
SECONDS = 0.5
"""Approximate limit on the time spent measuring."""
GAIN = 1.3
"""Minimum speed-up of two threads over one to choose threads."""
ENOUGH_CPU = 0.85
"""If two threads had a CPU for less of their time, other programs kept the machine busy."""
UNLOCKED = "threads: this Python has no interpreter lock"
WAITS = 0.5
"""Work that uses the CPU for less of its time is waiting, which releases the GIL."""


def measure(pipeline: Any) -> tuple[str, str]:
    """Return ``"threads"`` or ``"processes"``, and a sentence with the reason."""
    if cores() < 2:
        return "threads", "threads: there is one CPU core, which processes cannot share better"
    return _measure_run(pipeline.start(pipeline.context()))


def has_gil() -> bool:
    """Return whether this interpreter has a GIL that is enabled."""
    return not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()


def _measure_run(last: Run[Any]) -> tuple[str, str]:
    if "-" in _urls(last):
        return "threads", "threads: worker processes cannot read this process's standard input"
    if whole := _find_unsplit(last):
        return "threads", f"threads: each worker process would yield all of {whole}"
    once = last.opaque() or [url for url in _urls(last) if _reads_once(url)]
    if once and not has_gil():
        return "threads", UNLOCKED
    if once:
        return "processes", f"processes: not measured, as {once[0]} may be readable only once"
    end = next((run for run in last.chain() if isinstance(run, EachRun) and run.rows), None)
    if end is None:
        return "threads", "threads: no stage here works on single samples"
    steps, source = steps_of(end)
    work = [(item, source.ticket) for item in islice(source, 3 + ROUNDS * 3 * SAMPLES)]
    if len(work) < 3 + 3 * SAMPLES:
        return "threads", "threads: too few samples to measure"
    _apply(steps, work[:1])  # not measured: the first sample imports modules and opens files
    if not has_gil():
        return "threads", UNLOCKED
    alone, cost = (figure / 2 for figure in _apply(steps, work[1:3]))
    size = max(min(int(SECONDS / 3 / (alone + 1e-9)), SAMPLES), 2)
    quicker = more = computing = had_cpu = 0.0
    begin = perf_counter()
    # The best of a few rounds: other programs may use the CPU at times.
    for at in range(3, len(work) - 3 * size + 1, 3 * size):
        one, computed = _apply(steps, work[at : at + size])
        alone, cost = min(alone, one / size), min(cost, computed / size)
        computing = max(computing, computed / one)
        rest = work[at + size : at + 3 * size]
        both, ready, computed = _apply_on_two_threads(steps, rest[::2], rest[1::2])
        quicker, more = max(quicker, 2 * one / ready), max(more, computed / both)
        had_cpu = max(had_cpu, ready / both)
        if more > 1.6 or perf_counter() - begin > SECONDS:
            break
    gain = more if computing > WAITS else quicker
    cost = cost if computing > WAITS else alone
    if cost < CHEAP_SECONDS:
        result = f"a sample takes {cost * 1e6:.0f} µs, less than sending it to another process"
        return "threads", f"threads: {result}"
    result = f"two threads do {gain:.1f} times the work of one ({alone * 1e3:.2f} ms a sample)"
    if gain >= GAIN:
        return "threads", f"threads: {result}"
    reason = "so it holds the interpreter lock"
    if had_cpu < ENOUGH_CPU:
        reason = "as it holds the interpreter lock, or as other programs used the CPU"
    return "processes", f"processes: {result}, {reason}"


def _apply(steps: Any, work: list[Any]) -> tuple[float, float]:
    """Return the seconds that the work took while a CPU was available, and its CPU seconds."""
    queued, begin, computed = _read_queued_s(), perf_counter(), thread_time()
    for item, ticket in work:
        applied(steps, item, ticket)  # errors are reported when the sample is delivered
    computed = thread_time() - computed
    return max(perf_counter() - begin - (_read_queued_s() - queued), computed, 1e-9), computed


def _read_queued_s() -> float:
    """Return how long this thread has waited for a CPU; 0 if the system does not report it."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _apply_on_two_threads(
    steps: Any, one: list[Any], other: list[Any]
) -> tuple[float, float, float]:
    """Run on two threads; return wall seconds, those with a CPU available, and CPU seconds."""
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


def _reads_once(url: str) -> bool:
    return url.startswith("pipe:")


def _find_unsplit(run: Run[Any]) -> str:
    """Return the source that no stage splits between workers, or an empty string."""
    if isinstance(run.stage, SplitByWorker):
        return ""
    parents = list(run.parents())
    listed = type(run) is ShardListRun  # its subclasses split themselves
    if not parents and (listed or isinstance(run, (FunctionRun, IterableRun))):
        return short_repr(run.stage)
    return next(filter(None, map(_find_unsplit, parents)), "")
