"""The names of a job's outputs: from a list or a pattern, and from the inputs."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.errors import PipelineError
from penstock.redact import redact
from penstock.storage.urls import encode_name, expand_braces, local_path, scheme_of

STEM = "{stem}"
_NUMBER = re.compile(r"(?<!%)(?:%%)*%0?\d*d")
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
TASK_NAME_CHARACTERS = 100


@dataclasses.dataclass(frozen=True, slots=True)
class OutputNames:
    """Where outputs go: a folder, a name in it for each task, and what job and tasks are called."""

    folder: str
    names: list[str]
    tasks: list[str]
    job_name: str


def name_outputs(outputs: Any, inputs: Sequence[str], *, in_parts: bool) -> OutputNames:
    """Name the output of each input; with ``in_parts``, a pattern for the parts of each."""
    if isinstance(outputs, os.PathLike):
        outputs = os.fspath(outputs)
    if isinstance(outputs, str):
        if STEM in outputs or _NUMBER.search(outputs):
            return _by_pattern(outputs, inputs, in_parts=in_parts)
        outputs = expand_braces(outputs)
    if not isinstance(outputs, Iterable):
        raise PipelineError(f"outputs= is a pattern or a list of names, not {outputs!r}")
    if in_parts:
        raise _needs_both()
    urls = [os.fspath(output) for output in outputs]
    if len(urls) != len(inputs):
        raise PipelineError(
            f"outputs= names {len(urls)} shards for {len(inputs)} inputs: name as many, or pass a "
            "pattern such as 'out/{stem}.tar'"
        )
    folder, names = _common_folder([absolute(url) for url in urls])
    return _checked(folder, names, inputs, "\n".join(names))


def _by_pattern(pattern: str, inputs: Sequence[str], *, in_parts: bool) -> OutputNames:
    numbered = _NUMBER.search(pattern) is not None
    if in_parts and not (numbered and STEM in pattern):
        raise _needs_both()
    pattern = absolute(pattern)
    fixed = re.split(r"\{stem\}|%", pattern, maxsplit=1)[0]
    folder, slash, _ = fixed.rpartition("/")
    folder = folder + slash if folder in ("", *_roots(pattern)) else folder
    rest = pattern[len(folder) :].removeprefix("/")
    names = []
    for number, url in enumerate(inputs):
        stem = encode_name(folder, stem_of(url))
        name = rest.replace(STEM, stem.replace("%", "%%"))
        if in_parts:
            _check_percent(name)
        elif numbered:
            _check_percent(name)
            name = name % number
        else:
            name = name.replace("%%", "%")
        names.append(name)
    return _checked(folder, names, inputs, rest)


def _check_percent(name: str) -> None:
    try:
        _ = name % 0
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"outputs= has one place for a number, such as %06d, and any other percent sign twice "
            f"({error}: {name!r})"
        ) from None


def stem_of(url: str) -> str:
    """Return the name of a shard without its folder, query and extension.

    >>> stem_of("s3://bucket/train/imagenet-0007.tar.gz"), stem_of("https://host/a.tar?x=1")
    ('imagenet-0007', 'a')
    """
    path = url.partition("?")[0] if scheme_of(url) in ("http", "https") else url
    return os.path.basename(path.rstrip("/")).partition(".")[0] or "shard"


def _checked(folder: str, names: list[str], inputs: Sequence[str], identity: str) -> OutputNames:
    seen: dict[str, str] = {}
    for name, url in zip(names, inputs):
        if name in seen:
            raise PipelineError(
                f"two inputs would be written to {name!r}: {redact(seen[name])} and {redact(url)}; "
                "put the number into the pattern (%06d), or list the outputs"
            )
        seen[name] = url
    return OutputNames(folder, names, _task_names(names), job_name(identity))


def job_name(outputs: str) -> str:
    """Name a job after its outputs alone, so that a changed function finds the old plan.

    >>> job_name("train-%06d.tar"), job_name("{stem}.tar")
    ('train-385708f4', 'stem-356f76bd')
    """
    plain = _NUMBER.sub("", stem_of(outputs.partition("\n")[0]))
    first = _ODD.sub("-", plain).strip("-.") or "shards"
    return f"{first[:40]}-{hashlib.sha256(outputs.encode()).hexdigest()[:8]}"


def _task_names(outputs: Sequence[str]) -> list[str]:
    """Make a unique file name for each task from its output."""
    names = []
    seen: set[str] = set()
    for output in outputs:
        plain = _NUMBER.sub("", output)
        name = _ODD.sub("_", plain.removesuffix(".tar")).strip("-_.")[:TASK_NAME_CHARACTERS]
        if not name or name in seen:
            name = f"{name}-{hashlib.sha256(output.encode()).hexdigest()[:8]}"
        seen.add(name)
        names.append(name)
    return names


def _common_folder(urls: list[str]) -> tuple[str, list[str]]:
    """Return the deepest folder that contains all URLs, and their names in it."""
    split = [url.split("/") for url in urls]
    shared = 0
    for parts in zip(*(one[:-1] for one in split)):
        if len(set(parts)) > 1:
            break
        shared += 1
    folder = "/".join(split[0][:shared])
    if len({scheme_of(url) for url in urls}) > 1 or (
        scheme_of(urls[0]) not in ("", "file") and shared < 3
    ):
        raise PipelineError(
            "all outputs of a job are below one folder, which also holds what is known of the job; "
            f"{redact(urls[0])} and {redact(urls[-1])} have none in common"
        )
    if folder == "" and urls[0].startswith("/"):
        folder = "/"
    return folder, ["/".join(one[shared:]) for one in split]


def _roots(pattern: str) -> tuple[str, ...]:
    return (pattern.partition("://")[0] + ":/",) if "://" in pattern else ()


def absolute(url: str) -> str:
    """Return the URL, or a path that is valid in every working folder."""
    path = local_path(url)
    if path is None or path != url:
        return url
    return os.path.abspath(os.path.expanduser(path))


def _needs_both() -> PipelineError:
    return PipelineError(
        "with maxcount= or maxsize=, outputs= is a pattern with {stem} and a number for the part, "
        "such as 'out/{stem}-%03d.tar'"
    )
