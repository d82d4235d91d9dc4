"""Writes src/penstock/pipeline/fluent.py: every stage as a method, from the stage's own definition.

Signature, types and docstring come from the stage, so that a chain of methods keeps its element
type for type checkers and both interfaces stay one. ``--check`` only compares (a test does that).
"""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from pathlib import Path

METHODS = {
    "map": "penstock.stages.map:map",
    "map_dict": "penstock.stages.map:map_dict",
    "map_tuple": "penstock.stages.map:map_tuple",
    "select": "penstock.stages.select:select",
    "rsample": "penstock.stages.select:rsample",
    "slice": "penstock.stages.select:slice",
    "rename": "penstock.stages.rename:rename",
    "rename_keys": "penstock.stages.rename:rename_keys",
    "associate": "penstock.stages.associate:associate",
    "to_tuple": "penstock.stages.to_tuple:to_tuple",
    "extract_keys": "penstock.stages.to_tuple:extract_keys",
    "decode": "penstock.stages.decode:decode",
    "xdecode": "penstock.stages.decode:xdecode",
    "shuffle": "penstock.stages.shuffle:shuffle",
    "detshuffle": "penstock.stages.shuffle:detshuffle",
    "info": "penstock.stages.inspect:info",
    "log_keys": "penstock.stages.inspect:log_keys",
    "batched": "penstock.batches.batched:batched",
    "unbatched": "penstock.batches.batched:unbatched",
    "listed": "penstock.batches.batched:listed",
    "planned": "penstock.batches.planning.planned_samples:planned",
    "unlisted": "penstock.batches.batched:unlisted",
    "dynamic_bucketed_batch": "penstock.batches.bucketing.bucketed:dynamic_bucketed_batch",
    "packed": "penstock.batches.packing.packed:packed",
    "mcached": "penstock.stages.sample_cache:Cached",
    "lmdb_cached": "penstock.stages.sample_cache:LMDBCached",
    "dbcache": "penstock.stages.sample_cache:DBCache",
}
"""Method → the stage it appends. A stage added here gets its method."""

TARGET = Path(__file__).parent.parent / "src" / "penstock" / "pipeline" / "fluent.py"

HEAD = '''"""Every stage as a method. Made by tools/make_fluent.py from the stages; do not edit.

``dataset.shuffle(1000)`` is ``dataset.compose(shuffle(1000))``: same arguments, same meaning.
"""

# ruff: noqa: E501

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

from penstock.batches.collate import Collation, default_collation_fn
from penstock.batches.padding.padded_batch import PaddedBatch
from penstock.batches.bucketing.pivot_window import indices_around_random_pivot
from penstock.handlers import Handler, reraise_exception
from penstock.stages.decode import default_decoders
{imports}

if TYPE_CHECKING:
    from penstock.pipeline.data_pipeline import DataPipeline

T = TypeVar("T")
Out = TypeVar("Out")
Sample = dict[str, Any]


class Fluent(Generic[T]):
    """The methods of a pipeline that append a stage and give a new pipeline."""

    def compose(self, *stages: Any) -> DataPipeline[Any]:
        raise NotImplementedError
'''


def stage_class(place: str) -> type:
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def default_text(value: object) -> str:
    name = getattr(value, "__name__", None)
    if isinstance(value, list):
        return "default_decoders"
    if value == sys.maxsize:
        return "sys.maxsize"
    return name if name and callable(value) else repr(value)


def parameters(cls: type) -> tuple[str, str]:
    """The parameters as text, and the arguments that pass them on."""
    signature, passed, bare_star = [], [], False
    for p in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        annotation = str(p.annotation).replace("[In]", "[T]").replace("[[In]", "[[T]")
        text = f"{p.name}: {annotation}"
        if p.kind is p.VAR_POSITIONAL:
            bare_star = True
            signature.append("*" + text)
            passed.append("*" + p.name)
            continue
        if p.kind is p.VAR_KEYWORD:
            signature.append("**" + text)
            passed.append("**" + p.name)
            continue
        if p.kind is p.KEYWORD_ONLY and not bare_star:
            signature.append("*")
            bare_star = True
        if p.default is not p.empty:
            text += f" = {default_text(p.default)}"
        signature.append(text)
        passed.append(
            p.name if p.kind is p.POSITIONAL_OR_KEYWORD and not bare_star else f"{p.name}={p.name}"
        )
    return ", ".join(["self", *signature]), ", ".join(passed)


def result_type(cls: type) -> str:
    """The element type behind the stage, as its definition says."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            args = typing.get_args(generic)
            if len(args) == 2:
                text = str(args[1]) if not isinstance(args[1], type) else args[1].__name__
                text = text.replace("typing.", "").replace("~", "")
                return text if "[" not in text or "Any" in text else "Any"
    return "Any"


def method(name: str, cls: type, alias: str) -> str:
    signature, passed = parameters(cls)
    doc = inspect.cleandoc(cls.__doc__ or "")
    lines = [f"        {line}" if line else "" for line in doc.splitlines()]
    lines[0] = f'        """{doc.splitlines()[0]}'
    body = "\n".join(lines)
    return (
        f"\n    def {name}({signature}) -> DataPipeline[{result_type(cls)}]:\n{body}\n"
        f'        """\n        return self.compose({alias}({passed}))\n'
    )


def source() -> str:
    imports, methods = [], []
    for name, place in METHODS.items():
        module, cls_name = place.split(":")
        alias = f"{cls_name.lower()}_stage"
        imports.append(f"from {module} import {cls_name} as {alias}")
        methods.append(method(name, stage_class(place), alias))
    return (
        HEAD.replace("{imports}", "\n".join(sorted(imports)))
        + "".join(methods)
        + "\n    batch = batched\n"
    )


def formatted() -> str:
    import subprocess

    ruff = [sys.executable, "-m", "ruff"]
    text = source()
    for command in (["check", "--fix", "-q", "--select", "I,F401"], ["format", "-q"]):
        name = ["--stdin-filename", str(TARGET), "-"]
        done = subprocess.run(
            [*ruff, *command, *name], input=text, capture_output=True, text=True, check=False
        )
        if not done.stdout:
            sys.exit(done.stderr)
        text = done.stdout
    return text


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0
            if TARGET.read_text() == formatted()
            else "fluent.py is stale: run tools/make_fluent.py"
        )
    TARGET.write_text(formatted())
