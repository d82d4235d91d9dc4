"""``penstock sort``: the samples of shards in another order."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import add_options, add_shards, parsed
from penstock.cli.shard_output import (
    add_output,
    add_shard_options,
    end_report,
    shard_options,
    start_report,
)

EXAMPLE = "penstock sort 'shards/*.tar' -o 'sorted/%06d.tar' --by cls:int -n 4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    add_output(parser)
    parser.add_argument(
        "--by",
        default="key",
        metavar="key|FIELD[:text|int|float]|random",
        help="what samples are sorted by (default key)",
    )
    parser.add_argument(
        "--memory",
        type=parsed("units", "parse_size"),
        default=10**9,
        metavar="BYTES",
        help="memory for samples (default 1GB)",
    )
    add_options(parser, "seed")
    add_shard_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.reworking import sort

    report = start_report(arguments)
    done = sort(
        arguments.shards,
        arguments.output,
        list_file=arguments.list,
        by=arguments.by,
        seed=arguments.seed,
        memory=arguments.memory,
        **shard_options(arguments),
    )
    return end_report(report, done)
