"""``penstock index``: make or check the index of a data set."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from typing import Any

from penstock.cli.arguments import add_json_argument, at_least
from penstock.cli.progress import track
from penstock.cli.report import Report
from penstock.errors import PipelineError
from penstock.storage.listing import find_shards


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shards", nargs="+", metavar="SHARDS", help="shards, braces, or a folder/")
    parser.add_argument("-o", "--output", metavar="FILE", help="the index (default: beside them)")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=FIELD:MEASURE",
        help="a column of your own: duration=wav:seconds, width=jpg:width, label=cls:value, "
        "age=json:person.age (may be given several times)",
    )
    parser.add_argument(
        "--workers",
        type=at_least(0),
        default=None,
        metavar="N",
        help="processes to read with (default: one per processor; 0: threads)",
    )
    parser.add_argument(
        "--check", action="store_true", help="only say whether the index fits the shards"
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.shards.index import default_index_path  # loads numpy and pyarrow

    report = Report(as_json=arguments.json)
    shards = [url for text in arguments.shards for url in find_shards(text)]
    output = arguments.output or default_index_path(shards)
    if arguments.check:
        status = _check(shards, output, report)
    else:
        status = _make(shards, output, arguments, report)
    report.close()
    return status


def _check(shards: list[str], output: str, report: Report) -> int:
    """Hold every shard against the index; tell all that do not fit."""
    from penstock.errors import PenstockError
    from penstock.shards.index import Index, open_index

    index = open_index(shards, Index.load(output))
    problems = []
    for number in track(range(len(shards)), "Checking", unit="shards"):
        try:
            index.check(number)
        except PenstockError as error:
            problems.append(str(error))
    for problem in problems:
        report.say(problem)
    report.say(f"{output}: {len(shards) - len(problems)} of {len(shards)} shards are as indexed")
    report.figures.update(_figures(index, output), problems=problems)
    return 1 if problems else 0


def _make(shards: list[str], output: str, arguments: argparse.Namespace, report: Report) -> int:
    from penstock.shards.index import build_index

    columns = dict(map(_column, arguments.column))
    workers = arguments.workers
    if workers is None:
        workers = min(os.cpu_count() or 1, len(shards)) if len(shards) > 1 else 0
    started = time.perf_counter()
    bar: Any = track(range(len(shards) + 1), "Indexing", total=len(shards), unit="shards")
    next(bar)
    with contextlib.closing(bar):
        index = build_index(
            shards, output, columns=columns, workers=workers, progress=lambda shard: next(bar)
        )
    seconds = time.perf_counter() - started
    report.say(f"{output}: {len(index):,} samples in {len(index.shards):,} shards, {seconds:.1f} s")
    for name in index.columns:
        report.say(f"  column {name}")
    report.figures.update(_figures(index, output), seconds=round(seconds, 3))
    return 0


def _column(text: str) -> tuple[str, str]:
    name, equals, spec = text.partition("=")
    if not equals:
        raise PipelineError(
            f"--column takes NAME=FIELD:MEASURE, such as duration=wav:seconds, not {text!r}"
        )
    return name, spec


def _figures(index: Any, output: str) -> dict[str, Any]:
    return {
        "index": output,
        "shards": len(index.shards),
        "samples": len(index),
        "bytes": int(index.size.sum()),
        "columns": index.columns,
        "fingerprint": index.fingerprint,
    }
