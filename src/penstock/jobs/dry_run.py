"""What a job would take, estimated from a few of its tasks; nothing is kept."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from typing import Any

from penstock.jobs.attempt import Attempts, Work
from penstock.jobs.control_folder import ControlFolder
from penstock.jobs.engines.engine import Engine, count_cores
from penstock.jobs.plan import Plan, Task
from penstock.jobs.report import JobReport, summarize
from penstock.storage.client.transport import requests_sent
from penstock.storage.urls import local_path, rewrite_url

TASKS = 3
PART_BYTES = 16 << 20
"""Larger outputs are uploaded in parts of about this size, with two requests more."""
RECORD_REQUESTS = 2
"""Per task: is there a record, and writing it."""
CLAIM_REQUESTS = 2
PAGE = 1000
"""Names on a page of a listing."""


def estimate(
    plan: Plan, work: Work, *, folder: str, jobs: int | None, engine: str | Engine
) -> JobReport:
    """Run a few tasks into a temporary folder, and estimate time, requests and bytes of the job."""
    plan = plan.with_stamps()
    sampled = _spread(list(plan.tasks))
    with tempfile.TemporaryDirectory(prefix="penstock-job-") as scratch:
        control = ControlFolder(scratch, "dry-run")
        control.make()
        attempts = Attempts(dataclasses.replace(plan, tasks=sampled, index=False), work, control)
        requests, started = requests_sent(), time.perf_counter()
        records = []
        for task in sampled:
            result = attempts.make(task, "dry-run")
            if result.error is not None:
                result.error.failed_task = task.name  # type: ignore[attr-defined]
                result.error.add_note(f"in the task {task.name} ({', '.join(task.inputs)})")
                raise result.error
            records.append(result.record or {})
        seconds = time.perf_counter() - started
        requests = requests_sent() - requests
    report = summarize(len(plan.tasks), records, folder=folder, seconds=seconds)
    scale = _scale(list(plan.tasks), sampled)
    workers = jobs or (count_cores() if engine != "array" else 1)
    figures: dict[str, Any] = {
        "tasks": len(plan.tasks),
        "measured": len(sampled),
        "jobs": workers,
        "seconds": seconds * scale / workers,
        "requests": round(requests * scale),
        "bytes_in": round(_bytes_in(sampled) * scale),
        "bytes_out": round(report.bytes_out * scale),
        "samples_out": round(report.samples_out * scale),
    }
    if local_path(rewrite_url(folder)) is None:
        figures["requests"] += _store_requests(plan, report, len(sampled), array=engine == "array")
    return dataclasses.replace(report, done=0, digest="", estimate=figures)


def _spread(tasks: list[Task]) -> list[Task]:
    """Choose a few tasks, spread over the job."""
    count = min(TASKS, len(tasks))
    return [tasks[number * len(tasks) // count] for number in range(count)]


def _bytes_in(tasks: list[Task]) -> int:
    return sum(stamp.size_bytes or 0 for task in tasks for stamp in task.stamps)


def _scale(tasks: list[Task], sampled: list[Task]) -> float:
    """Return the ratio of the job to the sample, by bytes if these are known."""
    part = _bytes_in(sampled)
    return _bytes_in(tasks) / part if part else len(tasks) / len(sampled)


def _store_requests(plan: Plan, report: JobReport, measured: int, *, array: bool) -> int:
    """Return the number of requests for writing to a remote store."""
    size = report.bytes_out / measured
    upload = 1 if size < PART_BYTES else math.ceil(size / PART_BYTES) + 2
    each = upload + RECORD_REQUESTS + (CLAIM_REQUESTS if array else 0)
    return len(plan.tasks) * each + math.ceil(len(plan.tasks) / PAGE) + 3
