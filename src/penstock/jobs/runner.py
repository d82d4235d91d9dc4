"""The driver of a job: which tasks are missing, which must be retried, when to stop."""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from penstock.errors import PenstockError, PipelineError, StorageError
from penstock.handlers import describe
from penstock.jobs.attempt import Attempts, Result, Work
from penstock.jobs.control_folder import ControlFolder, Record
from penstock.jobs.engines.engine import Engine, TaskTimeout, make_engine
from penstock.jobs.finished_job import find_finished, finish, forget
from penstock.jobs.output_files import remove_leftovers
from penstock.jobs.output_index import write_index
from penstock.jobs.output_listing import OutputSet, find_lost
from penstock.jobs.plan import ChangedInput, Plan, Task, inside, name_some
from penstock.jobs.progress import Progress, make_progress
from penstock.jobs.report import JobReport, TaskFailure, summarize
from penstock.redact import redact
from penstock.storage.small_files import make_folder

logger = logging.getLogger("penstock.jobs")

FULL = (errno.ENOSPC, errno.EDQUOT)
"""A full disk is full for every attempt."""
READ_RECORDS = 2000
"""Records of other processes are read for the report up to this number."""
DEATHS = 3
"""The number of further attempts at a task whose worker process died."""


def run_tasks(
    plan: Plan,
    work: Work,
    *,
    folder: str,
    name: str = "job",
    engine: str | Engine = "local",
    jobs: int | None = None,
    retries: int = 2,
    on_error: str = "abort",
    timeout: float | None = None,
    force: bool = False,
    keep_control_folder: bool = True,
    redo_lost: bool = True,
    checksums: bool = True,
    progress: Any = None,
    worker: tuple[int, int] | None = None,
) -> JobReport:
    """Run the tasks of the plan that are not done yet, and return the report.

    ``work(task, write)`` runs one task: it calls ``write(sample)`` for every sample of the output
    shard, or writes to ``write.open(output)`` or ``write.path(output)``; see
    :class:`~penstock.jobs.output_files.TaskWriter`. Outputs appear in ``folder`` when the work has
    returned. Calling it again runs only missing tasks, and those whose outputs are no longer there
    or have another size.

    A failed task is attempted ``retries`` times more. Then ``on_error="skip"`` reports it and
    continues; ``"abort"`` starts no further task, waits for those that run, and raises the error.
    An attempt that takes longer than ``timeout`` seconds is ended and has failed (engines "local"
    and "array"). Three further attempts are made at a task whose worker process dies.
    ``force`` replaces outputs that the job did not make, and accepts a plan that differs from the
    one that was begun: outputs that it no longer writes are deleted. With
    ``keep_control_folder=False``, a complete job leaves its outputs and one small file in
    ``.penstock``, by which the same call finds that there is nothing to do. With
    ``redo_lost=False``, outputs of finished tasks may be moved away. Without ``checksums``, records
    have no SHA-256 of the outputs, which takes longer than writing them. ``progress`` is None (a
    bar at a terminal), False, "json" or a :class:`~penstock.jobs.progress.Progress`.
    """
    if on_error not in ("abort", "skip"):
        raise PipelineError(f"on_error= is 'abort' or 'skip', not {on_error!r}")
    if retries < 0:
        raise PipelineError(f"retries= is at least 0, not {retries!r}")
    options = {} if worker is None else {"worker": worker}
    with contextlib.ExitStack() as stack:
        made = make_engine(engine, jobs, timeout, **options)
        control = ControlFolder(folder, name)
        make_folder(folder)
        plan = plan.with_stamps()
        begun = control.read_plan(ignore_damage=force) is not None
        if not force and not (begun and keep_control_folder):
            if (report := find_finished(control, plan)) is not None:
                return report
            if not begun:
                _refuse_existing(control, plan)
        changed = control.install(plan, force=force)
        if force or not begun:
            forget(control)
        attempts = Attempts(plan, work, control, checksums=checksums)
        shown = make_progress(progress)
        run = _Run(plan, attempts, control, made, retries, on_error, shown, changed)
        stack.callback(made.close)
        try:
            report = run.run(redo_lost=redo_lost)
            if report.complete and not keep_control_folder:
                finish(control, plan, report, run.records.values())
        except StorageError:
            # Another process that makes the same call may have finished the job, with its records.
            found = None if keep_control_folder else find_finished(control, plan)
            if found is None:
                raise
            if plan.index and not plan.in_parts:
                names = [name for task in plan.tasks for name in task.outputs]
                write_index(plan, control.folder, names)
            return found
        return report


def _refuse_existing(control: ControlFolder, plan: Plan) -> None:
    """Raise PipelineError if an output of a new job exists already."""
    existing = OutputSet.of(plan).find(control.folder)
    if not existing or control.read_plan() is not None:
        return  # another process of the same job may have begun meanwhile
    others = f" ({len(existing)} in all)" if len(existing) > 1 else ""
    raise PipelineError(
        f"the output {redact(inside(control.folder, existing[0]))!r} exists already{others} and is "
        "not of this job: remove it, choose another folder, or replace it with force=True "
        "(--force), where there is such an argument"
    )


class _Run:
    """One run of a job."""

    def __init__(
        self,
        plan: Plan,
        attempts: Attempts,
        control: ControlFolder,
        engine: Engine,
        retries: int,
        on_error: str,
        progress: Progress,
        changed: bool,
    ) -> None:
        self.plan, self.control, self.engine = plan, control, engine
        self.attempts = attempts
        self.retries, self.on_error, self.progress = retries, on_error, progress
        self.changed = changed  # the outputs differ from those of the last index
        self.tasks = {task.name: task for task in plan.tasks}
        self.records: dict[str, Record] = {}
        self.failures: dict[str, TaskFailure] = {}
        self.counts: dict[str, int] = {}  # failed attempts by task
        self.elsewhere: set[str] = set()  # tasks that other processes finished meanwhile

    def run(self, *, redo_lost: bool) -> JobReport:
        started = time.perf_counter()
        self.records = self.control.finished_records(self.plan)
        if redo_lost:
            self._forget_lost()
        before, ran = len(self.records), 0
        missing = [task for task in self.plan.tasks if task.name not in self.records]
        retried = self.control.failed_tasks() if missing else {}
        try:
            if missing:
                with self.progress.shown(len(self.tasks), before):
                    self._do(missing)
            ran = len(self.records) - before
            self._read_elsewhere()
        finally:
            if len(self.records) > before:
                with contextlib.suppress(OSError):  # it is only a copy
                    self.control.copy_records(self.plan, self.records)
        overcome = [task for task in {**retried, **self.counts} if task in self.records]
        if overcome:
            self.control.forget_failures(overcome)
        unread = len(self.elsewhere - self.records.keys())
        report = summarize(
            len(self.tasks),
            self.records.values(),
            self.failures.values(),
            unread=unread,
            ran=ran,
            seconds=time.perf_counter() - started,
            folder=self.control.folder,
            name=self.control.name,
        )
        if self.failures and self.on_error == "abort":
            raise self._error()
        if len(self.records) + len(self.failures) == len(self.tasks) and self.plan.index:
            changed = self.changed or report.ran > 0 or bool(self.elsewhere)
            names = _names_of(self.plan, self.records)
            folder, failed = self.control.folder, self.failures
            write_index(self.plan, folder, names, failed=failed, changed=changed)
        return report

    def _forget_lost(self) -> None:
        """Delete the records of tasks with lost or damaged outputs, so that they run again."""
        lost = find_lost(self.control.folder, self.records)
        if not lost:
            return
        logger.warning(
            "outputs of finished tasks are missing or have another size, so these run again: %s",
            name_some(lost),
        )
        names = self.control.done_names(self.plan)
        self.control.delete_records(names[task] for task in lost)
        for task in lost:
            del self.records[task]

    def _read_elsewhere(self) -> None:
        """Read the records of tasks that others finished, unless they are too many."""
        if 0 < len(self.elsewhere) <= READ_RECORDS:
            self.records.update(self.control.read_records(self.plan, self.elsewhere))

    def _do(self, missing: list[Task]) -> None:
        engine = self.engine
        engine.most_deaths = self.retries + DEATHS
        engine.start(self.attempts, len(missing))
        waiting = deque(missing)
        running = 0
        while waiting or running:
            while waiting and (engine.capacity is None or running < engine.capacity):
                task = waiting.popleft()
                engine.submit(task, self.plan.identities[task.name])
                running += 1
            self.progress.running = engine.running
            self.progress.waiting()
            results = engine.finished()
            self.progress.running = engine.running
            for result in results:
                running -= 1
                if self._take(result):
                    waiting.appendleft(self.tasks[result.task])
            if self.failures and self.on_error == "abort":
                waiting.clear()
                running -= len(engine.cancel())

    def _take(self, result: Result) -> bool:
        """Record how an attempt ended; return True if the task is to be attempted again."""
        if result.record is not None:
            self.records[result.task] = result.record
            self.progress.finished(result.record)
            return False
        if result.elsewhere and result.error is None:
            self.elsewhere.add(result.task)
            self.progress.finished_elsewhere()
            return False
        task, error = self.tasks[result.task], result.error
        more = result.deaths if result.lost else 1
        count = self.counts[result.task] = self.counts.get(result.task, 0) + more
        message = describe_error(error)
        if result.lost or isinstance(error, TaskTimeout):
            message += f" (at {name_some(task.inputs or task.outputs)})"
        if result.lost:
            remove_leftovers(self.control.folder, task, in_parts=self.plan.in_parts)
        allowed = self.retries + (DEATHS if result.lost else 0)
        again = count + more - 1 <= allowed and getattr(error, "errno", None) not in FULL
        if not result.elsewhere:
            failure = {
                "schema": "penstock.failure/1",
                "task": task.name,
                "attempt": count,
                "final": not again,
                "inputs": task.describe_inputs(),
                "message": message,
                "details": result.details,
            }
            self.control.record_failure(task, count, failure)
        if again and not result.elsewhere:
            logger.warning("%s (attempt %d of %d)", message, count, allowed + 1)
            return True
        self.failures[task.name] = TaskFailure(task.name, message, task.inputs, error)
        self.progress.failed(task.name, message)
        return False

    def _error(self) -> Exception:
        failure = next(iter(self.failures.values()))
        error = failure.error or PenstockError(failure.message)
        tries = self.counts.get(failure.task, 1)
        error.failed_task = failure.task  # type: ignore[attr-defined]
        inputs = f" ({', '.join(failure.inputs[:3])})" if failure.inputs else ""
        error.add_note(
            f"in the task {failure.task}{inputs}, after {tries} "
            f"attempt{'s' * (tries > 1)}; {len(self.records)} of {len(self.tasks)} tasks are done, "
            "and the same call continues"
        )
        return error


def _names_of(plan: Plan, records: dict[str, Record]) -> Iterator[str]:
    for task in plan.tasks:
        for output in records.get(task.name, {}).get("outputs", ()):
            yield output["name"]


def describe_error(error: Exception | None) -> str:
    """Describe the error in one line, with the notes that say where it happened."""
    if isinstance(error, PenstockError):
        return " ".join([str(error), *getattr(error, "__notes__", ())])
    return "unknown error" if error is None else describe(error)


def is_storage_failure(error: BaseException | None) -> bool:
    """Return whether an error means that a store is full or unreachable."""
    if isinstance(error, StorageError):
        return not isinstance(error, FileNotFoundError | ChangedInput)
    return isinstance(error, OSError) and error.errno in FULL
