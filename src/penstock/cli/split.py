"""``penstock split``: shards of another size."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import add_options, add_shards
from penstock.cli.shard_output import (
    add_output,
    add_shard_options,
    end_report,
    shard_options,
    start_report,
)

EXAMPLE = "penstock split 'shards/*.tar' -o 'parts/part-%06d.tar' -n 4 --post 'ls -l %s'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    add_output(parser)
    add_options(parser, "slice")
    parser.add_argument(
        "--post", metavar="CMD", help="run after each shard, with %%s replaced by its name"
    )
    add_shard_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.reworking import split

    report = start_report(arguments)
    done = split(
        arguments.shards,
        arguments.output,
        list_file=arguments.list,
        slice=arguments.slice,
        post=arguments.post,
        **shard_options(arguments),
    )
    return end_report(report, done)
