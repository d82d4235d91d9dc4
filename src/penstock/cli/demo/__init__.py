"""``penstock demo``: the way of the data from made shards to a trained model, in a minute.

It writes shards, streams them back through shuffle, decode, augment and batch, trains a small
network where torch is installed, looks at the lengths of sounds, and shows one batch.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from penstock.cli.arguments import add_json_argument, at_least
from penstock.cli.report import Report
from penstock.errors import MissingPackage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=Path, default=Path("demo-data"), help="folder for the data (%(default)s)")
    add("--samples", type=at_least(10), default=2000, help="how many images (%(default)s)")
    add("--epochs", type=at_least(0), default=6, help="epochs of training (%(default)s)")
    add("--seed", type=at_least(0), default=0, help="same seed, same demo (%(default)s)")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    for package, module in (("pillow", "PIL"), ("soundfile", "soundfile")):
        if importlib.util.find_spec(module) is None:
            raise MissingPackage.of("the demo", package, "image,audio")
    from penstock.cli.demo import steps

    report = Report(as_json=arguments.json)
    shards = steps.make(report, arguments.out, arguments.samples, arguments.seed)
    steps.stream(report, shards["train"], arguments.samples, arguments.seed)
    steps.learn(report, shards, arguments.samples, arguments.epochs, arguments.seed)
    steps.listen(report, shards["speech"], arguments.samples)
    steps.look(report, shards["train"], arguments.out / "batch.png", arguments.seed)
    report.close()
    return 0
