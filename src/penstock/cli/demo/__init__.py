"""``penstock demo``: from made-up shards to a trained model, in a minute.

It writes shards, streams them back through shuffle, decode, augment and batch, trains a small
model (with torch if it is installed, otherwise with numpy), reports the lengths of sounds, and
shows one batch. ``steps`` has these steps, ``shards`` the data, ``augment`` the transforms,
``model`` and ``numpy_model`` the two models, ``picture`` the picture of a batch.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from penstock.cli.arguments import add_old_name, add_options, at_least
from penstock.cli.report import Report
from penstock.errors import MissingPackage

EXAMPLE = "penstock demo -o demo-data -n 50 --epochs 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    folder = {
        "type": Path,
        "default": Path("demo-data"),
        "help": "folder for the data (%(default)s)",
    }
    count = {"type": at_least(10), "default": 2000, "help": "how many images (%(default)s)"}
    add_options(parser, "output", "count", output=folder, count=count)
    add_old_name(parser, "--out", "output", type=Path)
    add_old_name(parser, "--samples", "count", type=at_least(10))
    parser.add_argument(
        "--epochs", type=at_least(0), default=6, help="epochs of training (%(default)s)"
    )
    add_options(parser, "seed", "json", "quiet", seed={"type": at_least(0)})


def run(arguments: argparse.Namespace) -> int:
    for package, module in (("pillow", "PIL"), ("soundfile", "soundfile")):
        if importlib.util.find_spec(module) is None:
            raise MissingPackage.of("the demo", package, "image,audio")
    from penstock.cli.demo import steps

    report = Report.of(arguments)
    arguments.kept = f"the shards that are complete are in {arguments.output}/"
    shards = steps.make(report, arguments.output, arguments.count, arguments.seed)
    steps.stream(report, shards["train"], arguments.count, arguments.seed)
    steps.learn(report, shards, arguments.count, arguments.epochs, arguments.seed)
    steps.listen(report, shards["speech"], arguments.count)
    steps.look(report, shards["train"], arguments.output / "batch.png", arguments.seed)
    report.close()
    return 0
