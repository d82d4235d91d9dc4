"""``penstock head``: the first samples with their text, numbers and JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any

from penstock.cli.arguments import add_options, add_shards
from penstock.cli.report import Report

EXAMPLE = "penstock head shards/train-000000.tar -n 2 --fields 'txt json'"

WIDTH = 100
"""Columns where stdout is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    count = {"default": 5, "help": "the first N samples (default 5)"}
    add_options(parser, "count", "fields", "json", "quiet", count=count)


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.listing import head

    report = Report.of(arguments)
    options = {"count": arguments.count, "fields": arguments.fields}
    for sample in head(arguments.shards, list_file=arguments.list, **options):
        if report.as_json:
            report.row("", sample.as_dict())
            continue
        report.row(sample.key, {})
        width = max((len(field) for field in sample.values), default=0)
        for field, value in sample.values.items():
            report.row(fitted(f"  {field:<{width}}  {_text(value)}"), {})
    return 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fitted(line: str) -> str:
    """Return the line cut to the width of the terminal."""
    from penstock.redact import printable

    columns = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    line = printable(line)
    return line if len(line) <= columns else line[: columns - 1] + "…"
