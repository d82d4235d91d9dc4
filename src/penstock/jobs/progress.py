"""Show the progress of a job: a bar for a person, JSON Lines for a program, or nothing."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from penstock.errors import PipelineError
from penstock.jobs.plan import name_some

EVERY_S = 1.0
"""JSON Lines come at most this often, besides failures and the last one."""

IDLE_S = 30.0
"""While no task ends, JSON Lines come this often."""

RUNNING_NAMED = 8
"""So many of the tasks that run are named."""

DRAWN_S = 0.1
"""A bar is drawn at most this often."""


_EMPTY = {"rate": "", "running": ""}


class Progress:
    """Counts finished tasks; this one shows nothing."""

    def __init__(self) -> None:
        self.total = self.done = self.samples = self.bytes = 0
        self.ran = self.failures = 0
        self.running: list[str] = []
        self.started = time.monotonic()

    @contextlib.contextmanager
    def shown(self, total: int, done: int) -> Iterator[None]:
        """Show progress while the block runs; ``done`` of ``total`` tasks are finished."""
        self.total, self.done, self.started = total, done, time.monotonic()
        self.begin()
        try:
            yield
        finally:
            self.end()

    def finished(self, record: Mapping[str, Any]) -> None:
        """Record that a task has finished."""
        self.done += 1
        self.ran += 1
        self.samples += record["out"]
        self.bytes += sum(output["size"] or 0 for output in record["outputs"])
        self.update()

    def finished_elsewhere(self) -> None:
        """Record that another process has finished a task."""
        self.done += 1
        self.ran += 1
        self.update()

    def failed(self, task: str, message: str) -> None:
        """Record that a task has failed for good."""
        self.failures += 1
        self.update()

    def waiting(self) -> None:
        """Show what runs; called before each wait, so about once a second while no task ends."""

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """The time that the rest takes at the rate so far; None before the first task."""
        left = self.total - self.done - self.failures
        return left * self.seconds / self.ran if self.ran else None

    def begin(self) -> None:
        """Show the start; called before the first task."""

    def update(self) -> None:
        """Show the progress; called after every task."""

    def end(self) -> None:
        """Show the end; called after the last task."""


class JsonProgress(Progress):
    """One JSON object per line: at most one a second, every failure, and one at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self.stream = stream
        self._last = 0.0

    def update(self) -> None:
        if time.monotonic() - self._last >= EVERY_S:
            self._print("progress")

    def waiting(self) -> None:
        if time.monotonic() - self._last >= IDLE_S:
            self._print("progress")

    def failed(self, task: str, message: str) -> None:
        self.failures += 1
        self._print("failed", task=task, message=message)

    def end(self) -> None:
        self._print("end")

    def _print(self, event: str, **more: Any) -> None:
        self._last = time.monotonic()
        left = self.seconds_left
        line = {
            "event": event,
            "tasks": self.total,
            "done": self.done,
            "failed": self.failures,
            "running": self.running[:RUNNING_NAMED],
            "samples": self.samples,
            "bytes": self.bytes,
            "tasks_per_s": round(self.ran / self.seconds, 3),
            "seconds": round(self.seconds, 3),
            "seconds_left": None if left is None else round(left, 1),
            **more,
        }
        print(json.dumps(line), file=self.stream or sys.stderr, flush=True)


class BarProgress(Progress):
    """A bar at the terminal with rates and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None
        self._task: Any = None
        self._drawn = 0.0

    def begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", style="cyan"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[running]}", style="dim"),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,  # no thread: worker processes are forked
        )
        self._bar.start()
        self._task = self._bar.add_task(
            "shards", total=self.total, completed=self.done, rate="", running=""
        )
        self.update()

    def waiting(self) -> None:
        self.update()

    def update(self) -> None:
        if time.monotonic() - self._drawn < DRAWN_S and self.done < self.total:
            return
        self._drawn = time.monotonic()
        rate = f"{self.samples / self.seconds:,.0f} samples/s"
        rate += f" {self.bytes / self.seconds / 1e6:,.1f} MB/s"
        if self.failures:
            rate += f", {self.failures} failed"
        running = name_some(self.running, 2) if self.running else ""
        done = self.done + self.failures
        self._bar.update(self._task, completed=done, rate=rate, running=running)
        self._bar.refresh()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def make_progress(progress: Any) -> Progress:
    """Return a progress: for None a bar at a terminal, for False none, for "json" JSON Lines on
    stderr."""
    if isinstance(progress, Progress):
        return progress
    if progress == "json":
        return JsonProgress()
    if progress is None or progress is True:
        return BarProgress() if sys.stderr.isatty() else Progress()
    if progress is False:
        return Progress()
    raise PipelineError(f"progress= is None, False, 'json' or a Progress, not {progress!r}")
