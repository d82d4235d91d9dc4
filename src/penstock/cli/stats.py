"""``penstock stats``: samples, fields, sizes, lengths, picture sizes and classes."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING

from penstock.cli.arguments import add_options, add_shards, shards_of
from penstock.cli.progress import track
from penstock.cli.report import Report

if TYPE_CHECKING:
    from penstock.tools.statistics import FieldStats, Values

EXAMPLE = "penstock stats shards/train-{000000..000001}.tar"

BINS = 8
LINE_COLUMNS = 72
"""Where stdout is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    bad = {"help": "skip: leave out damaged shards, and report how many (default abort)"}
    add_options(parser, "on_error", "json", "quiet", on_error=bad)


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.inputs import handler_for, read_samples
    from penstock.tools.statistics import gather
    from penstock.tools.units import count, format_size

    report = Report.of(arguments)
    shards = shards_of(arguments)
    handler, skipped = handler_for(arguments.on_error)
    samples = read_samples(shards, handler=handler)
    found = gather(track(samples, "Reading"), len(shards))
    report.figures.update(found.as_dict(), skipped=skipped.count, messages=skipped.messages)
    if found.samples:
        total = found.sizes.as_dict()["total"]
        read = f"{count(len(shards), 'shard')}, {count(found.samples, 'sample')}"
        _print(report, f"{read}, {format_size(total)}")
        for name in sorted(found.fields):
            _describe(report, found.fields[name], found.samples)
    else:
        _print(report, f"{count(len(shards), 'shard')}, no samples")
    for message in skipped.messages:
        _print(report, f"skipped: {message}")
    report.close()
    return 1 if skipped.count else 0


def _print(report: Report, line: str) -> None:
    if not report.as_json:
        report.row(line, {})


def columns() -> int:
    """Return how wide lines may be."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size((LINE_COLUMNS, 24)).columns
    return LINE_COLUMNS


def _describe(report: Report, field: FieldStats, samples: int) -> None:
    from penstock.tools.statistics import class_bars
    from penstock.tools.units import format_size

    sizes = field.sizes.as_dict()
    there = len(field.sizes)
    share = "" if there == samples else f" in {there:,} samples ({there / samples:.0%})"
    _print(report, "")
    _print(report, f"{field.field}: {field.kind}{share}, {format_size(sizes['total'])}")
    if field.unreadable:
        _print(report, f"  {field.unreadable:,} cannot be read, or the package for it is missing")
    _histogram(report, "bytes", field.sizes)
    for name, values in field.measured().items():
        _histogram(report, name, values)
    if field.classes:
        _print(report, f"  {len(field.classes):,} classes")
        bars = [(bar.label[:20], bar.count) for bar in class_bars(field)]
        _bars(report, bars)


def _histogram(report: Report, name: str, values: Values) -> None:
    import numpy as np

    from penstock.batches.number_format import figure

    about = values.as_dict()
    words = (f"{word} {figure(about[word], 4)}" for word in ("min", "median", "mean", "p95", "max"))
    _print(report, f"  {name}: {', '.join(words)}")
    if about["min"] == about["max"]:
        return
    numbers = np.frombuffer(values.numbers, np.float64)
    if about["max"] - about["min"] < BINS and (numbers == np.round(numbers)).all():
        counted = zip(*np.unique(numbers, return_counts=True))
        _bars(report, [(figure(float(value), 4), int(count)) for value, count in counted])
        return
    counts, edges = np.histogram(numbers, bins=BINS)
    low = [figure(float(edge), 4) for edge in edges]
    _bars(report, [(f"{a} to {b}", int(n)) for a, b, n in zip(low, low[1:], counts.tolist())])


def _bars(report: Report, bars: list[tuple[str, int]]) -> None:
    """Print lines of a bar chart that fit the terminal."""
    label = max(len(text) for text, _ in bars)
    most = max(count for _, count in bars)
    room = max(columns() - label - len(f"{most:,}") - 8, 4)
    for text, count in bars:
        bar = "█" * max(round(room * count / most), int(count > 0))
        _print(report, f"    {text:>{label}}  {bar:<{room}} {count:,}")
