"""``penstock cat``: the samples of shards in one shard."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli.arguments import OPTIONS, add_options, add_shards, at_least
from penstock.cli.progress import track
from penstock.cli.shard_output import end_report, start_report

EXAMPLE = "penstock cat 'shards/*.tar' -o some.tar --slice 0:10:2 --fields 'image:jpg,png cls'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    add_options(parser, "output", "slice", required={"output"}, output={"metavar": "FILE"})
    part = {**OPTIONS["slice"][1], "help": "the same, for each input shard"}
    parser.add_argument("--shard-slice", **part)
    add_options(parser, "fields")
    parser.add_argument("--rekey", metavar="FORMAT", help="number the keys, such as %%09d")
    number: dict[str, Any] = {"type": at_least(0), "default": 0, "metavar": "N"}
    parser.add_argument("--shuffle", help="draw samples from a buffer of N", **number)
    parser.add_argument("--mix", help="read N shards at once, a sample of each in turn", **number)
    parser.add_argument(
        "--max-errors", help="tolerate N damaged shards (default 0); the status is 1", **number
    )
    add_options(parser, "duplicates", "seed", "force", "json", "quiet")


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.concatenation import cat

    report = start_report(arguments)
    arguments.kept = "nothing was written"
    done = cat(
        arguments.shards,
        arguments.output,
        list_file=arguments.list,
        slice=arguments.slice,
        shard_slice=arguments.shard_slice,
        fields=arguments.fields,
        rekey=arguments.rekey,
        shuffle=arguments.shuffle,
        mix=arguments.mix,
        seed=arguments.seed,
        max_errors=arguments.max_errors,
        duplicates=arguments.duplicates,
        force=arguments.force,
        progress=lambda samples: track(samples, "Writing"),
    )
    return end_report(report, done, "shard cut at its damage")
