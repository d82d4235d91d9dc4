"""``penstock diff``: compare two data sets sample by sample; status 1 if they differ."""

from __future__ import annotations

import argparse
import collections

from penstock.cli.arguments import add_json_argument
from penstock.cli.progress import track
from penstock.cli.report import Report

EXAMPLE = "penstock diff shards/train-000000.tar shards/train-000000.tar"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the old shards, as one argument with braces or *")
    parser.add_argument("b", metavar="B", help="the new shards")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.differences import compare
    from penstock.tools.inputs import list_shards, read_samples

    report = Report.of(arguments)
    old, new = list_shards(arguments.a), list_shards(arguments.b)
    counts: collections.Counter[str] = collections.Counter()
    before = track(read_samples(old), "Reading A")
    after = track(read_samples(new), "Reading B")
    for difference in compare(before, after):
        counts[difference.change] += 1
        report.row(str(difference), difference.as_dict())
    words = [f"{counts[change]:,} {change}" for change in ("added", "removed", "moved", "changed")]
    report.say(", ".join(words) if counts else "no differences")
    return 1 if counts else 0
