"""The plan of a job: its tasks, with their inputs and the names of their outputs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from penstock.errors import Origin, PipelineError, StorageError
from penstock.jobs.control_schema import SCHEMA, leaves_folder
from penstock.redact import canonical_url, redact
from penstock.storage.listing import list_prefix, store_of
from penstock.storage.small_files import FileStamp, stamp_file
from penstock.storage.urls import is_stream, local_path, rewrite_url, scheme_of

UNKNOWN = FileStamp(None, None)
FEW_FILES = 20
"""Up to this many remote inputs of a folder are asked for one by one; more are listed."""


def inside(folder: str, name: str) -> str:
    """Return the URL or path of a name in a folder.

    >>> inside("s3://b/out/", "a.tar"), inside("", "a.tar"), inside("/", "a.tar")
    ('s3://b/out/a.tar', 'a.tar', '/a.tar')
    """
    if not folder:
        return name
    return folder + name if folder.endswith("/") else f"{folder}/{name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """One piece of work, done completely or not at all.

    ``name`` is a file name, different for every task of a plan. ``outputs`` are names relative to
    the job's folder; in a plan with ``maxcount`` or ``maxsize``, patterns with a ``%d`` for the
    number of the part. ``argument`` is anything JSON can hold that the work needs to know.
    ``stamps`` has the size and version of each input, taken when the plan is installed.
    """

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    argument: Any = None
    stamps: tuple[FileStamp, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the task as a JSON object; URLs without passwords and signatures."""
        described: dict[str, Any] = {
            "task": self.name,
            "inputs": self.describe_inputs(),
            "outputs": list(self.outputs),
        }
        if self.argument is not None:
            argument = json.dumps(self.argument, sort_keys=True).encode()
            described["argument"] = hashlib.sha256(argument).hexdigest()[:16]
        return described

    def describe_inputs(self) -> list[dict[str, Any]]:
        stamps = self.stamps or (UNKNOWN,) * len(self.inputs)
        return [
            {"url": canonical_url(url), "size": stamp.size_bytes, "stamp": stamp.version}
            for url, stamp in zip(self.inputs, stamps)
        ]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The tasks of a job, and what else decides the bytes of its outputs.

    ``function`` and ``version`` identify the code, ``options`` all other settings. With
    ``maxcount`` or ``maxsize``, a task writes its samples to several shards, like a
    :class:`~penstock.ShardWriter`. ``index`` also writes the index of all output shards.
    """

    tasks: Sequence[Task]
    function: str = ""
    version: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    maxcount: float | None = None
    maxsize: float | None = None
    index: bool = False

    def __post_init__(self) -> None:
        names: set[str] = set()
        outputs: dict[str, str] = {}
        for task in self.tasks:
            if task.name in names or task.name in ("", "..") or "/" in task.name:
                raise PipelineError(
                    f"a task's name is a file name that no other task has, not {task.name!r}"
                )
            names.add(task.name)
            for output in task.outputs:
                if output in outputs:
                    raise PipelineError(
                        f"two tasks would write {output!r} ({outputs[output]} and {task.name}): "
                        "name other outputs for every task"
                    )
                if leaves_folder(output):
                    raise PipelineError(
                        f"outputs are names inside the job's folder, but {output!r} leaves it"
                    )
                outputs[output] = task.name

    @property
    def in_parts(self) -> bool:
        """Whether a task writes a number of shards that is known only at its end."""
        return self.maxcount is not None or self.maxsize is not None

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Everything but the tasks, as a JSON object."""
        return {
            "function": self.function,
            "version": self.version,
            "options": dict(self.options),
            "maxcount": self.maxcount,
            "maxsize": self.maxsize,
        }

    @functools.cached_property
    def identities(self) -> dict[str, str]:
        """Task → a short hash of all that decides its outputs."""
        common = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode())
        identities = {}
        for task, text in zip(self.tasks, self._texts):
            digest = common.copy()
            digest.update(text.encode())
            identities[task.name] = digest.hexdigest()[:16]
        return identities

    @functools.cached_property
    def _texts(self) -> list[str]:
        """Every task as JSON: made once, since there may be a hundred thousand."""
        write = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
        return [write(task.describe()) for task in self.tasks]

    def with_stamps(self) -> Plan:
        """Return the plan with the current stamp of every input; a missing input is an error."""
        if not any(task.inputs for task in self.tasks):
            return self
        stamps = stamp_inputs(url for task in self.tasks for url in task.inputs)
        tasks = [
            dataclasses.replace(task, stamps=tuple(stamps[url] for url in task.inputs))
            for task in self.tasks
        ]
        return dataclasses.replace(self, tasks=tasks)

    def to_json(self) -> bytes:
        """Return the content of ``plan.json``."""
        head = json.dumps({"schema": SCHEMA, **self.settings}, separators=(",", ":"))
        return f'{head[:-1]},"tasks":[{",".join(self._texts)}]}}'.encode()


def find_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return what differs between two plans, as stored in ``plan.json``; None if nothing does."""
    return (
        _changed_settings(old, new)
        or _changed_tasks(old.get("tasks", ()), new["tasks"])
        or _changed_value("version", old.get("version"), new["version"])
    )


def _changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    before, after = str(old.get("function")), new["function"]
    if before != after:
        same = before.partition(" ")[0] == after.partition(" ")[0]
        why = ": the name is the same, but not the code or the values that it uses" if same else ""
        return f"the function changed from {before!r} to {after!r}{why}"
    for name in ("maxcount", "maxsize"):
        if changed := _changed_value(name, old.get(name), new[name]):
            return changed
    before, after = old.get("options", {}), new["options"]
    for name in {**before, **after}:
        if before.get(name) == after.get(name):
            continue
        if name == "inputs":
            return _changed_inputs(before.get(name) or [], after.get(name) or [])
        if name.endswith("_sha256"):  # a long list, of which only the hash is stored
            return f"the {name.removesuffix('_sha256')} changed: other files, or files that changed"
        return _changed_value(name, before.get(name), after.get(name))
    return None


def _changed_value(name: str, before: Any, after: Any) -> str | None:
    if before == after:
        return None
    return f"{name} changed from {before!r:.200} to {after!r:.200}"


def _changed_tasks(old: Sequence[Mapping[str, Any]], new: Sequence[Any]) -> str | None:
    former = {task["task"]: task for task in old}
    added = []
    for task in new:
        earlier = former.pop(task["task"], None)
        if earlier is None:
            added.append(task)
        elif earlier["inputs"] != task["inputs"]:
            return _changed_inputs(earlier["inputs"], task["inputs"])
        elif earlier["outputs"] != task["outputs"]:
            return f"a task changed from {_brief(earlier)} to {_brief(task)}"
        elif earlier != task:
            return f"the task {_brief(task)} writes other samples than before"
    if added:
        return f"the plan has a new task {name_some(list(map(_brief, added)), 1)}"
    if former:
        gone = list(map(_brief, former.values()))
        return f"the plan no longer has the task {name_some(gone, 1)}"
    return None


def _changed_inputs(before: list[Any], after: list[Any]) -> str:
    """Return which of the inputs changed, or that there are others."""
    old, new = ({entry["url"]: entry for entry in entries} for entries in (before, after))
    for url in new:
        if url in old and old[url] != new[url]:
            one, other = old[url], new[url]
            return (
                f"the input {redact(url)} changed: it had {one['size']} bytes and the stamp "
                f"{one['stamp']}, now {other['size']} and {other['stamp']}"
            )
    said = []
    for word, urls in (("with", new.keys() - old.keys()), ("without", old.keys() - new.keys())):
        if urls:
            said.append(f"{word} {name_some(sorted(map(redact, urls)))}")
    return f"the inputs changed: {' and '.join(said) or 'they have another order'}"


def urls_of_inputs(plan: Mapping[str, Any]) -> set[str]:
    """Return the inputs of a plan as stored in ``plan.json``."""
    entries = [entry for task in plan["tasks"] for entry in task["inputs"]]
    return {entry["url"] for entry in [*entries, *plan["options"].get("inputs", ())]}


def _brief(task: Mapping[str, Any]) -> str:
    """Return the name of a task with its inputs and outputs, the first few of each."""
    urls = name_some([redact(entry["url"]) for entry in task["inputs"]])
    return f"{task['task']} ({urls}{' → ' if urls else ''}{name_some(task['outputs'])})"


def name_some(names: Sequence[str], shown: int = 3) -> str:
    """Name the first few of many.

    >>> name_some(["a", "b"]), name_some(["a", "b", "c"], 1)
    ('a, b', 'a and 2 more')
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def stamp_inputs(urls: Iterable[str]) -> dict[str, FileStamp]:
    """Return the stamps of inputs; remote folders with many of them are listed instead."""
    found: dict[str, FileStamp] = {}
    folders: dict[str, list[str]] = {}
    for url in dict.fromkeys(urls):
        if is_stream(url):
            found[url] = UNKNOWN
        elif local_path(rewrite_url(url)) is not None:
            found[url] = stamp_file(url)
        else:
            folders.setdefault(os.path.dirname(url), []).append(url)
    for wanted in folders.values():
        found.update(_stamp_remote(wanted))
    return found


def _stamp_remote(urls: list[str]) -> dict[str, FileStamp]:
    if len(urls) <= FEW_FILES or store_of(rewrite_url(urls[0])) is None:
        if scheme_of(urls[0]) in ("http", "https") and len(urls) > FEW_FILES:
            return dict.fromkeys(urls, UNKNOWN)  # such servers cannot be listed
        return {url: stamp_file(url) for url in urls}
    places = {rewrite_url(url): url for url in urls}
    found = {}
    for listed in list_prefix(common_beginning(places), deep=False):
        url = places.pop(listed.url, None)
        if url is not None:
            found[url] = FileStamp.of_object(listed.size_bytes, listed.version)
    for url in places.values():
        found[url] = stamp_file(url)  # raises MissingFile with the store's message
    return found


def common_beginning(urls: Collection[str]) -> str:
    """Return the longest common prefix of all URLs.

    >>> common_beginning(["s3://b/in-001.tar", "s3://b/in-012.tar"])
    's3://b/in-0'
    """
    first, last = min(urls), max(urls)
    same = (number for number, letter in enumerate(first) if last[number : number + 1] != letter)
    return first[: next(same, len(first))]


def check_inputs(task: Task) -> None:
    """Raise ChangedInput where a local input is no longer the file that was planned."""
    for url, stamp in zip(task.inputs, task.stamps):
        if stamp is UNKNOWN or local_path(rewrite_url(url)) is None:
            continue
        if (now := stamp_file(url)) != stamp:
            raise changed_input(url, stamp, now)


class ChangedInput(StorageError):
    """An input is another file than the one that was planned."""


def changed_input(url: str, planned: FileStamp, found: FileStamp) -> ChangedInput:
    """Return the error for an input that changed."""
    return ChangedInput(
        f"the input changed after the job was planned: it had {planned.size_bytes} bytes "
        f"(stamp {planned.version}), now {found.size_bytes} ({found.version}); run the job again "
        "with force=True (--force)",
        origin=Origin(url),
    )
