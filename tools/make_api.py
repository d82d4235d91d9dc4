"""Writes docs/api.md: the public names with one line each, from their docstrings.

``--check`` only compares (a test does that).
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import sys
from pathlib import Path
from typing import Any

import penstock

TARGET = Path(__file__).parent.parent / "docs" / "api.md"

FOLDERS = {
    "pipeline": "Pipelines",
    "loaders": "Loaders",
    "stages": "Stages and sources",
    "batches": "Batches",
    "codecs": "Codecs",
    "writing": "Writing",
    "storage": "Storage",
    "handlers": "Error handlers",
    "errors": "Errors",
    "datasets": "Data sets",
    "index": "The index",
}
"""Folder of the library → heading; a folder that is not listed gets its own name."""

OTHERS = {
    "The index: `from penstock.shards.index import …`": ["penstock.shards.index"],
    "Data sets: `from penstock.datasets… import …`": [
        "penstock.datasets",
        "penstock.datasets.indexed_dataset",
        "penstock.datasets.samplers.chunked",
    ],
    "The command line in Python: `from penstock.tools import …`": ["penstock.tools"],
    "Tables of codecs: `from penstock.codecs.registry import …`": ["penstock.codecs.registry"],
    "For tests of your own: `from penstock.testing… import …`": [
        "penstock.testing",
        "penstock.testing.stages",
        "penstock.testing.codecs",
        "penstock.testing.openers",
    ],
}
"""Heading → modules with public names of their own."""

HEAD = """\
# Public names

<!-- Made by tools/make_api.py from the docstrings; do not edit. -->

One line for each name; `help(penstock.shuffle)` shows its arguments and an example that runs. The
stages are methods of every pipeline too. Names of older WebDataset versions resolve as well and
are not listed here.
"""


def source() -> str:
    parts = [HEAD]
    by_folder: dict[str, list[tuple[str, str]]] = {}
    for module, names in penstock._PUBLIC.items():
        folder = module.split(".")[1]
        by_folder.setdefault(folder, []).extend((name, module) for name in names)
    for folder in sorted(by_folder, key=_place):
        heading = FOLDERS.get(folder, folder.capitalize())
        parts.append(_section(f"{heading}: `penstock.…`", by_folder[folder]))
    for heading, modules in OTHERS.items():
        names = {name: module for module in modules for name in _public(module)}
        shown = [(name, home) for name, home in names.items() if not _is_above(name, home)]
        if shown:
            parts.append(_section(heading, shown))
    return "\n".join(parts)


def _is_above(name: str, module: str) -> bool:
    """Whether the name is a top-level one; ``penstock.tools.select`` is not ``penstock.select``."""
    value = getattr(importlib.import_module(module), name)
    return name in penstock.__all__ and getattr(penstock, name) is value


def _place(folder: str) -> int:
    known = list(FOLDERS)
    return known.index(folder) if folder in known else len(known)


def _public(module: str) -> list[str]:
    """The names in ``__all__``; else what is defined in the module itself and meant for others."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__all__"):
        return list(loaded.__all__)
    if module.startswith("penstock.testing"):
        return [n for n in vars(loaded) if n.endswith("Contract") or n.startswith("assert_")]
    tables = [name for name in _assigned(module) if name.isupper()]
    return tables + [
        name
        for name, value in vars(loaded).items()
        if inspect.isclass(value) and value.__module__ == module and not name.startswith("_")
    ]


def _section(heading: str, names: list[tuple[str, str]]) -> str:
    rows = [f"| `{name}` | {summary(name, module)} |" for name, module in names]
    return "\n".join([f"## {heading}", "", "| name | what it is |", "|---|---|", *rows, ""])


def summary(name: str, module: str) -> str:
    """The first line of what is said about a name."""
    value = getattr(importlib.import_module(module), name)
    own = inspect.isclass(value) or inspect.isfunction(value)
    text = value.__doc__ if own else _said_behind(name, module) or type(value).__doc__
    if not text:
        raise SystemExit(f"{module}.{name} has no docstring")
    first = inspect.cleandoc(text).split("\n\n")[0]
    return " ".join(_plain(first).split()).replace("|", "\\|")


def _plain(text: str) -> str:
    """The docstring's marks as Markdown's."""
    for mark in (":class:", ":func:", ":mod:", ":meth:", ":data:", ":attr:"):
        text = text.replace(mark, "")
    return text.replace("``", "`").replace("`~penstock.errors.", "`").replace("`~penstock.", "`")


@functools.cache
def _assigned(module: str) -> dict[str, str]:
    """Name → the string that stands behind its assignment, where one does."""
    path = importlib.import_module(module).__file__
    body = ast.parse(Path(str(path)).read_text()).body
    said: dict[str, str] = {}
    for node, behind in itertools.pairwise(body):
        target: Any = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        text = ast.literal_eval(behind.value) if _is_constant(behind) else None
        if isinstance(target, ast.Name) and isinstance(text, str):
            said[target.id] = text
    return said


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _said_behind(name: str, module: str) -> str | None:
    """What is said about a value, in the module or, for a package, in the one that has it."""
    loaded = importlib.import_module(module)
    homes = [module]
    if hasattr(loaded, "__path__"):
        homes += [other for other in sys.modules if other.startswith(module + ".")]
    for home in sorted(homes):
        if text := _assigned(home).get(name):
            return text
    return None


if __name__ == "__main__":
    if "--check" in sys.argv:
        stale = not TARGET.exists() or TARGET.read_text() != source()
        sys.exit("api.md is stale: run tools/make_api.py" if stale else 0)
    TARGET.write_text(source())
