"""Worker processes on this machine.

When a worker dies, the driver reports its task as lost at once and starts another worker. When the
driver dies, its workers end within a second.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from multiprocessing import connection
from typing import Any, NoReturn

from penstock.errors import PipelineError
from penstock.jobs.attempt import Attempts, Result
from penstock.jobs.engines.engine import WAIT_S, Engine, TaskTimeout, WorkerDied, count_cores
from penstock.jobs.plan import Task
from penstock.memory.freed_memory import keep_freed_memory

PARENT_CHECK_S = 0.5
STOP_S = 5.0


class LocalEngine(Engine):
    """``jobs`` processes of this machine, one per core unless given.

    On Linux, processes are forked, as by PyTorch's DataLoader, so functions need not be importable.
    Elsewhere, and after CUDA was initialized, they are spawned; then a script needs
    ``if __name__ == "__main__":``. ``start_method`` overrides the choice.
    """

    def __init__(self, jobs: int | None = None, *, start_method: str | None = None) -> None:
        self.jobs = jobs or count_cores()
        self.capacity = 2 * self.jobs
        self.start_method = start_method or _start_method()
        self._queue: deque[tuple[Task, str]] = deque()
        self._workers: list[_Worker] = []
        self._attempts: Attempts | None = None
        self._most = self.jobs
        self._timeout_s: float | None = None

    def limit_time(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def start(self, attempts: Attempts, tasks: int) -> None:
        self._attempts = attempts
        self._most = min(self.jobs, max(tasks, 1))
        if multiprocessing.current_process().daemon:
            raise PipelineError(
                "a daemonic process, such as a DataLoader's worker, cannot start processes: pass "
                "jobs=1"
            )
        if self.start_method != "fork":
            _refuse_unpicklable(attempts)

    def submit(self, task: Task, identity: str) -> None:
        self._queue.append((task, identity))
        self._assign()

    def finished(self) -> list[Result]:
        self._assign()
        busy = [worker for worker in self._workers if worker.task is not None]
        if not busy:
            raise PipelineError("no task was submitted")
        waiting: list[Any] = [w.pipe for w in busy] + [w.process.sentinel for w in busy]
        limit = min(worker.deadline for worker in busy) - time.monotonic()
        ready = set(connection.wait(waiting, min(max(limit, 0.0), WAIT_S)))
        ended = [w for w in busy if w.pipe in ready or w.process.sentinel in ready]
        results = [self._collect(worker) for worker in ended]
        now = time.monotonic()
        late = [w for w in busy if w not in ended and w.deadline <= now]
        results += [self._kill(worker) for worker in late]
        self._assign()
        return results

    @property
    def running(self) -> list[str]:
        return [worker.task for worker in self._workers if worker.task is not None]

    def _kill(self, worker: _Worker) -> Result:
        """End a worker whose task takes too long; another one is started for the next task."""
        task = worker.task or ""
        worker.process.kill()
        worker.process.join()
        self._workers.remove(worker)
        worker.pipe.close()
        return Result(
            task,
            error=TaskTimeout(
                f"the task took longer than {self._timeout_s:g} seconds, so its process was "
                "killed: pass a larger timeout= (--timeout), or find out where it hangs"
            ),
        )

    def _collect(self, worker: _Worker) -> Result:
        task, worker.task = worker.task, None
        try:
            result: Result = worker.pipe.recv()
            return result
        except (EOFError, OSError, pickle.UnpicklingError):
            worker.process.join(STOP_S)
            self._workers.remove(worker)
            worker.pipe.close()
            error = WorkerDied(f"the worker process {_how_it_ended(worker.process.exitcode)}")
            return Result(task or "", None, error, lost=True)

    def _assign(self) -> None:
        """Send waiting tasks to idle workers, and start workers until there are enough."""
        while self._queue:
            idle = next((worker for worker in self._workers if worker.task is None), None)
            if idle is None:
                if len(self._workers) >= self._most:
                    return
                idle = self._start_worker()
            task, identity = self._queue[0]
            try:
                idle.pipe.send((task, identity))
            except OSError:  # it died while it was idle
                self._workers.remove(idle)
                idle.pipe.close()
                continue
            self._queue.popleft()
            idle.task = task.name
            if self._timeout_s is not None:
                idle.deadline = time.monotonic() + self._timeout_s

    def _start_worker(self) -> _Worker:
        context: Any = multiprocessing.get_context(self.start_method)
        ours, theirs = context.Pipe()
        inherited = [w.pipe for w in self._workers] + [ours] if self.start_method == "fork" else []
        arguments = (theirs, self._attempts, os.getpid(), inherited)
        process = context.Process(target=_serve, args=arguments, name="penstock-job")
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def cancel(self) -> list[str]:
        names = [task.name for task, _ in self._queue]
        self._queue.clear()
        return names

    def close(self) -> None:
        self._queue.clear()
        for worker in self._workers:
            with contextlib.suppress(OSError):
                if worker.task is None:
                    worker.pipe.send(None)
                else:
                    worker.process.terminate()
        deadline = time.monotonic() + STOP_S
        for worker in self._workers:
            worker.process.join(max(deadline - time.monotonic(), 0.1))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers = []

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker.process.pid for worker in self._workers if worker.process.pid]


class _Worker:
    """The driver's end of one worker process."""

    def __init__(self, process: Any, pipe: connection.Connection) -> None:
        self.process, self.pipe = process, pipe
        self.task: str | None = None
        self.deadline = math.inf


def _serve(
    pipe: connection.Connection,
    attempts: Attempts,
    parent: int,
    inherited: list[connection.Connection],
) -> None:
    """Run tasks in a worker process until the driver sends None."""
    for other in inherited:  # or this process would keep the pipes of others open
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which stops us
    signal.signal(signal.SIGTERM, _stop)  # by an exception, so that half outputs are removed
    keep_freed_memory()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while (message := pipe.recv()) is not None:
            pipe.send(attempts.make(*message))


def _stop(*signal: object) -> NoReturn:
    raise SystemExit(1)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def _start_method() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "spawn"
    # On macOS, system libraries do not survive a fork.
    return "fork" if sys.platform == "linux" else "spawn"


def _refuse_unpicklable(attempts: Attempts) -> None:
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise PipelineError(
            "a job cannot start while its worker processes import the main script: put the call "
            "under 'if __name__ == \"__main__\":'"
        )
    try:
        pickle.dumps(attempts)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PipelineError(
            f"the function must be importable for spawned processes ({error}): define it in a "
            "module, or pass jobs=1"
        ) from error


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else -code
        hint = ": perhaps memory ran out" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"
    return f"ended with status {code}"
