"""``penstock bench``: read shards as a training run would, and say where the time goes."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from penstock.cli.arguments import add_json_argument, at_least
from penstock.cli.progress import track
from penstock.cli.report import Report
from penstock.errors import PipelineError
from penstock.handlers import Handler, describe, reraise_exception
from penstock.storage.listing import find_shards

PICTURES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm")
SHUFFLED = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shards", nargs="+", metavar="SHARDS", help="shards, braces, or a folder/")
    parser.add_argument(
        "--image-size",
        type=at_least(1),
        default=224,
        metavar="N",
        help="pictures are cropped at random and resized to NxN (default 224)",
    )
    parser.add_argument("--batch", type=at_least(1), default=256, help="samples (default 256)")
    parser.add_argument(
        "--threads", type=at_least(1), default=None, metavar="N", help="default: one per processor"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="one epoch, or so long (default 10)",
    )
    parser.add_argument("--no-decode", action="store_true", help="only read and batch")
    parser.add_argument(
        "--skip", action="store_true", help="leave out what is damaged, and tell how much"
    )
    parser.add_argument("--device", help="also bring the batches there, such as cuda")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for chrome or Perfetto")
    add_json_argument(parser)


class Skips:
    """A handler that leaves out what fails, and remembers the first."""

    first = ""

    def __call__(self, error: Exception) -> bool:
        self.first = self.first or describe(error)
        return True


def run(arguments: argparse.Namespace) -> int:
    if arguments.seconds <= 0:
        raise PipelineError(f"--seconds is a time above 0, not {arguments.seconds:g}")
    report = Report(as_json=arguments.json)
    shards = [url for text in arguments.shards for url in find_shards(text)]
    threads = arguments.threads or os.cpu_count() or 1
    handler = Skips() if arguments.skip else reraise_exception
    loader, recipe = _loader(shards, arguments, threads, handler)
    report.say(f"{len(shards):,} shards on {threads} threads: {recipe}")
    first, samples, seconds = _measured(loader, arguments.seconds, columns="Crop" in recipe)
    why = getattr(handler, "first", "")
    if not first:
        skipped_first = f": all were skipped, the first was {why}" if why else ""
        raise PipelineError(f"no samples in {', '.join(arguments.shards)}{skipped_first}")
    stats = loader.stats()
    if arguments.trace:
        stats.to_trace(arguments.trace)
    report.say(f"the first batch after {stats.first_batch_s:.2f} s")
    if samples:
        report.say(f"{samples:,} samples in {seconds:.1f} s: {samples / seconds:,.0f} a second")
    skipped = sum(stats.skipped.values())
    if skipped:
        report.say(f"{skipped:,} skipped, the first was {why}")
    report.say(str(stats))
    report.figures.update(
        shards=len(shards),
        recipe=recipe,
        first_batch_s=stats.first_batch_s,
        samples=first + samples,
        samples_per_s=samples / seconds if samples else None,
        skipped=skipped,
        first_skipped=why or None,
        stats=json.loads(stats.to_json()),
    )
    report.close()
    return 0


def _loader(
    shards: list[str], arguments: argparse.Namespace, threads: int, handler: Handler
) -> tuple[Any, str]:
    """What a training run would iterate, and how that is told."""
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
    """The field that holds pictures, by the first sample."""
    from penstock.pipeline.webdataset import WebDataset

    for sample in WebDataset(shards, handler, shardshuffle=False, empty_check=False):
        return next((f for f in sample if f.lower().rpartition(".")[2] in PICTURES), None)
    return None


def _measured(loader: Any, limit_s: float, columns: bool) -> tuple[int, int, float]:
    """Samples of the first batch, of those after it, and the seconds that these took."""
    first = samples = 0
    begin = now = 0.0
    for batch in track(loader, "Reading", unit="batches"):
        now = time.perf_counter()
        number = len(batch[0]) if columns else len(batch)
        if not first:
            first, begin = number, now
        else:
            samples += number
        if now - begin >= limit_s:
            break
    return first, samples, now - begin
