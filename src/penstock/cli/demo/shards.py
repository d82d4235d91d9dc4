"""The demo's data set on disk: made once, reused by the next run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import penstock as wds
from penstock.cli.progress import track
from penstock.datasets import drawn_images, spoken_tones

Shards = dict[str, list[str]]
"""Part of the data set (``train``, ``val``, ``speech``) → its shards."""

RECIPE = 1
"""Incremented when the data changes, so that shards of an older version are not reused."""


def counts(samples: int) -> dict[str, int]:
    """Return how many samples each part has, of ``samples`` images in all.

    >>> counts(2000)
    {'train': 1600, 'val': 400, 'speech': 500}
    """
    val = max(1, samples // 5)
    return {"train": max(1, samples - val), "val": val, "speech": max(1, samples // 4)}


def find_or_make(folder: Path, samples: int, seed: int) -> tuple[Shards, bool]:
    """Return the shards in the folder, and whether they had to be made.

    Shards that were made with the same arguments and are complete are reused; others are replaced,
    and those of the earlier run that are no longer needed are removed.
    """
    wanted = {"recipe": RECIPE, "samples": samples, "seed": seed}
    note = folder / "made.json"
    before = _read(note)
    shards: Shards = before.pop("shards", {})
    files = [folder / Path(name).name for names in shards.values() for name in names]
    if before == wanted and all(file.exists() for file in files):
        return _with_folder(folder, shards), False
    for file in files:
        file.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    shards = {part: _write(folder, part, items) for part, items in _parts(samples, seed)}
    note.write_text(json.dumps({**wanted, "shards": shards}, indent=1) + "\n")
    return _with_folder(folder, shards), True


def size_bytes(shards: Shards) -> int:
    """Return the size of all shards."""
    return sum(Path(path).stat().st_size for part in shards.values() for path in part)


def _parts(samples: int, seed: int) -> Iterator[tuple[str, Iterable[dict[str, Any]]]]:
    count = counts(samples)
    images = drawn_images(count["train"] + count["val"], seed)
    yield "train", track(_take(images, count["train"]), "Drawing images", count["train"])
    yield "val", track(_take(images, count["val"]), "Drawing more to test on", count["val"])
    yield "speech", track(spoken_tones(count["speech"], seed), "Saying words", count["speech"])


def _take(items: Iterator[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        yield next(items)


def _write(folder: Path, part: str, samples: Iterable[dict[str, Any]]) -> list[str]:
    names: list[str] = []
    with wds.ShardWriter(
        str(folder / f"{part}-%06d.tar"),
        maxcount=250,
        post=lambda path: names.append(Path(path).name),
        verbose=0,
    ) as writer:
        for sample in samples:
            writer.write(sample)
    return names


def _read(note: Path) -> dict[str, Any]:
    """Return what an earlier run recorded in its file; {} if there is no such file."""
    try:
        before = json.loads(note.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return before if isinstance(before, dict) else {}


def _with_folder(folder: Path, shards: Shards) -> Shards:
    return {part: [str(folder / name) for name in names] for part, names in shards.items()}
