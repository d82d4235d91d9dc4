"""The steps of the demo: make, stream, learn, listen, look. Each is written as a user would."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import penstock as wds
from penstock.cli.demo.augment import RandomCut, whole
from penstock.cli.demo.picture import in_terminal, save_contact_sheet
from penstock.cli.demo.shards import Shards, counts, find_or_make, size_bytes
from penstock.cli.progress import track
from penstock.cli.report import Report
from penstock.codecs.audio import audiohandler
from penstock.datasets import SHAPES
from penstock.transforms.any_image import describe_jpeg_decoder

BATCH = 32


def make(report: Report, folder: Path, samples: int, seed: int) -> Shards:
    """Write the data set, or reuse that of an earlier run."""
    shards, made = find_or_make(folder, samples, seed)
    count = counts(samples)
    files, size_mb = sum(map(len, shards.values())), size_bytes(shards) / 1e6
    report.figures["data"] = {
        "folder": str(folder),
        "made": made,
        "images": count["train"] + count["val"],
        "sounds": count["speech"],
        "shards": files,
        "megabytes": round(size_mb, 1),
    }
    report.say(
        f"1. Data      {count['train'] + count['val']} drawn images and {count['speech']} spoken "
        f"words in {files} shards, {size_mb:.1f} MB: "
        f"{'written to' if made else 'found in'} {folder}/"
    )
    return shards


def training_batches(shards: list[str], seed: int) -> Any:
    """Return shuffled, decoded, augmented batches of images and labels."""
    return (
        wds.WebDataset(shards, shardshuffle=len(shards), seed=seed)
        .shuffle(1000, seed=seed)
        .decode("rgb8")
        .to_tuple("jpg", "cls")
        .map_tuple(RandomCut(seed), int)
        .batched(BATCH)
    )


def validation_batches(shards: list[str]) -> Any:
    """Return batches without shuffling and augmentation, for validation."""
    dataset = wds.WebDataset(shards).decode("rgb8").to_tuple("jpg", "cls")
    return dataset.map_tuple(whole, int).batched(BATCH)


def stream(report: Report, shards: list[str], samples: int, seed: int) -> None:
    """Read the training images twice: as bytes, and ready for a model."""
    count = counts(samples)["train"]
    raw = Timed(wds.WebDataset(shards))
    for _ in track(raw, "Reading", count):
        pass
    ready = Timed(training_batches(shards, seed))
    images = sum(len(labels) for _, labels in track(ready, "Decoding", count // BATCH))
    plain_rate, ready_rate = raw.count / raw.seconds, images / ready.seconds
    report.figures["stream"] = {"read_per_s": round(plain_rate), "ready_per_s": round(ready_rate)}
    report.say(
        f"2. Stream    {plain_rate:,.0f} images/s read, {ready_rate:,.0f} images/s shuffled, "
        "decoded, augmented and batched, in one process"
    )
    decoder = describe_jpeg_decoder()
    report.figures["jpeg_decoder"] = decoder
    report.say(f"{'':13}JPEG decoder of wds.RandomResizedCrop: {decoder}")


def learn(report: Report, shards: Shards, samples: int, epochs: int, seed: int) -> None:
    """Train a small network with torch, or a smaller one with numpy where torch is missing."""
    if not epochs:
        report.figures["training"] = None
        report.say("3. Training  left out (no epochs)")
        return
    batches = training_batches(shards["train"], seed)
    if importlib.util.find_spec("torch") is not None:
        from penstock.cli.demo.model import train

        batches, package = wds.WebLoader(batches, batch_size=None), "torch"
    else:
        from penstock.cli.demo.numpy_model import train

        package = "numpy"
    steps = -(-counts(samples)["train"] // BATCH)
    training = train(
        batches,
        validation_batches(shards["val"]),
        classes=len(SHAPES),
        epochs=epochs,
        steps=steps,
        seed=seed,
    )
    bar = track(training, "Training", epochs * steps, unit="batches")
    results = [result for result in bar if result is not None]
    last, seconds = results[-1], results[-1]["seconds"]
    report.figures["training"] = {
        "package": package,
        "epochs": epochs,
        "seconds": round(seconds, 1),
        "loss": round(last["loss"], 4),
        "accuracy": round(last["accuracy"], 4),
        "accuracies": [round(result["accuracy"], 4) for result in results],
    }
    report.say(
        f"3. Training  {last['accuracy']:.1%} of {counts(samples)['val']} unseen images classified "
        f"correctly after {epochs} epochs of {seconds / epochs:.1f} s with {package} "
        f"(chance: {1 / len(SHAPES):.0%})"
    )


def listen(report: Report, shards: list[str], samples: int) -> None:
    """Stream the sounds and report their lengths."""
    dataset = wds.WebDataset(shards).decode(audiohandler).to_tuple("wav", "txt")
    lengths = np.array(
        [
            len(sound) / rate
            for (sound, rate), _ in track(dataset, "Listening", counts(samples)["speech"])
        ]
    )
    shortest, middle, longest = np.quantile(lengths, [0, 0.5, 1])
    report.figures["lengths_s"] = {
        "shortest": round(float(shortest), 3),
        "median": round(float(middle), 3),
        "longest": round(float(longest), 3),
        "total": round(float(lengths.sum()), 1),
        "padding_of_batches": round(_padding(lengths), 3),
    }
    report.say(
        f"4. Lengths   sounds of {shortest:.1f} to {longest:.1f} s, half of them under "
        f"{middle:.1f} s  {_histogram(lengths)}"
    )
    report.say(f"{'':13}in batches of {BATCH} as they come, {_padding(lengths):.0%} is padding")


def look(report: Report, shards: list[str], path: Path, seed: int) -> None:
    """Save a picture of the first training batch, and show a few of its images."""
    images, labels = next(iter(training_batches(shards, seed)))
    names = list(SHAPES)
    words = [names[int(label)] for label in labels]
    save_contact_sheet(path, images, words)
    report.figures["picture"] = str(path)
    report.say(f"5. A batch   {path}")
    if report.pictures:
        from rich.console import Console

        console = Console()
        console.print()
        console.print(in_terminal(images, words, console.width))


class Timed:
    """Iterates over items, counts them, and measures the seconds spent waiting for them."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items, self.count, self.seconds = items, 0, 0.0

    def __iter__(self) -> Iterator[Any]:
        asked = time.perf_counter()
        for item in self.items:
            self.seconds += time.perf_counter() - asked
            self.count += 1
            yield item
            asked = time.perf_counter()
        self.seconds += time.perf_counter() - asked


def _padding(lengths: Any) -> float:
    """Return the share of padding if each sound is padded to the longest of its batch."""
    batches = [lengths[start : start + BATCH] for start in range(0, len(lengths), BATCH)]
    filled = sum(float(batch.max()) * len(batch) for batch in batches)
    return 1 - float(lengths.sum()) / filled


def _histogram(values: Any) -> str:
    """Return a histogram of sixteen characters."""
    bars = " ▁▂▃▄▅▆▇█"
    heights, _ = np.histogram(values, bins=16)
    return "".join(bars[-(-int(height) * 8 // int(heights.max()))] for height in heights)
