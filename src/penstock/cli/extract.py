"""``penstock extract``: the members of shards as files."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import add_options, add_shards
from penstock.cli.report import Report
from penstock.storage.urls import is_remote

EXAMPLE = "penstock extract shards/train-000000.tar -o files --keys k001,k002 --fields 'jpg txt'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "--keys", metavar="FILE|KEY,…", help="only these samples: a file with one key per line"
    )
    out = {"metavar": "DIR", "help": "the folder"}
    bad = {"help": "at a damaged shard or unsafe name, abort (default) or skip it"}
    names = ("output", "fields", "on_error", "force", "json", "quiet")
    add_options(parser, *names, required={"output"}, output=out, on_error=bad)


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.extraction import extract
    from penstock.tools.units import count, format_size

    report = Report.of(arguments)
    if arguments.force or is_remote(arguments.output):
        arguments.kept = f"files that were complete are in {arguments.output}"
    done = extract(
        arguments.shards,
        arguments.output,
        list_file=arguments.list,
        keys=arguments.keys,
        fields=arguments.fields,
        on_error=arguments.on_error,
        force=arguments.force,
    )
    written = f"{count(done.samples, 'sample')}, {count(done.files, 'file')}"
    report.say(f"{written}, {format_size(done.bytes)} in {done.output}")
    for message in done.messages:
        report.say(f"skipped: {message}")
    report.figures.update(done.as_dict())
    report.close()
    return 1 if done.skipped else 0
