"""``penstock index``: make or check the index of a data set."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

from penstock.cli.arguments import (
    add_json_argument,
    add_old_name,
    add_options,
    add_shards,
    at_least,
    shards_of,
)
from penstock.cli.progress import track
from penstock.cli.report import Report
from penstock.context import cores
from penstock.errors import PenstockError, PipelineError, ShardError
from penstock.handlers import Handler, reraise_exception

EXAMPLE = "penstock index shards/train-{000000..000001}.tar --column label=cls:value"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    add_options(
        parser,
        "output",
        output={"metavar": "FILE", "help": "the index (default: beside the shards)"},
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=FIELD:MEASURE",
        help="a further column: duration=wav:seconds, width=jpg:width, label=cls:value, "
        "age=json:person.age (may be given several times)",
    )
    jobs = {
        "type": at_least(0),
        "help": "read with N processes (default: one per core; 0: threads)",
    }
    bad = "at a bad shard, abort (the default); or skip it, list all bad ones at the end, status 1"
    add_options(parser, "jobs", "on_error", jobs=jobs, on_error={"type": _on_error, "help": bad})
    add_old_name(parser, "--workers", "jobs", type=at_least(0))
    add_old_name(parser, "--skip", "on_error", action="store_const", const="skip")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        choices=["dali"],
        help="also write the index of another tool beside each shard (dali: x.idx for x.tar)",
    )
    parser.add_argument(
        "--group",
        choices=["key", "dashed"],
        default="key",
        help="how members become samples: by key (the default), or as interleaved documents "
        "whose images are named KEY-NAME.jpg",
    )
    parser.add_argument(
        "--check", action="store_true", help="only report whether the index matches the shards"
    )
    add_json_argument(parser)


def _on_error(word: str) -> str:
    return "abort" if word == "stop" else word  # its former name


def run(arguments: argparse.Namespace) -> int:
    from penstock.shards.index import default_index_path  # loads numpy and pyarrow

    report = Report.of(arguments)
    shards = shards_of(arguments)
    output = arguments.output or default_index_path(shards)
    if arguments.check:
        status = _check(shards, output, arguments, report)
    else:
        _refuse_other_files(output)
        status = _make(shards, output, arguments, report)
    report.close()
    return status


def _refuse_other_files(output: str) -> None:
    """Raise ExistsError if the output is a file that is no index; an index is updated."""
    from penstock.storage.urls import local_path
    from penstock.tools.outputs import refuse_existing

    output = local_path(output) or output
    if os.path.isfile(output):
        with open(output, "rb") as file:
            refuse_existing(output, force=file.read(4) in (b"PAR1", b""))


def _check(shards: list[str], output: str, arguments: argparse.Namespace, report: Report) -> int:
    """Compare every shard with the index; report all that do not match."""
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
    from penstock.shards.index import Index, build_index

    columns = dict(map(_column, arguments.column))
    workers = arguments.jobs
    if workers is None:
        workers = min(cores(), len(shards)) if len(shards) > 1 else 0
    bad: list[str] = []

    def skip(error: Exception) -> bool:
        bad.append(str(error))
        return True

    handler = skip if arguments.on_error == "skip" else reraise_exception
    started = time.perf_counter()
    count = len(shards)
    bar: Any = track(range(count + 1), "Indexing", count, unit="shards")
    done = itertools.count(1)

    def advance(shard: Any) -> None:
        arguments.kept = (
            f"{next(done)} of {len(shards)} shards are done and kept in {output}.parts; "
            "the same command continues there"
        )
        next(bar)

    next(bar)
    try:
        with contextlib.closing(bar):
            index = build_index(
                *(shards, output),
                columns=columns,
                workers=workers,
                progress=advance,
                handler=handler,
                group=arguments.group,
            )
        arguments.kept = f"{output} is complete"
        written = list(_write_sidecars(index, handler)) if arguments.also else []
    except PipelineError as error:
        if len(bad) == len(shards):
            raise ShardError(str(error)) from error  # the shards are bad, not the arguments
        raise
    finally:
        for problem in bad:
            report.say(problem)
    seconds = time.perf_counter() - started
    report.say(f"{output}: {len(index):,} samples in {len(index.shards):,} shards, {seconds:.1f} s")
    others = len(Index.load(output).shards) - len(index.shards)
    if others:
        report.say(f"  {others:,} other shards stay in it")
    for name in index.columns:
        report.say(f"  column {name}")
    if written:
        report.say(f"indexes for DALI: {len(written):,}, such as {written[0]}")
    if bad:
        report.say(f"{len(bad):,} of {len(shards):,} shards are bad")
    report.figures.update(_figures(index, output), seconds=round(seconds, 3), problems=bad)
    return 1 if bad else 0


def _write_sidecars(index: Any, handler: Handler) -> Iterator[str]:
    """Write DALI's index of every shard; yield their names."""
    from penstock.shards.index.sidecars import write_dali

    for shard in track(index.shards, "For DALI", unit="shards"):
        try:
            yield write_dali(shard)
        except PenstockError as error:
            handler(error)


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
