"""``penstock lengths``: draw the lengths of samples, and compare ways to batch them.

``sources`` reads the lengths, ``schemes`` are the ways to batch that are compared.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from penstock.batches.number_format import figure
from penstock.cli.arguments import add_options, at_least
from penstock.cli.report import Report
from penstock.errors import SampleError
from penstock.tools.inputs import list_shards
from penstock.tools.outputs import refuse_existing

EXAMPLE = "penstock lengths shards/train-{000000..000001}.tar --field txt:bytes"

EXAMPLES_IN_BATCH = 32
"""The default budget is that of this many samples of mean length."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        nargs="*",
        metavar="SHARDS|MANIFEST",
        help="shards, braces, or a folder/; or a manifest: .json, .jsonl, .csv or .parquet",
    )
    add_options(parser, "list")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--column",
        metavar="NAME",
        help="the column of the manifest, or of the shards' index, that has the length "
        "(default: duration)",
    )
    chosen.add_argument(
        "--field",
        metavar="FIELD[:MEASURE]",
        help="measure this field while reading the shards: wav:seconds, txt:bytes, "
        "json:tokens (default: seconds of sound, or else bytes of the sample)",
    )
    parser.add_argument(
        "--replace",
        type=_replacement,
        action="append",
        default=[],
        metavar="NAME=TEXT",
        help="the value of {NAME} in a manifest, such as data_folder=/data; may be repeated",
    )
    parser.add_argument(
        "--budget",
        type=_above_zero,
        metavar="LENGTH",
        help=f"what a padded batch may have (default: {EXAMPLES_IN_BATCH} samples of mean length)",
    )
    parser.add_argument(
        "--buckets", type=at_least(1), default=200, metavar="N", help="of the scheme with buckets"
    )
    parser.add_argument(
        "--ranks",
        type=at_least(1),
        metavar="N",
        help="also report how even the steps of N ranks are",
    )
    parser.add_argument("--svg", metavar="FILE", help="also write a drawing")
    add_options(parser, "seed", "force", "json", "quiet")


def run(arguments: argparse.Namespace) -> int:
    from penstock.batches.analysis.charts import histogram, schemes_svg  # these load numpy
    from penstock.batches.analysis.padding_report import compared
    from penstock.cli.lengths.schemes import reports_on
    from penstock.cli.lengths.sources import is_manifest, measured

    report = Report.of(arguments)
    if arguments.svg:
        refuse_existing(arguments.svg, arguments.force)
    replacements = dict(arguments.replace)
    data = arguments.data
    if arguments.list or not is_manifest(data):
        data = list_shards(data, arguments.list)
    found = measured(data, arguments.column, arguments.field, replacements)
    lengths = found.lengths
    if not len(lengths):
        raise SampleError(f"there are no samples with a length: {found.describe()}")
    budget = arguments.budget or _budget(lengths)
    report.say(found.describe())
    report.say(_in_words(lengths) + "\n")
    for line in histogram(lengths):
        report.say(line)
    reports, left_out = reports_on(
        lengths, budget, buckets=arguments.buckets, seed=arguments.seed, ranks=arguments.ranks
    )
    default = "" if arguments.budget else ", since --budget was not given"
    report.say(f"\nBatches with a budget of {figure(budget)} (samples x longest){default}:\n")
    report.say(compared(reports))
    report.say("\n" + _needed(reports[0], len(lengths), left_out))
    report.figures.update(
        source=found.source,
        samples=len(lengths),
        left_out=found.bad,
        **_figures(lengths),
        budget=budget,
        schemes=[one.as_dict() for one in reports],
    )
    if arguments.svg:
        Path(arguments.svg).write_text(schemes_svg(reports))
        report.say(f"drawing: {arguments.svg}")
        report.figures["svg"] = arguments.svg
    report.close()
    return 0


def _needed(report: Any, samples: int, left_out: list[str]) -> str:
    text = f"Every scheme needs at least {report.floor:,} batches."
    if report.outlier_count:
        text += f" {report.outlier_count:,} of {samples:,} samples are above the budget alone."
    return " ".join([text, *left_out])


def _budget(lengths: Any) -> float:
    """Return a budget of two digits that holds a few tens of samples, and the longest too."""
    wanted = max(EXAMPLES_IN_BATCH * float(lengths.mean()), float(lengths.max()))
    digits = f"{wanted:.1e}"
    rounded = float(digits)
    return rounded if rounded >= lengths.max() else float(lengths.max())


def _figures(lengths: Any) -> dict[str, float]:
    import numpy as np

    low, median, p95, p99, high = np.percentile(lengths, [0, 50, 95, 99, 100]).tolist()
    figures = {"shortest": low, "median": median, "mean": float(lengths.mean()), "p95": p95}
    return {**figures, "p99": p99, "longest": high, "total": float(lengths.sum())}


def _in_words(lengths: Any) -> str:
    words = (f"{name} {figure(value, 5)}" for name, value in _figures(lengths).items())
    return ", ".join(words)


def _replacement(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(
            f"must be NAME=TEXT, such as data_folder=/data, not {text!r}"
        )
    return name, value


def _above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return number
