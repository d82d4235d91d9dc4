"""Writes src/penstock/pipeline/fluent.pyi: the types of the methods that append a stage.

Signature, types and docstring come from the stage, so that a chain of methods keeps its element
type for type checkers. ``--check`` only compares (a test does that).
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from pathlib import Path

from penstock.pipeline.fluent import METHODS

TARGET = Path(__file__).parent.parent / "src" / "penstock" / "pipeline" / "fluent.pyi"

HEAD = '''# Made by tools/make_fluent.py from the stages; do not edit.

# ruff: noqa: E501

import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TextIO, TypeVar

from penstock.batches.bucketing.pivot_window import indices_around_random_pivot
from penstock.batches.collate import Collation, default_collation_fn
from penstock.batches.padding.padded_batch import PaddedBatch
from penstock.documents.pieces import Document
from penstock.handlers import Handler, reraise_exception
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.stages.decode import default_decoders

T = TypeVar("T")
Out = TypeVar("Out")
Sample = dict[str, Any]

METHODS: dict[str, Any]

class Fluent(Generic[T]):
    """The methods of a pipeline that append a stage and return a new pipeline."""

    def compose(self, *stages: Any) -> DataPipeline[Any]: ...
'''


def default_text(value: object) -> str:
    name = getattr(value, "__name__", None)
    if isinstance(value, list):
        return "default_decoders"
    if value == sys.maxsize:
        return "sys.maxsize"
    return name if name and callable(value) else repr(value)


def parameters(cls: type) -> str:
    """Return the parameters of a stage as text."""
    signature, bare_star = ["self"], False
    for p in list(inspect.signature(cls.__init__).parameters.values())[1:]:
        annotation = str(p.annotation).replace("[In]", "[T]").replace("[[In]", "[[T]")
        text = f"{p.name}: {annotation}"
        if p.kind is p.VAR_POSITIONAL:
            bare_star, text = True, f"*{text}"
        elif p.kind is p.VAR_KEYWORD:
            text = f"**{text}"
        elif p.kind is p.KEYWORD_ONLY and not bare_star:
            bare_star = True
            signature.append("*")
        if p.default is not p.empty:
            text += f" = {default_text(p.default)}"
        signature.append(text)
    return ", ".join(signature)


def result_type(cls: type) -> str:
    """Return the element type after the stage, from its definition."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            args = typing.get_args(generic)
            if len(args) == 2:
                text = str(args[1]) if not isinstance(args[1], type) else args[1].__name__
                text = text.replace("typing.", "").replace("~", "")
                return text if "[" not in text or "Any" in text else "Any"
    return "Any"


def method(name: str, cls: type) -> str:
    doc = inspect.cleandoc(cls.__doc__ or "")
    lines = [f"        {line}" if line else "" for line in f'"""{doc}\n"""'.splitlines()]
    head = f"    def {name}({parameters(cls)}) -> DataPipeline[{result_type(cls)}]:"
    return "\n".join(["", head, *lines, ""])


def source() -> str:
    methods = [method(name, stage) for name, stage in METHODS.items()]
    return "".join([HEAD, *methods, "\n    batch = batched\n"])


def format_source(text: str, target: Path) -> str:
    """Return the text of a generated file as ruff writes it."""
    for command in (["check", "--fix", "-q", "--select", "I,F401"], ["format", "-q"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout:
            sys.exit(done.stderr)
        text = done.stdout
    return text


def write(text: str, target: Path) -> None:
    """Write a generated file, or with ``--check`` exit with an error if it differs."""
    text = format_source(text, target)
    if "--check" not in sys.argv:
        target.write_text(text)
    elif target.read_text() != text:
        sys.exit(f"{target.name} is stale: run {sys.argv[0]}")


if __name__ == "__main__":
    write(source(), TARGET)
