"""Inspect jobs: their state, verification that they are complete, cleaning up."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.errors import PipelineError, StateError
from penstock.jobs.control_folder import HIDDEN, ControlFolder, Record
from penstock.jobs.finished_job import FILE as FINISHED
from penstock.jobs.output_files import describe_output
from penstock.jobs.plan import inside
from penstock.jobs.report import SkippedSample, digest_of, name_skipped
from penstock.jobs.runner import READ_RECORDS
from penstock.redact import redact
from penstock.storage.listing import list_prefix
from penstock.storage.small_files import list_files
from penstock.storage.urls import local_path, rewrite_url

THREADS = 8


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """How far a job is, from one listing of each folder and the copy of the records."""

    name: str
    tasks: int
    done: int
    failed: dict[str, str]
    """Task → the message of its last failed attempt."""
    claimed: int
    errors: int
    """The errors that handlers skipped in finished tasks whose records were read."""
    skipped: list[SkippedSample]
    """The first samples that were skipped so."""
    unread: int
    """Finished tasks whose records were not read: only the copied ones and 2,000 others are."""


@dataclasses.dataclass(frozen=True)
class Verified:
    """What :func:`verify_job` found; the job is proven complete if there are no ``problems``."""

    name: str
    tasks: int
    inputs: int
    outputs: int
    samples_in: int
    kept: int
    dropped: int
    errors: int
    samples_out: int
    digest: str
    problems: list[str]
    repeated: list[str]
    """Tasks that two processes did with different results; the record has the one in place."""


def find_jobs(folder: str) -> list[str]:
    """Return the names of the jobs whose outputs and records are in the folder."""
    hidden = inside(folder, HIDDEN)
    path = local_path(rewrite_url(hidden))
    if path is not None:
        found = os.scandir(path) if os.path.isdir(path) else ()
        names = [entry.name for entry in found if entry.is_dir()]
        return sorted(n for n in names if os.listdir(os.path.join(path, n)) != [FINISHED])
    prefix = rewrite_url(hidden) + "/"
    parts = (one.url[len(prefix) :].partition("/") for one in list_prefix(prefix))
    return sorted({name for name, _, file in parts if file not in ("", FINISHED)})


def open_job(folder: str, name: str | None = None) -> ControlFolder:
    """Open the control folder of a job; ``name`` is optional if there is only one job."""
    control = _find_job(folder, name)
    if control.read_plan() is None:
        raise PipelineError(f"{redact(folder)!r} has no job of the name {control.name!r}")
    return control


def _find_job(folder: str, name: str | None) -> ControlFolder:
    if name is None:
        names = find_jobs(folder)
        if not names:
            raise PipelineError(
                f"{redact(folder)!r} has no job: pass the folder of a job's outputs"
            )
        if len(names) > 1:
            raise PipelineError(
                f"{redact(folder)!r} has several jobs ({', '.join(names)}): say which by --name"
            )
        (name,) = names
    return ControlFolder(folder, name)


def job_status(folder: str, name: str | None = None) -> JobStatus:
    """Return how far a job is."""
    control = open_job(folder, name)
    plan = control.read_plan() or {}
    tasks = {task["task"] for task in plan["tasks"]}
    there = list_files(control.url("done"))
    there = {name: stamp for name, stamp in there.items() if _task_of(name) in tasks}
    done = set(map(_task_of, there))
    failed = {
        task: str(control.read_failure(task, attempt).get("message"))
        for task, attempt in control.failed_tasks().items()
        if task in tasks - done
    }
    claims = list_files(control.url("claims")).keys() - {"_exclusive"}
    places = {task["task"]: place for place, task in enumerate(plan["tasks"])}
    records = control.known_records(there, READ_RECORDS)
    records.sort(key=lambda record: places.get(record["task"], 0))  # folders have no order
    return JobStatus(
        control.name,
        len(tasks),
        len(done),
        failed,
        len(claims - done - failed.keys()),  # that of a shard that was given up stays
        errors=sum(record.get("errors", 0) for record in records),
        skipped=list(name_skipped(records)),
        unread=len(there) - len(records),
    )


def verify_job(folder: str, name: str | None = None) -> Verified:
    """Verify that a job is complete: read all outputs and compare them with the records."""
    control = open_job(folder, name)
    plan = control.read_plan() or {}
    records, problems = _records(control, plan)
    if problems:  # then the copy must not say that these tasks are done
        control.keep_copies(list_files(control.url("done")))
    problems += _check_inputs(plan, records)
    for record in records.values():
        problems += _check_counts(record)
    outputs = [(task, output) for task, record in records.items() for output in record["outputs"]]
    with ThreadPoolExecutor(THREADS, "penstock-jobs") as pool:
        actual = pool.map(lambda pair: describe_output(control.folder, pair[1]["name"]), outputs)
        for (task, output), found in zip(outputs, actual):
            problems += _check_output(task, output, found)
    every = list(records.values())
    expected = plan["options"].get("samples")  # of a job whose tasks take from all inputs
    if expected is not None and sum(record["in"] or 0 for record in every) != expected:
        problems.append(f"not all of the {expected} samples of the inputs are in the records")

    def total(field: str) -> int:
        return sum(record[field] or 0 for record in every)

    return Verified(
        control.name,
        tasks=len(plan["tasks"]),
        inputs=sum(len(record["inputs"]) for record in every)
        + len(plan["options"].get("inputs", ())),
        outputs=len(outputs),
        samples_in=total("in"),
        kept=total("kept"),
        dropped=total("dropped"),
        errors=sum(record.get("errors", 0) for record in every),
        samples_out=total("out"),
        digest=digest_of(every),
        problems=problems,
        repeated=[task for task, record in records.items() if record.get("replaced")],
    )


def clean_job(folder: str, name: str | None = None) -> str:
    """Delete the control folder of a job; its outputs are kept. Return the name of the job."""
    control = _find_job(folder, name)
    with contextlib.suppress(StateError):  # a damaged plan is deleted, too
        open_job(folder, control.name)
    control.remove()
    return control.name


def _task_of(name: str) -> str:
    """Return the task that a file in ``done/`` belongs to.

    >>> _task_of("train-0001.0123456789abcdef.json")
    'train-0001'
    """
    return name.removesuffix(".json").rpartition(".")[0]


def _records(control: ControlFolder, plan: dict[str, Any]) -> tuple[dict[str, Record], list[str]]:
    """Read the records of all tasks of the plan from ``done/``, not from the copy."""
    names = sorted(list_files(control.url("done")))
    with ThreadPoolExecutor(THREADS, "penstock-jobs") as pool:
        found = list(pool.map(control.read_done, names))
    tasks = {task["task"] for task in plan["tasks"]}
    records: dict[str, Record] = {}
    problems = []
    for name, record in zip(names, found):
        task = _task_of(name)
        if record is None:
            problems.append(f"the record {name} cannot be read")
        elif task not in tasks:
            continue  # of an earlier plan
        elif task in records:
            problems.append(f"the task {task} has two records")
        else:
            records[task] = record
    problems += [f"the task {task} is not done" for task in sorted(tasks - records.keys())]
    return records, problems


def _check_inputs(plan: dict[str, Any], records: dict[str, Record]) -> list[str]:
    """Check that every input of the plan is in exactly one record, in the planned version."""
    problems = []
    for task in plan["tasks"]:
        record = records.get(task["task"])
        if record is not None and record["inputs"] != task["inputs"]:
            problems.append(f"the record of {task['task']} has other inputs than the plan")
    seen: dict[str, str] = {}
    for task, record in records.items():
        for entry in record["inputs"]:
            url = entry["url"]
            if url in seen:
                both = f"{seen[url]} and {task}"
                problems.append(f"the input {redact(url)} is in the records of {both}")
            seen[url] = task
    return problems


def _check_counts(record: Record) -> list[str]:
    task, problems = record["task"], []
    known = record["in"] is not None and record["kept"] is not None
    errors = record.get("errors", 0)  # some are not of a sample that came in: of a damaged header
    if known and not 0 <= record["in"] - record["kept"] - (record["dropped"] or 0) <= errors:
        failed = f", with {errors} errors" if errors else ""
        problems.append(
            f"{task}: {record['in']} samples came in, but {record['kept']} were kept and "
            f"{record['dropped']} dropped{failed}"
        )
    if record["out"] != sum(output["samples"] for output in record["outputs"]):
        problems.append(f"{task}: the outputs do not have {record['out']} samples together")
    return problems


def _check_output(task: str, output: dict[str, Any], found: dict[str, Any]) -> list[str]:
    name = output["name"]
    if found["size"] is None:
        return [f"{task}: the output {name} is missing"]
    if output["sha256"] is None:  # of a command that keeps no checksums
        what = f"{found['size']} bytes, not {output['size']} as recorded"
        return [f"{task}: the output {name} has {what}"] * (found["size"] != output["size"])
    if found["sha256"] != output["sha256"]:
        return [
            f"{task}: the output {name} has the SHA-256 {found['sha256']}, not "
            f"{output['sha256']} as recorded"
        ]
    return []
