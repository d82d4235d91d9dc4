"""How the workers of a cluster run a task: each worker process unpickles the job once."""

from __future__ import annotations

import json
import os
import pickle
import sys
import sysconfig
import threading
from typing import Any

from penstock.errors import optional
from penstock.jobs.attempt import Attempts, Result
from penstock.jobs.control_folder import ControlFolder
from penstock.jobs.engines.array import deaths_before, given_up
from penstock.jobs.output_files import remove_leftovers
from penstock.jobs.plan import Task
from penstock.memory.freed_memory import keep_freed_memory
from penstock.storage.small_files import delete_file, list_files, write_file

KEPT = 4
"""Jobs that a worker keeps; a cluster may serve several drivers."""

PICKLERS = {"dask": "cloudpickle", "ray": "ray.cloudpickle"}
"""The module of each package that pickles functions by value."""

_jobs: dict[str, Attempts] = {}
_lock = threading.Lock()


class PackedJob:
    """A job as bytes, and a name by which a worker finds the one that it has unpickled."""

    def __init__(self, attempts: Attempts, extra: str) -> None:
        self.name = os.urandom(8).hex()
        self.data = _pickle(attempts, extra)


def make_attempt(
    name: str, data: bytes, task: Task, identity: str, most_deaths: int | None = None
) -> Result:
    """Run a task of a packed job in this process.

    With ``most_deaths``, a claim counts the workers that died at it, and more of them end it.
    """
    with _lock:
        attempts = _jobs.get(name)
        if attempts is None:
            keep_freed_memory()
            attempts = pickle.loads(data)  # written by our own driver
            while len(_jobs) >= KEPT:
                del _jobs[next(iter(_jobs))]
            _jobs[name] = attempts
    if most_deaths is None:
        return attempts.make(task, identity)
    control = attempts.control
    claim, deaths = control.url("claims", task.name), deaths_before(control, task, identity)
    if deaths > most_deaths:
        return given_up(task, deaths)
    if deaths:
        remove_leftovers(control.folder, task, in_parts=attempts.in_parts)
    write_file(claim, json.dumps({"task": identity, "deaths": deaths}).encode())
    try:
        return attempts.make(task, identity)
    finally:
        delete_file(claim)


def forget_claims(control: ControlFolder) -> None:
    """Delete the claims of an earlier call: its workers may have ended with their cluster."""
    for name in list_files(control.url("claims")):
        if name != "_exclusive":
            delete_file(control.url("claims", name))


def _pickle(attempts: Attempts, extra: str) -> bytes:
    """Pickle the job; functions of the user's modules by value, since workers may lack those."""
    cloudpickle = optional(PICKLERS[extra], extra, f"the engine {extra}")
    function = getattr(attempts.work, "function", attempts.work)
    function = getattr(function, "function", function)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    own = module is not None and module.__name__ != "__main__" and not _installed(module)
    if own:
        cloudpickle.register_pickle_by_value(module)
    try:
        data: bytes = cloudpickle.dumps(attempts)
    finally:
        if own:
            cloudpickle.unregister_pickle_by_value(module)
    return data


def _installed(module: Any) -> bool:
    """Return whether every worker has the module: this library, or an installed package."""
    if module.__name__.partition(".")[0] == "penstock":
        return True
    path = os.path.abspath(getattr(module, "__file__", None) or "")
    paths = sysconfig.get_paths()
    return path.startswith((paths["stdlib"], paths["purelib"], paths["platlib"]))
