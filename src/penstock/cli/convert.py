"""``penstock convert``: samples as a table, or interleaved documents in another layout."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import add_options, add_shards, shards_of
from penstock.cli.report import Report
from penstock.errors import PipelineError

EXAMPLE = "penstock convert shards/train-000000.tar --to csv -o - --fields 'cls caption:txt'"
TABLES = ("jsonl", "tsv", "csv", "parquet")
LAYOUTS = ("dashed", "base64", "members", "markers", "obelics")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "--to",
        choices=(*TABLES, *LAYOUTS),
        required=True,
        help="the format of a table, or a layout of interleaved documents",
    )
    parser.add_argument(
        "--images", metavar="FOLDER", help="of documents: the folder of images that are only named"
    )
    out = {
        "metavar": "FILE",
        "help": "the table (- is stdout), or a pattern of shards: d-%%06d.tar",
    }
    bad = {"help": "at a damaged shard, document or value, abort (default) or skip it"}
    count = {"help": "of documents: at most N in a shard (default 100,000)"}
    size = {"help": "of documents: the largest size of a shard (default 3GB)"}
    none = {"help": "of documents: do not write an index beside the shards"}
    names = ("output", "fields", "count", "size", "on_error", "no_index", "force", "json", "quiet")
    changes = {"output": out, "on_error": bad, "count": count, "size": size, "no_index": none}
    add_options(parser, *names, required={"output"}, **changes)


def run(arguments: argparse.Namespace) -> int:
    return _write_table(arguments) if arguments.to in TABLES else _write_documents(arguments)


def _write_table(arguments: argparse.Namespace) -> int:
    from penstock.tools.conversion import convert

    report = Report.of(arguments)
    done = convert(
        arguments.shards,
        arguments.output,
        list_file=arguments.list,
        to=arguments.to,
        fields=arguments.fields,
        on_error=arguments.on_error,
        force=arguments.force,
    )
    report.say(f"{done.output}: {done.rows:,} rows of {', '.join(done.columns)}")
    for message in done.messages:
        report.say(f"skipped: {message}")
    report.figures.update(done.as_dict())
    report.close()
    return 1 if done.skipped else 0


def _write_documents(arguments: argparse.Namespace) -> int:
    from penstock.documents import convert
    from penstock.jobs.output_listing import OutputSet
    from penstock.jobs.plan import inside
    from penstock.tools.inputs import handler_for
    from penstock.tools.outputs import refuse_existing, shard_name
    from penstock.tools.shard_output import OutputPlace

    if arguments.fields is not None:
        raise PipelineError("--fields is for tables, not for interleaved documents")
    shard_name(arguments.output, 0)  # refuses a pattern without a number
    place = OutputPlace(arguments.output)
    outputs = OutputSet([place.rest], in_parts=True)
    shards = shards_of(arguments)
    outputs.refuse_inputs(place.folder, shards, force=arguments.force)
    if not arguments.force:
        for name in outputs.find(place.folder):
            refuse_existing(inside(place.folder, name))
    report = Report.of(arguments)
    arguments.kept = "the complete shards are kept"
    handler, skipped = handler_for(arguments.on_error)
    written = convert(
        shards,
        arguments.output,
        to=arguments.to,
        images=arguments.images,
        maxcount=arguments.count or 100_000,
        maxsize=arguments.size or 3e9,
        index=not arguments.no_index,
        handler=handler,
    )
    report.say(f"{len(written):,} shards of the layout {arguments.to}: {arguments.output}")
    for message in skipped.messages:
        report.say(f"skipped: {message}")
    report.figures.update(shards=written, layout=arguments.to, skipped=skipped.count)
    report.figures["messages"] = skipped.messages
    report.close()
    return 1 if skipped.count else 0
