"""Check the JSON files of a control folder when they are read.

They are shared by all processes of a job, often on a shared disk, and name files that a job writes
and deletes. So their form is checked, and that every output is inside the job's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

SCHEMA = "penstock.plan/1"
FINISHED = "penstock.finished/1"
FIGURES = (
    *("tasks", "done", "samples_in", "kept", "dropped", "errors", "samples_out", "bytes_out"),
    "digest",
)
"""What a finished job says of its report."""
Check = Callable[[Any], bool]
Form = Sequence[tuple[str, bool, Check]]


def leaves_folder(name: str) -> bool:
    """Return whether a name may be outside the folder that it is relative to.

    In a folder that is a ``file:`` URL, names are percent-decoded.

    >>> leaves_folder("a/b.tar"), leaves_folder("../b.tar"), leaves_folder("%2e%2e/b.tar")
    (False, True, True)
    """
    names = (name, unquote(name)) if "%" in name else (name,)
    return any(one[:1] == "/" or ".." in one.split("/") or "\0" in one for one in names)


def plan_problem(plan: Any) -> str | None:
    """Return what is wrong with the JSON value of a plan; None if it can be used.

    Keys that earlier versions did not write may be missing.
    """
    if not isinstance(plan, dict):
        return "it is not a JSON object"
    if wrong := _wrong_key(plan, _PLAN):
        return wrong
    names: set[str] = set()
    for task in plan["tasks"]:
        if not isinstance(task, dict):
            return f"a task cannot be {task!r:.100}"
        if wrong := _wrong_key(task, _TASK):
            return f"in a task, {wrong}"
        if task["task"] in names:
            return f"it has two tasks {task['task']!r:.100}"
        names.add(task["task"])
    return None


def is_record(record: Any) -> bool:
    """Return whether a JSON value is the record of a finished task."""
    return isinstance(record, dict) and _wrong_key(record, _RECORD) is None


def is_copy(line: Any) -> bool:
    """Return whether a JSON value is the copy of a record."""
    return isinstance(line, dict) and _wrong_key(line, _COPY) is None


def is_call(call: Any) -> bool:
    """Return whether a JSON value describes a call of a command."""
    return isinstance(call, dict) and _wrong_key(call, _CALL) is None


def is_finished(found: Any) -> bool:
    """Return whether a JSON value describes a finished job."""
    return isinstance(found, dict) and _wrong_key(found, _FINISHED) is None


def _form(checks: Mapping[str, Check]) -> Form:
    """Return the keys of an object with their checks; those that end in ``!`` are required."""
    return [(key.removesuffix("!"), key.endswith("!"), check) for key, check in checks.items()]


def _wrong_key(found: Mapping[str, Any], form: Form) -> str | None:
    for key, required, check in form:
        if key not in found:
            if required:
                return f"{key!r} is missing"
        elif not check(found[key]):
            return f"{key!r} cannot be {found[key]!r:.100}"
    return None


def _is(*kinds: type) -> Check:
    return lambda value: type(value) in kinds  # True is not a number


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _object_of(checks: Mapping[str, Check]) -> Check:
    form = _form(checks)
    return lambda value: isinstance(value, dict) and _wrong_key(value, form) is None


def _is_output_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not leaves_folder(value)


def _is_file_name(value: Any) -> bool:
    return _is_output_name(value) and "/" not in value


def _is_count(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 0)


_NUMBER = _is(int, float, type(None))
_TEXT = _is(str, type(None))
_INPUT = _object_of({"url!": _is(str), "size!": _is(int, type(None)), "stamp!": _TEXT})
_OUTPUT = _object_of(
    {"name!": _is_output_name, "size!": _is_count, "sha256!": _TEXT, "samples!": _is(int, float)}
)
_TASK = _form(
    {
        "task!": _is_file_name,
        "inputs!": _list_of(_INPUT),
        "outputs!": _list_of(_is_output_name),
    }
)
_OPTIONS = _object_of({"inputs": _list_of(_INPUT)})
_PLAN = _form(
    {
        "schema": lambda value: value == SCHEMA,
        "function": _is(str),
        "version": _is(str),
        "options!": _OPTIONS,
        "maxcount": _NUMBER,
        "maxsize": _NUMBER,
        "tasks!": _is(list),
    }
)
_RECORD = _form(
    {
        "task!": _is_file_name,
        "inputs!": _list_of(_INPUT),
        "outputs!": _list_of(_OUTPUT),
        "in!": _is_count,
        "kept!": _is_count,
        "dropped!": _is(int, type(None)),
        "out!": _is(int, float),
        "errors": _is(int),
        "skipped": _list_of(_object_of({"key!": _TEXT, "message!": _is(str)})),
    }
)
_COPY = _form({"name!": _is(str), "version!": _is(str), "record!": is_record})
_CALL = _form(
    {
        "digest!": _is(str),
        "options!": _is(dict),
        "entries!": lambda value: value is None or _list_of(_is_entry)(value),
    }
)


_FINISHED_OUTPUT: Sequence[Check] = (_is_output_name, _is_count, _TEXT)  # name, size, version
_FINISHED = _form(
    {
        "schema!": lambda value: value == FINISHED,
        "plan!": _is(str),
        "outputs!": _list_of(
            lambda value: (
                isinstance(value, list)
                and len(value) == 3
                and all(check(part) for check, part in zip(_FINISHED_OUTPUT, value))
            )
        ),
        "report!": _object_of({**{f"{name}!": _is(int) for name in FIGURES}, "digest!": _is(str)}),
    }
)


def _is_entry(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)
