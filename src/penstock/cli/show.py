"""``penstock show``: one sample, its members, and its picture at a terminal."""

from __future__ import annotations

import argparse
import contextlib

from penstock.cli.arguments import add_json_argument
from penstock.cli.report import Report
from penstock.errors import DecodingError

EXAMPLE = "penstock show shards/train-000000.tar k002"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shard", metavar="SHARD", help="a shard: a path or URL; - is stdin")
    parser.add_argument("key", nargs="?", metavar="KEY", help="the sample (default: the first)")
    parser.add_argument("--no-picture", action="store_true", help="do not draw pictures")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.cli.head import fitted
    from penstock.redact import redact
    from penstock.tools.field_values import kind_of
    from penstock.tools.listing import show
    from penstock.tools.units import format_size

    report = Report.of(arguments)
    sample = show(arguments.shard, arguments.key)
    if report.as_json:
        report.figures.update(sample.as_dict())
        report.close()
        return 0
    report.say(f"{sample.key}  ({redact(sample.shard)}, byte {sample.offset})")
    width = max((len(member.field) for member in sample.members), default=0)
    for member in sample.members:
        place = f"{format_size(member.size):>8}  byte {member.data_offset}"
        report.row(fitted(f"  {member.field:<{width}}  {place}  {member.description}"), {})
    if report.pictures and not arguments.no_picture:
        from penstock.cli.half_blocks import print_picture

        for member in sample.members:
            if kind_of(member.field) == "image" and member.size:
                with contextlib.suppress(DecodingError):  # its description says what is wrong
                    print_picture(member.data)
    return 0
