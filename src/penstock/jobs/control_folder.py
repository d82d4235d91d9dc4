"""The control folder of a job: what is planned, done, failed and claimed.

It is ``<folder of the outputs>/.penstock/<name of the job>/``::

    plan.json              the plan; the first process that starts the job writes it
    done/TASK.HASH.json    one record per finished task: the commit of that task
    failed/TASK.N.json     one record per failed attempt
    claims/TASK            who works on a task, and how many died at it (engines array and Dask)
    records.jsonl.gz       a copy of all records, so that the next run need not read each

HASH is a hash of everything that decides a task's outputs: function, options, inputs. A listing of
``done/`` therefore says which tasks of a plan are finished, without reading a record.

Two processes may run the same task. Both write complete outputs under the same names, so the only
question is which version the record describes. Where the store can create a file only if there is
none, the second one to finish finds the record; it then compares the record with what is in place,
and corrects it. Where the store cannot, every process compares after writing its record.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.codecs.gzip_fields import gunzip
from penstock.errors import Origin, PipelineError, StateError
from penstock.jobs.control_schema import is_copy, is_record, plan_problem
from penstock.jobs.output_files import describe_output
from penstock.jobs.output_listing import OutputSet
from penstock.jobs.plan import Plan, Task, find_difference, inside, name_some, urls_of_inputs
from penstock.redact import canonical_url, redact
from penstock.storage import MissingFile
from penstock.storage.client.store import parse_json
from penstock.storage.local.files import sweep
from penstock.storage.local.open_folder import OpenFolder
from penstock.storage.small_files import (
    FileStamp,
    create_file,
    creates_exclusively,
    delete_file,
    list_files,
    make_folder,
    read_file,
    write_file,
)
from penstock.storage.urls import local_path, rewrite_url

logger = logging.getLogger("penstock.jobs")

HIDDEN = ".penstock"
FOLDERS = ("done", "failed", "claims")
THREADS = 16
COMPARISONS = 10
"""A record is compared with its outputs again after each correction, at most this often."""

Record = dict[str, Any]


class ControlFolder:
    """The control folder of one job; it is sent to worker processes."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder, self.name = folder or os.curdir, name  # names in it are never URLs
        self.root = inside(inside(self.folder, HIDDEN), name)
        self._exclusive: bool | None = None
        if (path := local_path(rewrite_url(self.root))) is not None:
            _refuse_links(os.path.dirname(path), path, *(f"{path}/{name}" for name in FOLDERS))

    def url(self, *names: str) -> str:
        """Return the URL of a file in the control folder."""
        return inside(self.root, "/".join(names))

    def make(self) -> None:
        """Make the folders, if the storage has folders, and sweep them."""
        for url in (self.root, *map(self.url, FOLDERS)):
            make_folder(url)
            if (path := local_path(rewrite_url(url))) is not None:
                sweep(path)

    # ── the plan ────────────────────────────────────────────────────────────────────────────────

    def read_plan(self, *, ignore_damage: bool = False) -> dict[str, Any] | None:
        """Read the plan of earlier runs as a JSON object; None if there is none.

        A damaged plan is a StateError, or counts as none with ``ignore_damage``.
        """
        data = self._plan_data()
        if not data:
            return None  # an empty file is left by a power failure
        try:
            found = parse_json(data)
            problem = plan_problem(found)
        except ValueError as error:
            problem = str(error)
        if problem is not None and ignore_damage:
            return None
        if problem is not None:
            raise StateError(
                f"the plan of the job is damaged: {problem}. With force=True (--force), where "
                "there is such an argument, it is written again; or remove the folder "
                f"{redact(self.root)!r} and the outputs to begin again",
                origin=Origin(self.url("plan.json")),
            )
        plan: dict[str, Any] = found
        return plan

    def _plan_data(self) -> bytes | None:
        try:
            return read_file(self.url("plan.json"))
        except MissingFile:
            return None

    def install(self, plan: Plan, *, force: bool) -> bool:
        """Write the plan, or check that it is the one that is there; return whether it replaced
        another one.

        Another one is an error that names the difference, unless ``force`` is set or its version
        differs; then the records of tasks that it changes are deleted. So are, with ``force``, the
        outputs that the new plan does not write.
        """
        self.make()
        data = plan.to_json()
        if self._plan_data() == data:
            return False
        old = self.read_plan(ignore_damage=force)
        if old is None:
            if create_file(self.url("plan.json"), data):
                return False
            old = self.read_plan(ignore_damage=force) or {}
        new = json.loads(data)
        difference = find_difference(old, new)
        if difference is None:
            return False
        if not force and old.get("version") == plan.version:
            raise PipelineError(
                f"this job was planned differently: {difference}. With force=True (--force), where "
                "there is such an argument, the affected tasks are done again, and outputs that "
                "are no longer planned are deleted; or remove the folder "
                f"{redact(self.root)!r} and the outputs to begin again"
            )
        self._delete_outputs(self._outputs_left(old, plan), urls_of_inputs(new), force=force)
        keep = set(self.done_names(plan).values())
        self.delete_records(name for name in list_files(self.url("done")) if name not in keep)
        write_file(self.url("plan.json"), data)
        return True

    def _outputs_left(self, old: Mapping[str, Any], plan: Plan) -> list[str]:
        """Return the outputs of the earlier plan that exist and that the new one does not write."""
        before, after = OutputSet.of_json(old), OutputSet.of(plan)
        before.outputs -= after.outputs
        return [name for name in before.find(self.folder) if name not in after]

    def _delete_outputs(self, names: list[str], inputs: set[str], *, force: bool) -> None:
        if not names:
            return
        if read := [name for name in names if canonical_url(inside(self.folder, name)) in inputs]:
            raise PipelineError(
                f"{name_some(read)} in {redact(self.folder)!r} was an output of the earlier plan, "
                "which force=True would delete, and is an input now: choose another folder"
            )
        listed = name_some(names)
        if not force:
            raise PipelineError(
                f"{redact(self.folder)!r} has outputs of the earlier plan that this one does not "
                f"write: {listed}. force=True (--force) deletes them"
            )
        logger.warning("deleting outputs that the changed plan no longer writes: %s", listed)
        path = local_path(rewrite_url(self.folder))
        if path is None:
            _in_parallel(lambda name: delete_file(inside(self.folder, name)), names)
            return
        with OpenFolder(path) as folder:  # the names are from a file
            for name in names:
                folder.delete(name)

    # ── finished tasks ──────────────────────────────────────────────────────────────────────────

    def done_names(self, plan: Plan) -> dict[str, str]:
        """Return the name of each task's record in ``done/``."""
        return {task: f"{task}.{identity}.json" for task, identity in plan.identities.items()}

    def finished(self, plan: Plan) -> dict[str, str]:
        """Return the finished tasks and the versions of their records, from one listing."""
        there = list_files(self.url("done"))
        return {
            task: _version_of(there[name])
            for task, name in self.done_names(plan).items()
            if name in there and there[name].size_bytes != 0
        }

    def finished_records(self, plan: Plan) -> dict[str, Record]:
        """Return the records of all finished tasks, most of them from the copy of the last run.

        If the copy has all of them, ``done/`` of a store is not listed, which would take a request
        for every 1,000 names.
        """
        names = self.done_names(plan)
        copied = {line["name"]: line for line in self._copied()}
        remote = local_path(rewrite_url(self.root)) is None
        if remote and copied.keys() >= set(names.values()):
            return {task: copied[name]["record"] for task, name in names.items()}
        found, missing = {}, []
        for task, version in self.finished(plan).items():
            line = copied.get(names[task])
            if line is not None and line["version"] == version:
                found[task] = line["record"]
            else:
                missing.append(task)
        return {**found, **self.read_records(plan, missing)}

    def known_records(self, there: Mapping[str, FileStamp], most: int) -> list[Record]:
        """Return records that are ``there`` in ``done/``: all copied ones, and ``most`` others."""
        copied = {line["name"]: line for line in self._copied()}
        found, missing = [], []
        for name, stamp in there.items():
            line = copied.get(name)
            if line is not None and line["version"] == _version_of(stamp):
                found.append(line["record"])
            else:
                missing.append(name)
        return [*found, *filter(None, _in_parallel(self.read_done, missing[:most]))]

    def read_records(self, plan: Plan, tasks: Iterable[str]) -> dict[str, Record]:
        """Read the records of these tasks from ``done/``, as far as there are any."""
        names, tasks = self.done_names(plan), list(tasks)
        read = _in_parallel(lambda task: self.read_done(names[task]), tasks)
        return {task: record for task, record in zip(tasks, read) if record is not None}

    def read_done(self, name: str) -> Record | None:
        """Read the record of that name; None if it is missing or damaged: the task runs again."""
        try:
            record = parse_json(read_file(self.url("done", name)))
        except (MissingFile, ValueError):
            return None
        fits = is_record(record) and name.rpartition(".")[0].rpartition(".")[0] == record["task"]
        return record if fits else None

    def copy_records(self, plan: Plan, records: Mapping[str, Record]) -> None:
        """Write the copy that saves the next run from reading every record."""
        names, versions = self.done_names(plan), self.finished(plan)
        self._write_copy(
            {"name": names[task], "version": versions[task], "record": record}
            for task, record in records.items()
            if task in versions
        )

    def delete_records(self, names: Iterable[str]) -> None:
        """Delete records from ``done/``, after their copies."""
        gone = set(names)
        if not gone:
            return
        self._filter_copy(lambda line: line["name"] not in gone)
        _in_parallel(lambda name: delete_file(self.url("done", name)), list(gone))

    def keep_copies(self, there: Mapping[str, FileStamp]) -> None:
        """Remove copies of records that are not ``there`` in ``done/``, in that version."""

        def is_there(line: dict[str, Any]) -> bool:
            stamp = there.get(line["name"])
            return stamp is not None and _version_of(stamp) == line["version"]

        self._filter_copy(is_there)

    def _filter_copy(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        copied = self._copied()
        kept = list(filter(wanted, copied))
        if len(kept) < len(copied):
            self._write_copy(kept)

    def _write_copy(self, lines: Iterable[dict[str, Any]]) -> None:
        data = "\n".join(map(json.dumps, lines)).encode()
        write_file(self.url("records.jsonl.gz"), gzip.compress(data, 1, mtime=0))

    def _copied(self) -> list[dict[str, Any]]:
        """Read the copy; nothing if it is missing or damaged, since it is only a copy."""
        try:
            text = gunzip(read_file(self.url("records.jsonl.gz")))
            # All at once, which takes half the time.
            lines = parse_json(b"[" + b",".join(text.splitlines()) + b"]")
        except (MissingFile, ValueError):
            return []
        return lines if all(map(is_copy, lines)) else []

    def commit(self, task: Task, identity: str, record: Record) -> Record:
        """Record that the task is finished; return the record that counts.

        The outputs are in place under their final names.
        """
        name = f"{task.name}.{identity}.json"
        data = _to_json(record)
        if self.exclusive:
            if create_file(self.url("done", name), data):
                return record
        else:
            write_file(self.url("done", name), data)
        return self._reconcile(name, record)

    @property
    def exclusive(self) -> bool:
        """Whether the store can create a file only if there is none; tried once per process."""
        if self._exclusive is None:
            self._exclusive = creates_exclusively(self.url("claims", "_exclusive"))
        return self._exclusive

    def _reconcile(self, name: str, own: Record) -> Record:
        """Make the record describe the outputs that are in place.

        The last writer of the record or an output also compares last, so in the end they agree.
        """
        for _ in range(COMPARISONS):
            there = self.read_done(name)
            actual = [describe_output(self.folder, entry["name"]) for entry in own["outputs"]]
            as_own = _checksums(own["outputs"]) == _checksums(actual)
            if there is not None and _checksums(there["outputs"]) == _checksums(actual):
                if as_own or there.get("replaced"):
                    return there
                own = there
            elif not as_own:
                own = {**own, "outputs": actual, "out": sum(entry["samples"] for entry in actual)}
            if there is not None or not as_own:
                # Another process did the task as well, with other results: verify reports it.
                own = {**own, "replaced": True}
            write_file(self.url("done", name), _to_json(own))
        return own

    # ── failed tasks ────────────────────────────────────────────────────────────────────────────

    def record_failure(self, task: Task, attempt: int, failure: Record) -> None:
        """Write why an attempt failed; if even that fails, the caller reports it."""
        with contextlib.suppress(OSError):
            write_file(self.url("failed", f"{task.name}.{attempt}.json"), _to_json(failure))

    def failed_tasks(self) -> dict[str, str]:
        """Return the tasks with failed attempts, each with the number of the last attempt."""
        found: dict[str, str] = {}
        for name in sorted(list_files(self.url("failed"))):
            task, _, attempt = name.removesuffix(".json").rpartition(".")
            found[task] = attempt
        return found

    def read_failure(self, task: str, attempt: str) -> Record:
        """Read the record of a failed attempt; {} if there is none."""
        with contextlib.suppress(MissingFile, ValueError):
            found = parse_json(read_file(self.url("failed", f"{task}.{attempt}.json")))
            return found if isinstance(found, dict) else {}
        return {}

    def forget_failures(self, tasks: Iterable[str]) -> None:
        """Delete the records of failed attempts of these tasks."""
        wanted = set(tasks)
        names = [
            name
            for name in list_files(self.url("failed"))
            if name.removesuffix(".json").rpartition(".")[0] in wanted
        ]
        _in_parallel(lambda name: delete_file(self.url("failed", name)), names)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def remove(self, keep: str = "") -> None:
        """Delete the control folder, and ``.penstock`` if it was the last in it.

        A file of the name ``keep`` stays, and the folder with it.
        """
        for folder in FOLDERS:
            names = list(list_files(self.url(folder)))
            _in_parallel(lambda name, folder=folder: delete_file(self.url(folder, name)), names)
        for name in list_files(self.root):
            if name != keep:
                delete_file(self.url(name))
        path = local_path(rewrite_url(self.root))
        if path is None:
            return
        for part in (*(os.path.join(path, folder) for folder in FOLDERS), path):
            with contextlib.suppress(OSError):
                for name in os.listdir(part):
                    if name.endswith(".part"):
                        os.unlink(os.path.join(part, name))
                os.rmdir(part)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(path))


def _refuse_links(*paths: str) -> None:
    """Raise StateError for a link: files of the folder that it leads to would be deleted."""
    for path in paths:
        if os.path.islink(path):
            raise StateError(
                "a folder of a job's state cannot be a link: remove it", origin=Origin(path)
            )


def _version_of(stamp: FileStamp) -> str:
    return f"{stamp.size_bytes} {stamp.version}"


def _checksums(outputs: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(output["name"], output["sha256"]) for output in outputs]


def _to_json(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":"), default=str).encode()


def _in_parallel(function: Any, items: list[str]) -> list[Any]:
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(THREADS, len(items)), "penstock-jobs") as pool:
        return list(pool.map(function, items))
