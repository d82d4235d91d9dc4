"""The options that several commands have: the same words, defined once.

A command adds those it has with :func:`add_options`, and its shards with :func:`add_shards`::

    def add_arguments(parser):
        add_shards(parser)
        add_options(parser, "output", "count", "json", "quiet", required={"output"})

    def run(arguments):
        shards = shards_of(arguments)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.errors import PenstockError

Check = Callable[[str], Any]


def at_least(lowest: int) -> Callable[[str], int]:
    """Return the argument type of whole numbers that are not below ``lowest``.

    >>> at_least(1)("20")
    20
    """

    def whole_number(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if number < lowest:
            raise argparse.ArgumentTypeError(f"must be a number of at least {lowest}, not {text!r}")
        return number

    return whole_number


def parsed(module: str, function: str) -> Check:
    """Return an argument type that calls a function of :mod:`penstock.tools`, loaded on use."""

    def parse(text: str) -> Any:
        import importlib

        try:
            return getattr(importlib.import_module(f"penstock.tools.{module}"), function)(text)
        except PenstockError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


OPTIONS: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "output": (("-o", "--output"), {"metavar": "OUT", "help": "where to write; - is stdout"}),
    "list": (
        ("-l", "--list-file"),
        {"metavar": "FILE", "help": "also read the shards that this file lists, one per line"},
    ),
    "count": (
        ("-n", "--count"),
        {"type": at_least(0), "metavar": "N", "help": "at most N samples"},
    ),
    "size": (
        ("--size",),
        {"type": parsed("units", "parse_size"), "metavar": "BYTES", "help": "such as 1GB, 512MiB"},
    ),
    "where": (
        ("--where",),
        {"metavar": "EXPR", "help": "only samples for which this is true: 'width >= 512'"},
    ),
    "fields": (
        ("--fields",),
        {
            "type": parsed("field_spec", "FieldSpec"),
            "metavar": "FIELDS",
            "help": "only these fields, in this order: 'jpg json'; 'image:jpg,png' renames",
        },
    ),
    "slice": (
        ("--slice",),
        {
            "type": parsed("slices", "parse_slice"),
            "metavar": "A:B:C",
            "help": "every C-th sample from number A to before B",
        },
    ),
    "seed": (
        ("--seed",),
        {"type": int, "default": 0, "metavar": "S", "help": "same seed, same result (default 0)"},
    ),
    "jobs": (
        ("--jobs",),
        {"type": at_least(1), "metavar": "N", "help": "work on N at once (default: one per core)"},
    ),
    "on_error": (
        ("--on-error",),
        {"choices": ("abort", "skip"), "default": "abort", "help": "at bad data (default abort)"},
    ),
    "duplicates": (
        ("--duplicates",),
        {
            "choices": ("error", "number", "keep"),
            "default": "error",
            "help": "a key that the shard has already: error (default), numbered KEY~2, or kept",
        },
    ),
    "no_index": (
        ("--no-index",),
        {"action": "store_true", "help": "do not write an index beside the shards"},
    ),
    "dry_run": (
        ("--dry-run",),
        {"action": "store_true", "help": "say what would be done, and do nothing"},
    ),
    "force": (("--force",), {"action": "store_true", "help": "replace outputs that exist"}),
    "json": (("--json",), {"action": "store_true", "help": "print JSON on stdout, nothing else"}),
    "quiet": (("--quiet",), {"action": "store_true", "help": "no progress, no summary"}),
}
"""Name → flags, and arguments of ``add_argument``."""


def add_options(
    parser: Any,
    *names: str,
    required: Collection[str] = (),
    **changes: Mapping[str, Any],
) -> None:
    """Add the named options of :data:`OPTIONS`.

    ``changes`` replaces arguments of single options: ``count={"default": 10}``.

    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser, "output", "count", required=["output"], count={"default": 10})
    >>> parser.parse_args(["-o", "x.tar"])
    Namespace(output='x.tar', count=10)
    """
    for name in names:
        flags, settings = OPTIONS[name]
        settings = {**settings, **changes.get(name, {})}
        if name in required:
            settings["required"] = True
        parser.add_argument(*flags, dest=name, **settings)


def add_json_argument(parser: Any) -> None:
    """Add ``--json`` and ``--quiet``, which every command has."""
    add_options(parser, "json", "quiet")


def add_old_name(parser: Any, flag: str, dest: str, **settings: Any) -> None:
    """Add a former name of an option: it works, and ``--help`` does not show it."""
    parser.add_argument(
        flag, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **settings
    )


def add_shards(parser: argparse.ArgumentParser, help: str = "") -> None:
    """Add the positional ``SHARDS`` and ``-l FILE``; :func:`shards_of` returns the URLs."""
    parser.add_argument(
        "shards",
        nargs="*",
        metavar="SHARDS",
        help=help or "shards: paths or URLs, with braces and wildcards; a folder/; - is stdin",
    )
    add_options(parser, "list")


def shards_of(arguments: argparse.Namespace) -> list[str]:
    """Return the URLs of the shards that the arguments name; none is a UrlError."""
    from penstock.tools.inputs import list_shards

    return list_shards(arguments.shards, arguments.list)
