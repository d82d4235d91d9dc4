"""``penstock select``: some samples of shards, as shards or as a list of keys."""

from __future__ import annotations

import argparse
import sys

from penstock.cli.arguments import add_options, add_shards
from penstock.cli.shard_output import add_shard_options, end_report, shard_options, start_report
from penstock.redact import redact

EXAMPLE = """penstock select 'shards/*.tar' --where 'has("jpg") and key >= "k005"' -o some.tar"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    choices = parser.add_mutually_exclusive_group(required=True)
    add_options(choices, "where")
    choices.add_argument("--keys", metavar="FILE|KEY,…", help="only samples with these keys")
    choices.add_argument("--exclude", metavar="FILE|KEY,…", help="all samples but these")
    places = parser.add_mutually_exclusive_group(required=True)
    add_options(places, "output", output={"metavar": "PATTERN"})
    places.add_argument(
        "--list", dest="as_list", action="store_true", help="print the keys, write no shard"
    )
    parser.add_argument("--index", metavar="FILE", help="the index that has the columns")
    add_shard_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.reworking import select

    report = start_report(arguments)
    done = select(
        arguments.shards,
        None if arguments.as_list else arguments.output,
        list_file=arguments.list,
        where=arguments.where,
        keys=arguments.keys,
        exclude=arguments.exclude,
        index_file=arguments.index,
        **shard_options(arguments),
    )
    if isinstance(done, list):
        for origin in done:
            figures = {"key": origin.key, "shard": redact(origin.url), "offset": origin.offset}
            report.row(str(origin.key), figures, raw=not sys.stdout.isatty())
        return 0
    return end_report(report, done)
