"""``penstock create``: shards from folders, plans, tables and images."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import add_options
from penstock.cli.exit_status import BAD_DATA
from penstock.cli.shard_output import FORCE, add_output, end_report, start_report

EXAMPLE = (
    "penstock extract shards/train-000000.tar -o files && "
    "penstock create files -o 'made/train-%06d.tar' -n 1000 --require jpg,cls"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", nargs="+", metavar="SRC", help="folders, plans or tables")
    add_output(parser)
    parser.add_argument(
        "--from",
        dest="kind",
        choices=("folder", "plan", "table", "images"),
        help="what SRC is: a folder (default); a plan with lines 'member-name source'; a TSV, CSV, "
        "JSONL or Parquet table; a folder of images per class",
    )
    parser.add_argument(
        "--key",
        default="path",
        metavar="path|base|REGEX",
        help="key of a file: its path up to the first dot of its name (default), the same without "
        "folders, or the group of a regular expression",
    )
    parser.add_argument(
        "--as",
        dest="field",
        metavar="FIELD",
        help="with --from images: one field for images of all formats; image becomes image.jpg, "
        "since readers choose the decoder by the extension",
    )
    add_options(parser, "count", "size", count={"help": "samples per shard"})
    parser.add_argument("--require", default="", metavar="EXT,…", help="fields of every sample")
    parser.add_argument(
        "--missing",
        choices=("abort", "warn", "exclude"),
        default="abort",
        help="if a sample lacks a required field (default abort)",
    )
    parser.add_argument("--order", choices=("name", "random"), help="order of samples")
    parser.add_argument("--split", metavar="train=0.9,val=0.1", help="split by hash of the key")
    parser.add_argument(
        "--allow-pipe",
        action="store_true",
        help="run the commands (pipe:) of a plan; only for a plan that you trust",
    )
    add_options(
        parser, "seed", "jobs", "no_index", "dry_run", "force", "json", "quiet", force=FORCE
    )


def run(arguments: argparse.Namespace) -> int:
    from penstock.tools.creation import create
    from penstock.tools.units import count

    report = start_report(arguments)
    done = create(
        arguments.sources,
        arguments.output,
        kind=arguments.kind,
        key=arguments.key,
        field=arguments.field,
        count=arguments.count,
        size=arguments.size,
        require=arguments.require,
        missing=arguments.missing,
        order=arguments.order,
        seed=arguments.seed,
        split=arguments.split,
        allow_pipe=arguments.allow_pipe,
        jobs=arguments.jobs,
        index=not arguments.no_index,
        dry_run=arguments.dry_run,
        force=arguments.force,
        quiet=arguments.quiet,
    )
    if done.dry_run:
        report.say(f"first keys: {', '.join(done.first_keys)}")
        for name, reason in done.rejected_files:
            report.say(f"rejected: {name}: {reason}")
    for split, samples in done.splits.items():
        report.say(f"{split}: {count(samples, 'sample')}")
    status = end_report(report, done)
    return status if done.samples else BAD_DATA
