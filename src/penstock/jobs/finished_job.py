"""The file that a complete job leaves where its control folder is not kept: ``finished.json``.

It has a hash of the plan, the outputs with size and version, and the figures of the report. The
same call made again finds it and has nothing to do. It is written before the records are deleted,
so a job whose process was killed in between is complete, too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

from penstock.jobs.control_folder import ControlFolder, Record
from penstock.jobs.control_schema import FIGURES, FINISHED, is_finished
from penstock.jobs.output_files import is_there
from penstock.jobs.output_index import index_path, write_index
from penstock.jobs.output_listing import list_outputs
from penstock.jobs.plan import Plan, inside
from penstock.jobs.report import JobReport
from penstock.shards.index.shard_stamps import ends_of
from penstock.storage import MissingFile
from penstock.storage.client.store import parse_json
from penstock.storage.small_files import delete_file, read_file, write_file

FILE = "finished.json"


def finish(
    control: ControlFolder,
    plan: Plan,
    report: JobReport,
    records: Iterable[Record],
    call: str = "",
) -> None:
    """Replace the control folder of a complete job by the file; ``call`` is what no plan has."""
    found = {
        "schema": FINISHED,
        "plan": _identify(plan, call),
        "outputs": _describe_outputs(
            control, {output["name"] for record in records for output in record["outputs"]}
        ),
        "report": {name: getattr(report, name) for name in FIGURES},
    }
    write_file(control.url(FILE), json.dumps(found, separators=(",", ":")).encode())
    control.remove(keep=FILE)


def find_finished(control: ControlFolder, plan: Plan, call: str = "") -> JobReport | None:
    """Return the report of the same job if it is complete and its outputs are unchanged.

    If their index was deleted, it is written again.
    """
    try:
        found = parse_json(read_file(control.url(FILE)))
    except (MissingFile, ValueError):
        return None
    if not is_finished(found) or found["plan"] != _identify(plan, call):
        return None
    outputs = found["outputs"]
    if _describe_outputs(control, {name for name, *_ in outputs}) != outputs:
        return None
    control.remove(keep=FILE)  # what is left by a process that was killed
    if plan.index and not os.path.exists(index_path(plan, control.folder)):
        write_index(plan, control.folder, [name for name, *_ in outputs])
    figures = {name: found["report"][name] for name in FIGURES}
    return JobReport(failed=0, folder=control.folder, name=control.name, **figures)


def forget(control: ControlFolder) -> None:
    """Delete the file of an earlier job: another one begins to replace its outputs."""
    if is_there(control.url(FILE)):
        delete_file(control.url(FILE))


def _describe_outputs(control: ControlFolder, names: set[str]) -> list[list[Any]]:
    """Return name, size and version of the outputs that exist.

    The version of a local shard is the checksum of both ends: an equal call that ran at the same
    time may have written the same shard again.
    """
    there = list_outputs(control.folder, names)
    return [
        [name, there[name].size_bytes, ends_of(inside(control.folder, name)) or there[name].version]
        for name in sorted(names & there.keys())
    ]


def _identify(plan: Plan, call: str) -> str:
    return hashlib.sha256(b"%r\n%b\n%b" % (plan.index, call.encode(), plan.to_json())).hexdigest()
