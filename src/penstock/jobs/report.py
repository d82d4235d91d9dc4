"""The report of a job."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

SKIPPED_NAMED = 100


@dataclasses.dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that failed: the message of its last error, and its inputs."""

    task: str
    message: str
    inputs: tuple[str, ...] = ()
    error: Exception | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class SkippedSample:
    """A sample that failed and that the handler skipped; ``key`` is None if it is not known."""

    task: str
    key: str | None
    message: str


@dataclasses.dataclass(frozen=True)
class JobReport:
    """The state of a job at the end of a run.

    ``done`` counts the finished tasks of all runs, ``ran`` those of this one. ``samples_in``,
    ``kept``, ``dropped``, ``errors`` and ``samples_out`` are sums over the finished tasks.
    ``errors`` counts what a handler skipped; ``skipped`` names the first of them. ``digest`` is the
    SHA-256 of the sorted lines ``name sha256`` of all outputs: equal for every engine, any number
    of workers and restarts, if the work is deterministic.
    """

    tasks: int
    done: int
    failed: int
    samples_in: int
    kept: int
    dropped: int
    samples_out: int
    bytes_out: int
    digest: str
    ran: int = 0
    seconds: float = 0.0
    failures: tuple[TaskFailure, ...] = ()
    folder: str = ""
    name: str = ""
    errors: int = 0
    skipped: tuple[SkippedSample, ...] = ()
    estimate: Mapping[str, Any] | None = None
    """With ``dry_run=True``: what the whole job would take."""

    @property
    def complete(self) -> bool:
        """Whether every task is finished."""
        return self.done == self.tasks

    def as_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        described = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("failures", "skipped") and getattr(self, field.name) is not None
        }
        described["skipped"] = [dataclasses.asdict(sample) for sample in self.skipped]
        described["failures"] = [
            {"task": failure.task, "message": failure.message, "inputs": list(failure.inputs)}
            for failure in self.failures
        ]
        return described


def summarize(
    tasks: int,
    records: Iterable[Mapping[str, Any]],
    failures: Iterable[TaskFailure] = (),
    *,
    unread: int = 0,
    **more: Any,
) -> JobReport:
    """Return the report of a job with these records.

    ``unread`` more tasks are done, whose records were not read: then there is no digest.
    """
    records, failures = list(records), tuple(failures)

    def total(name: str) -> int:
        return sum(record[name] or 0 for record in records)

    return JobReport(
        tasks,
        len(records) + unread,
        len(failures),
        samples_in=total("in"),
        kept=total("kept"),
        dropped=total("dropped"),
        samples_out=total("out"),
        bytes_out=sum(output["size"] or 0 for r in records for output in r["outputs"]),
        digest="" if unread else digest_of(records),
        failures=failures,
        errors=sum(record.get("errors", 0) for record in records),
        skipped=name_skipped(records),
        **more,
    )


def name_skipped(records: Iterable[Mapping[str, Any]]) -> tuple[SkippedSample, ...]:
    """Return the first samples that handlers skipped, as far as the records name them."""
    every = (
        SkippedSample(record["task"], sample["key"], sample["message"])
        for record in records
        for sample in record.get("skipped", ())
    )
    return tuple(itertools.islice(every, SKIPPED_NAMED))


def digest_of(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of the sorted lines ``name sha256`` of all outputs."""
    lines = sorted(
        f"{output['name']} {output['sha256']}\n" for r in records for output in r["outputs"]
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()
