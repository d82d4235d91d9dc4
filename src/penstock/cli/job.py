"""``penstock job``: the state of a job, the proof that it is complete, and cleaning up."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from penstock.cli.arguments import add_options
from penstock.cli.report import Report
from penstock.errors import PipelineError
from penstock.redact import printable

EXAMPLE = (
    "penstock run copy:copy --inputs 'shards/*.tar' --outputs 'out/{stem}.tar' && "
    "penstock job verify out"
)
FAILED, USAGE = 1, 2
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "status: how many shards are done and which failed. verify: read all outputs and prove "
        "that the job is complete; status 1 if it is not. clean: delete what is kept about the "
        "job; its outputs stay."
    )
    parser.add_argument("action", choices=("status", "verify", "clean"))
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the job's outputs")
    parser.add_argument("--name", help="of the job, where the folder has several")
    add_options(parser, "json")


def run(arguments: argparse.Namespace) -> int:
    report = Report(as_json=arguments.json)
    action = {"status": _status, "verify": _verify, "clean": _clean}[arguments.action]
    try:
        status = action(report, arguments.folder, arguments.name)
    except PipelineError as error:
        print(f"penstock: {printable(str(error))}", file=sys.stderr)
        return USAGE
    report.close()
    return status


def _status(report: Report, folder: str, name: str | None) -> int:
    from penstock.jobs.verify import job_status

    found = job_status(folder, name)
    report.figures.update(dataclasses.asdict(found))
    report.say(f"{found.name}: {found.done:,} of {found.tasks:,} shards are done")
    if found.claimed:
        report.say(f"{found.claimed:,} are claimed by running processes")
    print_skipped(report, found, found.unread)
    for task, message in list(found.failed.items())[:SHOWN]:
        report.say(f"failed: {task}: {message}")
    if len(found.failed) > SHOWN:
        report.say(f"and {len(found.failed) - SHOWN:,} more failed")
    return 0


def print_skipped(report: Report, found: Any, unread: int = 0) -> None:
    """Print how many errors handlers skipped, and the first samples with their messages.

    The records of ``unread`` finished shards were not read, and may have more.
    """
    from penstock.tools.units import count

    errors = count(found.errors, "error")
    if unread:
        read = f"in {found.done - unread:,} of {found.done:,} shards"
        report.say(f"the handler skipped at least {errors} ({read})")
    elif found.errors:
        report.say(f"the handler skipped {errors}")
    else:
        return
    for sample in found.skipped[:SHOWN]:
        key = "" if sample.key is None else f"sample {sample.key!r}: "
        report.say(f"skipped: {sample.task}: {key}{sample.message}")
    if found.errors > SHOWN:
        report.say("'penstock job status --json' names more of them")


def _verify(report: Report, folder: str, name: str | None) -> int:
    from penstock.jobs.verify import verify_job
    from penstock.tools.units import count

    found = verify_job(folder, name)
    report.figures.update(dataclasses.asdict(found))
    for task in found.repeated[:SHOWN]:
        report.say(f"note: {task} was done twice with different results; one is in place")
    for problem in found.problems[:SHOWN]:
        report.say(f"problem: {problem}")
    if found.problems:
        report.say(
            f"{found.name}: {count(len(found.problems), 'problem')}; running the job again does "
            "what is missing, and after 'penstock job clean' with force=True (--force) all of it"
        )
        return FAILED
    report.say(
        f"{found.name}: complete; {found.inputs:,} inputs, {found.outputs:,} outputs, "
        f"{found.samples_in:,} samples in = {found.kept:,} kept + {found.dropped:,} dropped"
        f"{f' + {found.errors:,} failed' if found.errors else ''}, {found.samples_out:,} out"
    )
    report.say(f"digest {found.digest}")
    return 0


def _clean(report: Report, folder: str, name: str | None) -> int:
    from penstock.jobs.verify import clean_job

    cleaned = clean_job(folder, name)
    report.figures["cleaned"] = cleaned
    report.say(f"{cleaned}: its records were deleted, its outputs stay")
    return 0
