"""``penstock demo``: the way of the data from made shards to a trained model, in a minute.

It writes shards, streams them back through shuffle, decode, augment and batch, trains a small
network where torch is installed, looks at the lengths of sounds, and shows one batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.cli.report import Report, add_json_argument
from penstock.errors import PipelineError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("demo-data"), help="folder for the data")
    parser.add_argument("--samples", type=int, default=2000, help="how many images (%(default)s)")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same demo (%(default)s)")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.samples < 10 or arguments.epochs < 0:
        raise PipelineError("demo: --samples must be at least 10 and --epochs at least 0")
    from penstock.cli.demo import steps

    report = Report(as_json=arguments.json)
    shards = steps.make(report, arguments.out, arguments.samples, arguments.seed)
    steps.stream(report, shards["train"], arguments.samples, arguments.seed)
    steps.learn(report, shards, arguments.samples, arguments.epochs, arguments.seed)
    steps.listen(report, shards["speech"], arguments.samples)
    steps.look(report, shards["train"], arguments.out / "batch.png", arguments.seed)
    report.close()
    return 0
