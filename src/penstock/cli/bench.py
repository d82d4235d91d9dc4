"""``penstock bench``: read shards as a training run would, and report the bottleneck."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from penstock.cli.arguments import add_old_name, add_options, add_shards, at_least, shards_of
from penstock.cli.progress import track
from penstock.cli.report import Report
from penstock.codecs.image_files import is_image
from penstock.context import cores
from penstock.errors import PipelineError, SampleError
from penstock.handlers import Handler, describe, reraise_exception
from penstock.redact import redact
from penstock.tools.outputs import refuse_existing

EXAMPLE = "penstock bench shards/train-{000000..000001}.tar --seconds 1"

SHUFFLED = 1000
LISTED = 100
"""How many skipped samples and shards are listed; further ones are only counted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "--image-size",
        type=at_least(1),
        default=224,
        metavar="N",
        help="pictures are cropped at random and resized to NxN (default 224)",
    )
    parser.add_argument("--batch", type=at_least(1), default=256, help="samples (default 256)")
    add_options(
        parser, "jobs", jobs={"help": "read and decode on N threads (default: one per core)"}
    )
    add_old_name(parser, "--threads", "jobs", type=at_least(1))
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="stop after an epoch, or this time (default 10)",
    )
    parser.add_argument("--no-decode", action="store_true", help="only read and batch")
    add_options(
        parser,
        "on_error",
        on_error={"help": "skip: leave out damaged shards and samples, and list them"},
    )
    add_old_name(parser, "--skip", "on_error", action="store_const", const="skip")
    parser.add_argument("--device", help="also copy the batches to a device, such as cuda")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for chrome or Perfetto")
    add_options(parser, "force", "json", "quiet")


class SkipAndList:
    """A handler that skips what fails and keeps the first messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def __call__(self, error: Exception) -> bool:
        message = describe(error)
        if len(self.messages) < LISTED and message not in self.messages:  # the first is read twice
            self.messages.append(message)
        return True


def run(arguments: argparse.Namespace) -> int:
    if arguments.seconds <= 0:
        raise PipelineError(f"--seconds is a time above 0, not {arguments.seconds:g}")
    if arguments.trace:
        refuse_existing(arguments.trace, arguments.force)
    report = Report.of(arguments)
    shards = shards_of(arguments)
    threads = arguments.jobs or cores()
    handler = SkipAndList() if arguments.on_error == "skip" else reraise_exception
    loader, recipe = _loader(shards, arguments, threads, handler)
    report.say(f"{len(shards):,} shards on {threads} threads: {recipe}")
    first, samples, seconds = _measured(loader, arguments, columns="Crop" in recipe)
    bad: list[str] = getattr(handler, "messages", [])
    if not first:
        why = f": all were skipped, the first was {bad[0]}" if bad else ""
        raise SampleError(f"no samples in {', '.join(map(redact, shards))}{why}")
    stats = loader.stats()
    if arguments.trace:
        stats.to_trace(arguments.trace)
    report.say(f"the first batch after {stats.first_batch_s:.2f} s")
    if samples:
        report.say(f"{samples:,} samples in {seconds:.1f} s: {samples / seconds:,.0f} a second")
    skipped = sum(stats.skipped.values())
    if skipped:
        report.say(f"{skipped:,} skipped{':' if skipped == len(bad) else ', the first of them:'}")
        for message in bad:
            report.say(f"  {message}")
    report.say(str(stats))
    report.figures.update(
        shards=len(shards),
        recipe=recipe,
        first_batch_s=stats.first_batch_s,
        samples=first + samples,
        samples_per_s=samples / seconds if samples else None,
        skipped=skipped,
        first_skipped=bad[0] if bad else None,
        skipped_messages=bad,
        stats=json.loads(stats.to_json()),
    )
    report.close()
    return 0


def _loader(
    shards: list[str], arguments: argparse.Namespace, threads: int, handler: Handler
) -> tuple[Any, str]:
    """Return the loader of a training run, and its description."""
    from penstock.loaders.webloader import WebLoader
    from penstock.pipeline.webdataset import WebDataset

    dataset: Any = WebDataset(shards, handler, shardshuffle=len(shards), empty_check=False)
    field = None if arguments.no_decode else _picture_field(shards, handler)
    if field is not None:
        from penstock.transforms.images import RandomResizedCrop

        crop = RandomResizedCrop(arguments.image_size, flip=0.5)
        dataset = dataset.shuffle(SHUFFLED).to_tuple(field, handler=handler)
        dataset = dataset.map_tuple(crop, handler=handler)
        recipe = f"{crop!r} of .{field}"
    elif arguments.no_decode:
        recipe = "as they are"
    else:
        dataset = dataset.shuffle(SHUFFLED).decode(handler=handler)
        recipe = "decoded"
    # Samples of any kind: only pictures have one shape.
    dataset = dataset.batched(arguments.batch) if field else dataset.listed(arguments.batch)
    loader: Any = WebLoader(dataset, num_workers=threads, batch_size=None, engine="threads")
    if arguments.device:
        loader = loader.to_device(arguments.device)
    return loader, f"{recipe}, in batches of {arguments.batch}"


def _picture_field(shards: list[str], handler: Handler) -> str | None:
    """Return the field that holds pictures in the first sample."""
    from penstock.pipeline.webdataset import WebDataset

    for sample in WebDataset(shards, handler, shardshuffle=False, empty_check=False):
        return next((f for f in sample if is_image(f".{f}")), None)
    return None


def _measured(loader: Any, arguments: argparse.Namespace, columns: bool) -> tuple[int, int, float]:
    """Return the samples of the first batch, of those after it, and the seconds these took."""
    first = samples = 0
    begin = now = 0.0
    for batch in track(loader, "Reading", unit="batches"):
        now = time.perf_counter()
        number = len(batch[0]) if columns else len(batch)
        if not first:
            first, begin = number, now
        else:
            samples += number
        if now - begin >= arguments.seconds:
            break
    return first, samples, now - begin
