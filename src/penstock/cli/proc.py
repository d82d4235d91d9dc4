"""``penstock proc``: a shell command for every sample."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import add_options, add_shards
from penstock.cli.shard_output import end_report, start_report

EXAMPLE = "penstock proc 'shards/*.tar' -o upper/ -c 'tr a-z A-Z < sample.txt > sample.upper.txt'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    out = {"metavar": "PATTERN", "help": "a folder/, a pattern with %%06d, a file, or -"}
    add_options(parser, "output", required={"output"}, output=out)
    commands = parser.add_mutually_exclusive_group(required=True)
    commands.add_argument(
        "-c", "--command", dest="line", metavar="CMD", help="makes one sample of one: sample.EXT"
    )
    commands.add_argument(
        "--multi", metavar="CMD", help="makes several of one: sample-000000.EXT, …"
    )
    bad = {
        "choices": ("abort", "skip", "keep"),
        "help": "if a command fails: abort (default), skip the sample, or keep it as it was",
    }
    add_options(parser, "fields", "slice", "jobs", "on_error", on_error=bad)
    parser.add_argument("--log", metavar="FIELD", help="keep what commands print in this field")
    add_options(parser, "no_index", "force", "json", "quiet")


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.processing import proc

    report = start_report(arguments)
    done = proc(
        arguments.shards,
        arguments.output,
        list_file=arguments.list,
        command=arguments.line,
        multi=arguments.multi,
        fields=arguments.fields,
        slice=arguments.slice,
        jobs=arguments.jobs,
        on_error=arguments.on_error,
        log=arguments.log,
        index=not arguments.no_index,
        force=arguments.force,
        quiet=arguments.quiet,
    )
    return end_report(report, done, "command failed")
