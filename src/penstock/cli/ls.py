"""``penstock ls``: one line per sample, with the size of each field."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import add_options, add_shards, shards_of
from penstock.cli.report import Report

EXAMPLE = "penstock ls shards/train-000000.tar -n 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    add_options(parser, "count", "fields", "json", "quiet")


def run(arguments: argparse.Namespace) -> int:
    from penstock.redact import redact
    from penstock.tools.listing import list_samples
    from penstock.tools.units import format_size

    report = Report.of(arguments)
    shards = shards_of(arguments)
    shard = None
    for sample in list_samples(shards, count=arguments.count, fields=arguments.fields):
        if sample.shard != shard and len(shards) > 1:
            report.say(f"{redact(sample.shard)}:")
        shard = sample.shard
        sizes = (f"{field} {format_size(size)}" for field, size in sample.fields.items())
        report.row(f"{_one_line(sample.key)}  {', '.join(sizes)}", sample.as_dict())
    return 0


def _one_line(key: str) -> str:
    return key.replace("\t", "\\t")
