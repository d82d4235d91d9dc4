"""The interface of engines, and the simplest one."""

from __future__ import annotations

import importlib
import os
import sys
from collections import deque
from typing import Any

from penstock.errors import PenstockError, PipelineError
from penstock.jobs.attempt import Attempts, Result
from penstock.jobs.plan import Task

ENGINES = {
    "local": "penstock.jobs.engines.local:LocalEngine",
    "array": "penstock.jobs.engines.array:ArrayEngine",
    "dask": "penstock.jobs.engines.dask:DaskEngine",
    "ray": "penstock.jobs.engines.ray:RayEngine",
}
"""Name → class, imported when it is needed."""


WAIT_S = 1.0
"""``finished`` returns after about this time even if no task has ended."""


class WorkerDied(PenstockError):
    """A worker process ended in the middle of a task."""


class TaskTimeout(PenstockError):
    """A task took longer than ``timeout``."""


class Engine:
    """Runs tasks. The driver calls ``start`` once and ``close`` at the end.

    ``capacity`` is the number of tasks to submit before the first is finished; None means all. It
    may change while tasks run. An engine that counts the workers that die at a task, also in other
    calls, gives the task up when there are more than ``most_deaths``.
    """

    capacity: int | None = 1
    most_deaths = sys.maxsize

    def limit_time(self, timeout_s: float) -> None:
        """End each task that takes longer, with a TaskTimeout; called before ``start``."""
        raise PipelineError(
            "timeout= (--timeout) is for the engines 'local' and 'array', which can end a task"
        )

    def start(self, attempts: Attempts, tasks: int) -> None:
        """Prepare to run up to ``tasks`` tasks by ``attempts.make(task, identity)``."""
        raise NotImplementedError

    def submit(self, task: Task, identity: str) -> None:
        """Queue a task; tasks may run in any order."""
        raise NotImplementedError

    def finished(self) -> list[Result]:
        """Wait until a submitted task has ended; return the results of all that have.

        Engines that can, return without any after a second, so that progress is shown.
        """
        raise NotImplementedError

    @property
    def running(self) -> list[str]:
        """Return the names of the tasks that run now, as far as they are known."""
        return []

    def cancel(self) -> list[str]:
        """Drop the submitted tasks that have not begun, and return their names."""
        return []

    def close(self) -> None:
        """Stop everything; further results are discarded."""


class InlineEngine(Engine):
    """Runs one task after another in this process."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Task, str]] = deque()
        self._attempts: Attempts | None = None

    def start(self, attempts: Attempts, tasks: int) -> None:
        self._attempts = attempts

    def submit(self, task: Task, identity: str) -> None:
        self._queue.append((task, identity))

    def finished(self) -> list[Result]:
        if self._attempts is None:
            raise PipelineError("the engine was not started")
        return [self._attempts.make(*self._queue.popleft())]

    @property
    def running(self) -> list[str]:
        return [self._queue[0][0].name] if self._queue else []

    def cancel(self) -> list[str]:
        names = [task.name for task, _ in self._queue]
        self._queue.clear()
        return names


def make_engine(
    engine: str | Engine, jobs: int | None, timeout: float | None = None, **options: Any
) -> Engine:
    """Return the engine of that name with ``jobs`` workers, or the :class:`Engine` itself."""
    if timeout is not None and not timeout > 0:
        raise PipelineError(f"timeout= is a number of seconds, more than 0, not {timeout!r}")
    made = engine if isinstance(engine, Engine) else _make_named(engine, jobs, timeout, options)
    if timeout is not None:
        made.limit_time(timeout)
    return made


def _make_named(
    engine: str, jobs: int | None, timeout: float | None, options: dict[str, Any]
) -> Engine:
    if engine not in ENGINES:
        raise PipelineError(
            f"engine= is one of {', '.join(map(repr, ENGINES))} or an Engine, not {engine!r}"
        )
    if jobs is not None and jobs < 1:
        raise PipelineError(f"jobs= is the number of workers, at least 1, not {jobs!r}")
    if engine != "array" and options.get("worker") is not None:
        raise PipelineError(f"worker= (--worker) is for engine='array', not {engine!r}")
    if engine == "local" and jobs == 1 and timeout is None:
        return InlineEngine()
    module, _, name = ENGINES[engine].partition(":")
    made: Engine = getattr(importlib.import_module(module), name)(jobs, **options)
    return made


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
