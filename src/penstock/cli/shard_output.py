"""What the commands that write shards share: their options, and their report at the end."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from penstock.cli.arguments import add_options
from penstock.cli.exit_status import BAD_DATA, FINE
from penstock.cli.report import Report
from penstock.errors import PipelineError

FORCE = {"help": "replace outputs that exist, and delete shards of the pattern that follow them"}
KEPT = "finished shards are kept, and the same command continues"


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``-o PATTERN``."""
    add_options(parser, "output", required={"output"}, output={"metavar": "PATTERN"})


def add_shard_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`shard_options` returns, and ``--json``."""
    add_options(parser, "count", "size", count={"help": "samples per shard"})
    add_options(parser, "duplicates", "jobs", "no_index", "force", "json", "quiet", force=FORCE)


def shard_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of :class:`penstock.tools.shard_output.ShardOptions`."""
    return {
        "count": arguments.count,
        "size": arguments.size,
        "duplicates": arguments.duplicates,
        "jobs": arguments.jobs,
        "index": not arguments.no_index,
        "force": arguments.force,
        "quiet": arguments.quiet,
    }


def start_report(arguments: argparse.Namespace) -> Report:
    """Return the report of a command whose output is shards; they may not go to a terminal."""
    if arguments.output == "-" and sys.stdout.isatty():
        raise PipelineError("a shard is not written to a terminal: name a file, or pipe the output")
    arguments.kept = KEPT
    return Report.of(arguments)


def end_report(report: Report, done: Any, failed: str = "") -> int:
    """Print what was written, as a sentence and as figures, and return the exit status.

    ``failed`` names what ``done.failed`` counts, in the singular, such as "command failed".
    """
    from penstock.tools.units import count, format_size

    rejected = f", {count(done.rejected, 'file')} rejected" if done.rejected else ""
    written = f"{count(done.samples, 'sample')}, {format_size(done.bytes)}"
    report.say(f"{written} in {count(done.shards, 'shard')}{rejected}")
    for message in done.messages:
        report.say(message)
    report.figures.update(done.as_dict())
    report.close()
    if done.failed:
        print(f"penstock: {count(done.failed, failed)}", file=sys.stderr)
    return BAD_DATA if done.failed else FINE
