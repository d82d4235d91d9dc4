"""Record a loader's times and counts while it runs, as a few sums.

Each sum is written by one thread alone: the pipeline's, or the one that asks for batches. So no
lock is needed, and a reader is at most one batch late. Shared collections are copied in one call
before a loop: on free-threaded Python they may change during it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from time import perf_counter, process_time, thread_time
from typing import Any

from penstock.context import cores
from penstock.engine.executor import held_bytes
from penstock.engine.observer import StatsListener
from penstock.loaders.measuring import has_gil
from penstock.loaders.stats.exporters import write_trace
from penstock.loaders.stats.stats import StageStats, Stats
from penstock.stages.run import short_repr

EVENTS = 8192
"""The last pieces of work that a trace shows."""
STEPS, TOLD_STEPS = 1000, 32
"""The last steps of the trainer that are remembered one by one."""
NAME_LETTERS = 40
ONE_IN = 8
"""One in this many small pieces of work is timed in detail."""


Event = tuple[str, float, float, int, int]
"""A piece of work of one thread: its name, begin and length in seconds, thread, items."""


class StageTime:
    """The time that one stage took, in all threads together."""

    __slots__ = (
        "cpu_seconds",
        "items",
        "name",
        "owed_cpu_s",
        "owed_s",
        "pool",
        "seconds",
        "start_seconds",
    )

    def __init__(self, name: str) -> None:
        self.name, self.items, self.seconds, self.cpu_seconds = name, 0, 0.0, 0.0
        self.start_seconds = 0.0
        # of the last stage of a group: the work since its stages were timed
        self.owed_s = self.owed_cpu_s = 0.0
        self.pool = False  # whether threads of the pool work on it


class StatsRecorder(StatsListener):
    """Adds up the times and counts of one epoch of a loader; :meth:`stats` returns them.

    >>> recorder = StatsRecorder()
    >>> list(recorder.watched(iter("ab"))), recorder.steps
    (['a', 'b'], 2)
    """

    def __init__(self) -> None:
        self.begun, self.ended = perf_counter(), 0.0
        self.cpu_begun, self.cpu_ended = process_time(), 0.0
        # in the pipeline's thread
        self.stages: dict[int, StageTime] = {}
        self.read_s = self.pool_wait_s = self.inline_s = self.made_s = self.blocked_s = 0.0
        self.pool_s, self.heaviest = 0.0, "work"
        self.thread_begun = self.thread_cpu_s = 0.0
        self.samples = self.bytes_read = self.batches = self.batch_bytes = 0
        # in the thread that takes the batches
        self.given = self.depth_sum = self.depth = 0
        self.given_bytes = self.first_bytes = 0
        # in the trainer's thread
        self.steps = 0
        self.first_s = self.wait_s = self.step_s = self.last_s = 0.0
        self.last_steps: deque[tuple[float, float]] = deque(maxlen=STEPS)
        self.events: deque[Event] = deque(maxlen=EVENTS)
        self.threads_seen: dict[int, str] = {}
        # of cheap items, by the last ones that were measured
        self.inline_bytes = 0
        self.inline_times: list[float] = []
        self.start: dict[str, float] = {}
        self.start_pool_s = 0.0
        self.idle_begun = self.idle_ended = idle_seconds()

    # ── from the pipeline's thread ──────────────────────────────────────────────────────

    def took(self, row: Any, chunk: Any) -> None:
        number = len(chunk.items)
        self.read_s += chunk.read_seconds
        if not row.reads:
            return
        self.samples += number
        if chunk.first % ONE_IN == 0 or not self.inline_bytes:
            self.inline_bytes = held_bytes(chunk.items[0])
        self.bytes_read += self.inline_bytes * number

    def weigh(self, item: Any) -> None:
        self.inline_bytes = held_bytes(item)

    def worked(self, row: Any, chunk: Any) -> None:
        number, seconds = len(chunk.tickets), chunk.seconds
        self.pool_wait_s += chunk.waited_seconds
        self.pool_s += seconds
        stages = [self._stage(run) for run in row.runs]
        for stage in stages:
            stage.items += number
            stage.pool = True
        if stages:
            stages[-1].owed_s += seconds
            stages[-1].owed_cpu_s += chunk.at_work
            if chunk.times:
                self._share_out(stages, chunk.times)
        thread = chunk.thread
        if thread not in self.threads_seen:
            self.threads_seen[thread] = f"worker {len(self.threads_seen)}"
        self.events.append((self.heaviest, chunk.begin - self.begun, seconds, thread, number))

    def _share_out(self, stages: list[StageTime], times: list[float]) -> None:
        """Divide the work since the last timed chunk between the stages of a group."""
        whole = sum(times) or 1.0
        most, last = -1.0, stages[-1]
        seconds, cpu_seconds, last.owed_s, last.owed_cpu_s = last.owed_s, last.owed_cpu_s, 0.0, 0.0
        for stage, time in zip(stages, times):
            part = time / whole
            stage.seconds += seconds * part
            stage.cpu_seconds += cpu_seconds * part
            if time > most:
                self.heaviest, most = stage.name, time

    @property
    def owed_s(self) -> float:
        """The work that is not divided between stages yet."""
        return sum([stage.owed_s for stage in list(self.stages.values())])

    def stretch(
        self, row: Any, items: int, read_seconds: float, measured: int, times: list[float]
    ) -> None:
        if row.reads:
            self.samples += items
            self.bytes_read += self.inline_bytes * items
        self.read_s += read_seconds
        if measured:
            self.inline_times = [time / measured for time in times]
        missing = [0.0] * max(len(row.runs) - len(self.inline_times), 0)  # another row's were noted
        for run, time in zip(row.runs, self.inline_times + missing):
            stage = self._stage(run)
            stage.items += items
            stage.seconds += time * items
            stage.cpu_seconds += time * items
            self.inline_s += time * items

    def made(self, size_bytes: int, seconds: float) -> None:
        self.batches += 1
        self.made_s += seconds
        self.thread_cpu_s = thread_time() - self.thread_begun
        if self.batches == 1:  # imports and first opens: start-up, not steady state
            self.start = self._pipeline()
            self.thread_begun, self.thread_cpu_s = thread_time(), 0.0
            self.start_pool_s = self.pool_s - self.owed_s  # as the stages have it
            for stage in self.stages.values():
                stage.start_seconds = stage.seconds
        self.batch_bytes += size_bytes
        self._event("batch", perf_counter() - seconds, seconds, threading.get_ident(), "pipeline")

    def blocked(self, seconds: float) -> None:
        self.blocked_s += seconds
        if seconds > 1e-4:
            begin = perf_counter() - seconds
            self._event("queue is full", begin, seconds, threading.get_ident(), "pipeline")

    def _stage(self, run: Any) -> StageTime:
        key = id(run.stage)  # one for the runs of all lanes
        found = self.stages.get(key)
        if found is None:
            names = {stage.name for stage in list(self.stages.values())}
            name = getattr(run.stage, "name", "") or short_repr(run.stage)
            if name in names:
                name = repr(run.stage)[:NAME_LETTERS]
            if name in names:
                name += f" {len(names)}"
            found = self.stages[key] = StageTime(name)
        return found

    # ── from the threads that take batches ──────────────────────────────────────────────

    def gave(self, waiting: int, size_bytes: int, seconds: float) -> None:
        self.given += 1
        self.given_bytes += size_bytes
        if self.given == 1:
            self.first_bytes = size_bytes
        self.depth = waiting
        self.depth_sum += waiting

    def watched(self, stream: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of a stream, and time how long the trainer waits for each and works on
        it."""
        clock, steps = perf_counter, self.last_steps
        got = asked = 0.0
        try:
            while True:
                asked = clock()
                if got:
                    self.step_s += asked - got
                # Not next(): Ctrl-C can be raised after a call, and the item would be lost.
                for item in stream:  # noqa: B007 - used below
                    break
                else:
                    return
                interrupt: BaseException | None = None
                try:
                    now = clock()
                    if got:
                        self.wait_s += now - asked
                        steps.append((now - asked, asked - got))
                    else:
                        self.first_s = now - self.begun
                        self.cpu_begun, self.idle_begun = process_time(), idle_seconds()
                    self.steps += 1
                    self.last_s = now - self.begun
                    got = now
                except BaseException as error:  # noqa: BLE001 - raised after the item
                    interrupt = error
                try:
                    yield item
                finally:
                    if interrupt is not None:  # the state counts the item: it had to come first
                        raise interrupt
                del item  # do not keep a batch that the trainer has released
        finally:
            self.ended, self.cpu_ended = clock(), process_time()
            if got > asked:  # closed while the trainer was working
                self.step_s += self.ended - got
            elif got:  # the end is waited for, too
                self.wait_s += self.ended - asked
            self.idle_ended = idle_seconds()
            close = getattr(stream, "close", None)
            if close is not None:
                close()

    def _event(
        self, name: str, begin: float, seconds: float, thread: int, role: str, items: int = 1
    ) -> None:
        if thread not in self.threads_seen:
            self.threads_seen[thread] = f"{role} {len(self.threads_seen)}"
        self.events.append((name, begin - self.begun, seconds, thread, items))

    # ── reporting ─────────────────────────────────────────────────────────────────────────

    def stats(self, engine: str, workers: int, **known: Any) -> Stats:
        """Return the current figures; ``known`` are those that only the loader has."""
        seconds = (self.ended or perf_counter()) - self.begun
        cpu = (self.cpu_ended or process_time()) - self.cpu_begun
        pipeline = self._pipeline()
        if self.batches > 1:
            pipeline = {
                what: max(spent - self.start.get(what, 0.0), 0.0)
                for what, spent in pipeline.items()
            }
        whole = sum(pipeline.values()) or 1.0
        has_pipeline = bool(pipeline)
        busy = self._busy(self.pool_s, self.start_pool_s, whole * workers) if has_pipeline else None
        read = self.samples if has_pipeline and self.samples else None
        return Stats(
            engine=engine,
            workers=workers,
            seconds=seconds,
            cores=cores(),
            cores_busy=cpu / ((seconds - self.first_s) or 1.0),
            machine_busy=self._machine_busy(seconds - self.first_s),
            interpreter_lock=has_gil(),
            samples=read,
            later_samples=self._later(read),
            batches=self.steps,
            bytes_read=self.bytes_read if has_pipeline and self.samples else None,
            stages=self._told_stages(whole, busy or 0.0),
            pool_busy=busy,
            pipeline=pipeline,
            pipeline_cpu_s=self.thread_cpu_s if self.batches > 1 else None,
            queue_depth=self.depth_sum / self.given if self.given else None,
            first_batch_s=self.first_s,
            trainer_wait_s=self.wait_s,
            trainer_step_s=self.step_s,
            last_waits=tuple(
                round(wait / ((wait + step) or 1.0), 4)
                for wait, step in list(self.last_steps.copy())[-TOLD_STEPS:]
            ),
            trace=functools.partial(write_trace, self),
            jpeg_decoder=_jpeg_decoder(),
            **known,
        )

    def _later(self, read: int | None) -> float | None:
        """Estimate the samples in batches after the first from their bytes, as some are read
        ahead."""
        if read is None or not self.batch_bytes:
            return None
        return read * min((self.given_bytes - self.first_bytes) / self.batch_bytes, 1.0)

    def _told_stages(self, whole: float, busy: float) -> tuple[StageStats, ...]:
        # Work since the stages were last timed is divided between them as it was before.
        stages, owed = list(self.stages.values()), self.owed_s
        shared = self.pool_s - owed
        more = 1 + (owed / shared if shared > 0 else 0.0)
        early = self.batches <= 1
        since = [
            stage.seconds * (more if stage.pool else 1) - (0.0 if early else stage.start_seconds)
            for stage in stages
        ]
        # A chunk begun before the first batch counts after it, so shares are parts of the total.
        pool = sum(time for stage, time in zip(stages, since) if stage.pool) or 1.0
        return tuple(
            StageStats(
                stage.name,
                stage.items,
                stage.seconds * (more if stage.pool else 1),
                stage.cpu_seconds * (more if stage.pool else 1),
                busy * time / pool if stage.pool else min(time / whole, 1.0),
            )
            for stage, time in zip(stages, since)
        )

    def _busy(self, seconds: float, start: float, whole: float) -> float:
        """Return the busy share of a time since the first batch."""
        return min((seconds - (start if self.batches > 1 else 0.0)) / (whole or 1.0), 1.0)

    def _machine_busy(self, seconds: float) -> float | None:
        idle = (self.idle_ended if self.ended else idle_seconds()) or 0.0
        if self.idle_begun is None or not seconds:
            return None
        return min(max(1 - (idle - self.idle_begun) / (seconds * cores()), 0.0), 1.0)

    def _pipeline(self) -> dict[str, float]:
        """Return how the pipeline's thread spent its time; {} before the first batch."""
        if not self.batches:
            return {}
        parts = {"reading": self.read_s, "inline": self.inline_s, "pool": self.pool_wait_s}
        # Estimates of cheap items may pass what was measured as a whole.
        over = max(sum(parts.values()) / (self.made_s or 1.0), 1.0)
        parts = {what: seconds / over for what, seconds in parts.items()}
        rest = max(self.made_s - sum(parts.values()), 0.0)
        return {**parts, "batching": rest, "blocked": self.blocked_s}


def _jpeg_decoder() -> str | None:
    """Describe the decoder of JPEGs if this process has used an image transform."""
    pictures = sys.modules.get("penstock.transforms.any_image")
    return None if pictures is None else pictures.describe_jpeg_decoder()


def idle_seconds() -> float | None:
    """Return the idle time of this process's cores, summed; None if the system does not report
    it."""
    try:
        mine = os.sched_getaffinity(0)
        with open("/proc/stat") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, NameError):  # open is gone when Python ends
        return None
    # the fourth and fifth numbers: idle, and idle while a disk is waited for
    idle = (int(w[4]) + int(w[5]) for w in lines if w[0][3:].isdigit() and int(w[0][3:]) in mine)
    return sum(idle) / ticks
