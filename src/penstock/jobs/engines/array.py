"""Independent processes that share only the folder of the outputs.

Each process runs the tasks that no other has finished. Processes begin at different positions in
the list of tasks, so that they rarely meet, and each has a file in ``claims/`` while it works on a
task. A claim only saves work. Its owner rewrites it every few seconds; another process takes the
task over when the claim has not changed for several seconds by its clock, so that the clocks of two
machines are never compared. A claim that is taken over counts how many processes died at the task;
after too many it stays, and no process tries the task again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from penstock import env
from penstock.errors import PenstockError, PipelineError
from penstock.jobs.attempt import Attempts, Result
from penstock.jobs.control_folder import ControlFolder
from penstock.jobs.engines.engine import Engine, WorkerDied
from penstock.jobs.engines.local import LocalEngine
from penstock.jobs.output_files import remove_leftovers
from penstock.jobs.plan import Task
from penstock.storage import MissingFile
from penstock.storage.client.store import parse_json
from penstock.storage.small_files import (
    FileStamp,
    create_file,
    delete_file,
    list_files,
    read_file,
    write_file,
)

BEAT_S = 2.5
"""How often the owner of a claim rewrites it."""
STALE_S = 7.5
"""A claim that did not change for this long belongs to a dead process."""
POLL_S = 1.0
REFRESH_S = 15.0
GOLDEN = 0.6180339887498949


class ArrayEngine(Engine):
    """One of several independent processes: number ``worker[0]`` of ``worker[1]``.

    Without ``worker`` the numbers come from the variables of SLURM, PBS, LSF, SGE, Kubernetes
    indexed jobs or AWS Batch. They only decide where a process begins: there may be more or fewer
    processes at any time.
    """

    capacity = None

    def __init__(self, jobs: int | None = None, *, worker: tuple[int, int] | None = None) -> None:
        if jobs not in (None, 1):
            raise PipelineError(
                f"a process of the array engine runs one task at a time: start {jobs} processes "
                f"instead of passing jobs={jobs}"
            )
        if worker is not None and not 0 <= worker[0] < worker[1]:
            raise PipelineError(
                f"a worker is K of N with K from 0 to N-1, not {worker[0]}/{worker[1]}"
            )
        self.worker = worker or find_worker()
        self._tasks: dict[str, tuple[Task, str]] = {}
        self._attempts: Attempts | None = None
        self._inner: LocalEngine | None = None
        self._taken: tuple[Task, str] | None = None
        self._before_sigterm: Any = None

    def limit_time(self, timeout_s: float) -> None:
        self._inner = LocalEngine(1)
        self._inner.limit_time(timeout_s)

    @property
    def running(self) -> list[str]:
        return [] if self._attempts is None or self._claims.own is None else [self._claims.own]

    def start(self, attempts: Attempts, tasks: int) -> None:
        self._attempts = attempts
        if self._inner is not None:
            self._inner.start(attempts, tasks)
        with contextlib.suppress(ValueError):  # not the main thread
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                # A process that is preempted deletes its claim, so that this is not a death.
                self._before_sigterm = signal.signal(signal.SIGTERM, _stop)
        control = attempts.control
        self._claims = Claims(control, in_parts=attempts.in_parts)
        self._old_failures = set(list_files(control.url("failed")).items())
        self._seen_at = float("-inf")
        self._begun = False

    def submit(self, task: Task, identity: str) -> None:
        self._tasks[task.name] = (task, identity)

    def cancel(self) -> list[str]:
        names = list(self._tasks)
        self._tasks.clear()
        if self._taken is not None:
            names.append(self._taken[0].name)
            self._taken = None
            self._claims.release()
        return names

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        if self._attempts is not None:
            self._claims.close()
        if self._before_sigterm is not None:
            signal.signal(signal.SIGTERM, self._before_sigterm)

    def finished(self) -> list[Result]:
        if self._attempts is None or not (self._tasks or self._taken):
            raise PipelineError("no task was submitted")
        if self._taken is not None:
            taken, self._taken = self._taken, None
            return [self._do(*taken)]
        while True:
            if time.monotonic() - self._seen_at > REFRESH_S and (found := self._look()):
                return found
            for task, identity in self._in_order():
                if self._claims.take(task, identity):
                    del self._tasks[task.name]
                    self._taken = (task, identity)
                    return []  # so that progress names it before it begins
            # All that is left is claimed: wait until it is done, or its owner is dead.
            time.sleep(POLL_S * random.uniform(0.5, 1.0))
            if found := self._look():
                return found

    def _do(self, task: Task, identity: str) -> Result:
        control, deaths = self._claims.control, self._claims.deaths
        try:
            if control.read_done(f"{task.name}.{identity}.json") is not None:
                return Result(task.name, elsewhere=True)
            if deaths > self.most_deaths:
                self._claims.give_up()
                return given_up(task, deaths)
            if self._attempts is None:
                raise PipelineError("the engine was not started")
            if self._inner is None:
                return self._attempts.make(task, identity)
            self._inner.submit(task, identity)
            while not (results := self._inner.finished()):
                pass
            return results[0]
        finally:
            self._claims.release()

    def _in_order(self) -> Iterator[tuple[Task, str]]:
        """Yield the tasks that no live process has claimed, from this process's position on."""
        if not self._begun:
            self._begun = True
            number, count = self.worker
            tasks = list(self._tasks.items())
            # Without a count, multiples of the golden ratio spread any number of processes.
            begin = int((number / count if count else number * GOLDEN % 1) * len(tasks))
            self._tasks = dict(tasks[begin:] + tasks[:begin])
        for name, pair in self._tasks.items():
            if not self._claims.is_live(name):
                yield pair

    def _look(self) -> list[Result]:
        """Return what other processes have finished or failed, from three listings."""
        self._seen_at = time.monotonic()
        control = self._claims.control
        self._claims.look()
        done = list_files(control.url("done"))
        results = [
            Result(name, elsewhere=True)
            for name, (_, identity) in self._tasks.items()
            if f"{name}.{identity}.json" in done
        ]
        for result in results:
            del self._tasks[result.task]  # before its failures are read: a task has one result
        for name, stamp in list_files(control.url("failed")).items():
            if (name, stamp) not in self._old_failures:
                results += self._failed_elsewhere(name)
        return results

    def _failed_elsewhere(self, name: str) -> list[Result]:
        task, _, attempt = name.removesuffix(".json").rpartition(".")
        if task not in self._tasks:
            return []
        failure = self._claims.control.read_failure(task, attempt)
        if not failure.get("final"):
            return []
        error = PenstockError(str(failure.get("message")))
        del self._tasks[task]
        return [Result(task, None, error, elsewhere=True)]


def _stop(*received: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def deaths_before(control: ControlFolder, task: Task, identity: str) -> int:
    """Return how many processes died at a task whose claim nobody keeps; 0 if it has none."""
    found = _read_claim(control, task)
    if found is None or found.get("task", identity) != identity:
        return 0
    before = found.get("deaths", 0)  # claims of earlier versions do not count them
    return (not found.get("given_up")) + (before if isinstance(before, int) else 0)


def given_up(task: Task, deaths: int) -> Result:
    """Return the result of a task at which too many processes died."""
    error = WorkerDied(
        f"{deaths} processes died at this task, so it is given up: find out what kills them "
        "(memory?), or try again with more retries= (--retries)"
    )
    return Result(task.name, error=error, lost=True, deaths=deaths)


def _read_claim(control: ControlFolder, task: Task) -> dict[str, Any] | None:
    try:
        found = parse_json(read_file(control.url("claims", task.name)))
    except (MissingFile, ValueError):
        return None
    return found if isinstance(found, dict) else None


class Claims:
    """The claims of all processes at the last listing, and the claim of this one."""

    def __init__(self, control: ControlFolder, *, in_parts: bool = False) -> None:
        self.control, self._in_parts = control, in_parts
        self._owner = os.urandom(8).hex()
        self._seen: dict[str, tuple[FileStamp, float]] = {}  # by task: since when it is unchanged
        self.own: str | None = None
        self.deaths = 0  # of processes that had claimed the own task before
        self._identity = ""
        self._beat = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="penstock-claim")
        self._thread.start()

    def take(self, task: Task, identity: str = "") -> bool:
        """Claim a task; return False if another live process has it.

        ``identity`` is that of the task: after a change of the function or the inputs, deaths are
        counted anew.
        """
        self._beat += 1
        name, self.deaths, self._identity = task.name, 0, identity
        if self.control.exclusive and name not in self._seen:
            if not create_file(self._url(name), self._data()):
                self.look()
                return False
        else:  # its owner seems dead, or the store cannot refuse
            if self.is_live(name):
                return False
            self.deaths = deaths_before(self.control, task, identity)
            if self.deaths:
                remove_leftovers(self.control.folder, task, in_parts=self._in_parts)
            write_file(self._url(name), self._data())
        with self._lock:
            self.own = name
        return True

    def release(self) -> None:
        """Delete the claim: the task is finished, or has failed."""
        with self._lock:
            task, self.own = self.own, None
        if task is not None:
            self._seen.pop(task, None)
            with contextlib.suppress(OSError):
                delete_file(self._url(task))

    def give_up(self) -> None:
        """Leave the claim for later processes: it says that nobody died of it this time."""
        with self._lock:
            if self.own is not None:
                write_file(self._url(self.own), self._data(given_up=True))
            self.own = None

    def look(self) -> None:
        """List all claims, and record which have changed."""
        now = time.monotonic()
        listed = list_files(self.control.url("claims"))
        listed.pop("_exclusive", None)
        self._seen = {
            task: before
            if (before := self._seen.get(task)) is not None and before[0] == stamp
            else (stamp, now)
            for task, stamp in listed.items()
            if task != self.own
        }

    def is_live(self, task: str) -> bool:
        """Return whether a live process had claimed the task at the last listing."""
        seen = self._seen.get(task)
        return seen is not None and time.monotonic() - seen[1] < STALE_S

    def close(self) -> None:
        """Stop, and delete the claim of this process."""
        self._stop.set()
        self._thread.join()
        self.release()

    def _url(self, task: str) -> str:
        return self.control.url("claims", task)

    def _data(self, given_up: bool = False) -> bytes:
        data = {
            "owner": self._owner,
            "beat": self._beat,
            "task": self._identity,
            "deaths": self.deaths,
            "given_up": given_up,
        }
        return json.dumps(data).encode()

    def _keep(self) -> None:
        while not self._stop.wait(BEAT_S):
            with self._lock, contextlib.suppress(OSError):
                if self.own is not None:
                    self._beat += 1
                    write_file(self._url(self.own), self._data())


@dataclasses.dataclass(frozen=True, slots=True)
class Scheduler:
    """The variables that a scheduler sets: this process's number, and which others there are."""

    number: str
    first: str = ""
    last: str = ""
    step: str = ""
    count: str = ""
    lowest: int = 0

    def find(self) -> tuple[int, int] | None:
        """Return number, from 0, and count, 0 if it is unknown; None if there is no number."""
        number = _integer(self.number)
        if number is None or number < self.lowest:
            return None
        first, step = _integer(self.first) or self.lowest, _integer(self.step) or 1
        last, count = _integer(self.last), _integer(self.count)
        if count is None and last is not None:
            count = (last - first) // step + 1
        place = (number - first) // step
        return (place, count) if count is not None and 0 <= place < count else (number, 0)


SCHEDULERS = [
    Scheduler(
        "SLURM_ARRAY_TASK_ID",
        first="SLURM_ARRAY_TASK_MIN",
        step="SLURM_ARRAY_TASK_STEP",
        count="SLURM_ARRAY_TASK_COUNT",
    ),
    Scheduler("PBS_ARRAY_INDEX"),
    Scheduler("PBS_ARRAYID"),
    Scheduler(
        "SGE_TASK_ID",
        first="SGE_TASK_FIRST",
        last="SGE_TASK_LAST",
        step="SGE_TASK_STEPSIZE",
        lowest=1,
    ),
    Scheduler("LSB_JOBINDEX", last="LSB_JOBINDEX_END", step="LSB_JOBINDEX_STEP", lowest=1),
    Scheduler("JOB_COMPLETION_INDEX"),
    Scheduler("AWS_BATCH_JOB_ARRAY_INDEX", count="AWS_BATCH_JOB_ARRAY_SIZE"),
]


def find_worker() -> tuple[int, int]:
    """Return this process's number among those that a scheduler started, and their count.

    Some schedulers do not set the count: then it is 0.
    """
    for scheduler in SCHEDULERS:
        found = scheduler.find()
        if found is not None:
            return found
    raise PipelineError(
        "the array engine needs to know which process this is: pass --worker K/N (worker=(K, N)), "
        "or start it by SLURM, PBS, LSF, SGE, a Kubernetes indexed Job or AWS Batch"
    )


def _integer(name: str) -> int | None:
    """Return the variable as a number; None if it is unset, or a word such as "undefined"."""
    with contextlib.suppress(ValueError):
        return env.integer(name) if name else None
    return None
