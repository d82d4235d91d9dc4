"""Which outputs of a job exist, from one listing of their folder.

Three questions are answered with it: whether a new job would replace files that it did not make,
whether outputs of finished tasks were lost, and which outputs a changed plan no longer writes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.jobs.plan import Plan, common_beginning, inside
from penstock.storage.listing import list_prefix
from penstock.storage.replaced_inputs import refuse_replaced_inputs
from penstock.storage.small_files import FileStamp
from penstock.storage.streams import storage_error
from penstock.storage.urls import local_path, rewrite_url

_PART = re.compile(r"((?:[^%]|%%)*)%0?\d*d((?:[^%]|%%)*)", re.DOTALL)
_NUMBERS = re.compile(r"(?=(\d+))")


class OutputSet:
    """The names that the tasks of a plan may write; with ``in_parts``, every number of a pattern.

    >>> "a-007.tar" in OutputSet(["a-%03d.tar"], in_parts=True)
    True
    >>> "a-007.tar" in OutputSet(["b-%03d.tar"], in_parts=True), "a" in OutputSet(["a"])
    (False, True)
    """

    def __init__(self, outputs: Iterable[str], *, in_parts: bool = False) -> None:
        self.outputs = set(outputs)
        self._around = set(map(split_at_number, self.outputs)) if in_parts else None

    @classmethod
    def of(cls, plan: Plan) -> OutputSet:
        outputs = (output for task in plan.tasks for output in task.outputs)
        return cls(outputs, in_parts=plan.in_parts)

    @classmethod
    def of_json(cls, plan: Mapping[str, Any]) -> OutputSet:
        """Return the outputs of a plan as stored in ``plan.json``."""
        outputs = (output for task in plan.get("tasks", ()) for output in task["outputs"])
        in_parts = plan.get("maxcount") is not None or plan.get("maxsize") is not None
        return cls(outputs, in_parts=in_parts)

    def __contains__(self, name: str) -> bool:
        if self._around is None:
            return name in self.outputs
        return any(
            (name[: found.start()], name[found.end(1) :]) in self._around
            for found in _NUMBERS.finditer(name)
        )

    def refuse_inputs(self, folder: str, inputs: Iterable[str], *, force: bool) -> None:
        """Raise PipelineError if an input is one of the outputs.

        Without ``force``, an output that is a link to an input is not looked for: what exists is
        refused anyway.
        """
        path = local_path(rewrite_url(folder))
        root = inside(folder if path is None else os.path.realpath(path), "")

        def is_output(place: str) -> bool:
            return place.startswith(root) and place[len(root) :] in self

        exact = self.outputs if force and self._around is None else ()
        refuse_replaced_inputs((inside(folder, name) for name in exact), inputs, is_output)

    def find(self, folder: str) -> list[str]:
        """Return those that exist, sorted; one listing."""
        return sorted(name for name in list_outputs(folder, self.outputs) if name in self)


def split_at_number(pattern: str) -> tuple[str, str]:
    """Return what is before and after the number in the names of a pattern.

    >>> split_at_number("50%%-%03d.tar")
    ('50%-', '.tar')
    """
    found = _PART.fullmatch(pattern)
    return (found[1] % (), found[2] % ()) if found else (pattern, "")


def find_lost(folder: str, records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the finished tasks of which an output is missing or has another size."""
    names = {output["name"] for record in records.values() for output in record["outputs"]}
    there = list_outputs(folder, names)

    def is_there(output: Mapping[str, Any]) -> bool:
        name = output["name"]
        return name in there and there[name].size_bytes in (None, output["size"])

    return [task for task, record in records.items() if not all(map(is_there, record["outputs"]))]


def list_outputs(folder: str, names: set[str]) -> dict[str, FileStamp]:
    """Return the files next to these outputs, with their sizes and versions if the store has them.

    Of a local folder, only those of ``names`` are read. Of a store, only objects with the
    common beginning of the names are listed.
    """
    if not names:
        return {}
    path = local_path(rewrite_url(folder))
    if path is not None:
        return _list_local(path, names)
    root = inside(rewrite_url(folder), "")
    start = common_beginning(names).partition("%")[0]
    deep = any("/" in name[len(start) :] for name in names)
    return {
        one.url[len(root) :]: FileStamp.of_object(one.size_bytes, one.version)
        for one in list_prefix(root + start, deep=deep)
    }


def _list_local(path: str, names: set[str]) -> dict[str, FileStamp]:
    found: dict[str, FileStamp] = {}
    for folder in {os.path.dirname(name) for name in names}:
        try:
            with os.scandir(os.path.join(path, folder) or os.curdir) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    found[name] = _stamp(entry) if name in names else FileStamp(None, None)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise storage_error("cannot list", os.path.join(path, folder), error) from error
    return found


def _stamp(entry: os.DirEntry[str]) -> FileStamp:
    with contextlib.suppress(FileNotFoundError):  # a link to nothing, or deleted meanwhile
        return FileStamp.of_file(entry.stat())
    return FileStamp(-1, None)
