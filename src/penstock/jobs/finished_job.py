"""The file that a complete job leaves where its control folder is not kept: ``finished.json``.

It has a hash of the plan, the names and sizes of the outputs, and the figures of the report. The
same call made again finds it and has nothing to do. It is written before the records are deleted,
so a job whose process was killed in between is complete, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from penstock.jobs.control_folder import ControlFolder, Record
from penstock.jobs.output_files import is_there
from penstock.jobs.output_listing import list_outputs
from penstock.jobs.plan import Plan
from penstock.jobs.report import JobReport
from penstock.storage import MissingFile
from penstock.storage.small_files import delete_file, read_file, write_file

SCHEMA = "penstock.finished/1"
FILE = "finished.json"
FIGURES = (
    *("tasks", "done", "samples_in", "kept", "dropped", "errors", "samples_out", "bytes_out"),
    "digest",
)


def finish(
    control: ControlFolder,
    plan: Plan,
    report: JobReport,
    records: Iterable[Record],
    call: str = "",
) -> None:
    """Replace the control folder of a complete job by the file; ``call`` is what no plan has."""
    found = {
        "schema": SCHEMA,
        "plan": _identify(plan, call),
        "outputs": {
            output["name"]: output["size"] for record in records for output in record["outputs"]
        },
        "report": {name: getattr(report, name) for name in FIGURES},
    }
    write_file(control.url(FILE), json.dumps(found, separators=(",", ":")).encode())
    control.remove(keep=FILE)


def find_finished(control: ControlFolder, plan: Plan, call: str = "") -> JobReport | None:
    """Return the report of the same job if it is complete and its outputs are still there."""
    try:
        found: Any = json.loads(read_file(control.url(FILE)))
        if found["schema"] != SCHEMA or found["plan"] != _identify(plan, call):
            return None
        outputs, figures = dict(found["outputs"]), {name: found["report"][name] for name in FIGURES}
    except (MissingFile, ValueError, LookupError, TypeError):
        return None
    sizes = list_outputs(control.folder, set(outputs))
    if any(name not in sizes or sizes[name] not in (None, outputs[name]) for name in outputs):
        return None
    control.remove(keep=FILE)  # what is left by a process that was killed
    return JobReport(failed=0, folder=control.folder, name=control.name, **figures)


def forget(control: ControlFolder) -> None:
    """Delete the file of an earlier job: another one begins to replace its outputs."""
    if is_there(control.url(FILE)):
        delete_file(control.url(FILE))


def _identify(plan: Plan, call: str) -> str:
    return hashlib.sha256(b"%r\n%b\n%b" % (plan.index, call.encode(), plan.to_json())).hexdigest()
