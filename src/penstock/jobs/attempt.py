"""One attempt at a task: do the work, publish the outputs, write the record."""

from __future__ import annotations

import dataclasses
import pickle
import time
import traceback
from collections.abc import Callable
from typing import Any

from penstock.errors import PenstockError, StorageError
from penstock.handlers import describe
from penstock.jobs.control_folder import ControlFolder, Record
from penstock.jobs.output_files import TaskWriter
from penstock.jobs.output_index import index_path
from penstock.jobs.plan import Plan, Task, check_inputs

TASK_SCHEMA = "penstock.task/1"

Work = Callable[[Task, TaskWriter], Any]


@dataclasses.dataclass(slots=True)
class Result:
    """How an attempt ended: the record of the task, or what went wrong."""

    task: str
    record: Record | None = None
    error: Exception | None = None
    details: str = ""
    lost: bool = False
    """The worker process died, so the cause is unknown."""
    deaths: int = 1
    """How many workers died at the task, if it is lost; another attempt may cost as many."""
    elsewhere: bool = False
    """Another process did the task, or failed at it for good."""


class Attempts:
    """Makes attempts at the tasks of one job; pickled once for every worker process."""

    def __init__(
        self, plan: Plan, work: Work, control: ControlFolder, *, checksums: bool = True
    ) -> None:
        # Without the tasks, which may be many: each is sent when it is due.
        self._settings = dataclasses.replace(plan, tasks=())
        self._index = index_path(plan, control.folder) if plan.index else None
        self.in_parts = plan.in_parts
        self.work, self.control, self.checksums = work, control, checksums

    def make(self, task: Task, identity: str) -> Result:
        """Run the task; errors of the work are returned, not raised."""
        try:
            return Result(task.name, self._do(task, identity))
        except Exception as error:  # noqa: BLE001 - reported with the task, and retried
            return Result(task.name, None, portable(error), traceback.format_exc())

    def _do(self, task: Task, identity: str) -> Record:
        started = time.perf_counter()
        settings, name = self._settings, f"{task.name}.{identity}.json"
        check_inputs(task)
        write = TaskWriter(
            *(task, self.control.folder),
            maxcount=settings.maxcount,
            maxsize=settings.maxsize,
            index_parts=self._parts(),
            remedy=getattr(self.work, "remedy", ""),
            checksums=self.checksums,
        )
        try:
            self.work(task, write)
            write.finish()
            check_inputs(task)
            there = self.control.read_done(name)
            if there is None:
                there = self._publish(write, name)
        except BaseException:
            write.abort()
            raise
        if there is not None:  # another process was faster
            write.abort()
            return there
        return self.control.commit(task, identity, self._describe(task, write, started))

    def _describe(self, task: Task, write: TaskWriter, started: float) -> Record:
        """Return the record of a task whose outputs are published."""
        outputs = write.describe()
        out = sum(output["samples"] for output in outputs)
        samples_in, kept = write.samples_in, write.kept
        if kept is None and samples_in is not None:
            kept = min(samples_in, out)
        dropped = None
        if samples_in is not None and kept is not None:
            dropped = samples_in - kept - write.failed
        described = {
            "schema": TASK_SCHEMA,
            "task": task.name,
            "inputs": task.describe_inputs(),
            "outputs": outputs,
            "in": samples_in,
            "kept": kept,
            "dropped": dropped,
            "errors": write.errors,
            "out": out,
            "seconds": round(time.perf_counter() - started, 6),
            "function": self._settings.function,
        }
        return {**described, "skipped": write.skipped} if write.skipped else described

    def _publish(self, write: TaskWriter, name: str) -> Record | None:
        """Publish the outputs and return the record, or that of a process that published them
        first."""
        try:
            write.publish()
        except StorageError:
            # Azure throws away the blocks of one writer when another one completes the blob.
            there = self.control.read_done(name)
            if there is None:
                raise
            return there
        return None

    def _parts(self) -> Any:
        if self._index is None:
            return None
        from penstock.shards.index.part_files import PartFiles  # loads numpy and pyarrow

        return PartFiles(self._index)


def portable(error: Exception) -> Exception:
    """Return the error in a form that can be pickled to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - any class may fail in its own way
        return PenstockError(describe(error))
    return error
