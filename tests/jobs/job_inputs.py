"""Shards for the tests of jobs."""

from __future__ import annotations

from pathlib import Path

import penstock as wds


def make_inputs(folder, shards=6, each=20):
    """Shards of numbered samples; their URL with braces."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with wds.TarWriter(str(folder / f"in-{shard:04d}.tar")) as sink:
            for place in range(each):
                number = shard * each + place
                sink.write({"__key__": f"{number:06d}", "cls": number, "txt": f"text {number}"})
    return str(folder / f"in-{{0000..{shards - 1:04d}}}.tar")


def read(folder, pattern="*.tar"):
    """All samples of the shards in a folder, by key."""
    found = {}
    for path in sorted(Path(folder).glob(pattern)):
        for sample in wds.WebDataset(str(path), shardshuffle=False):
            found[sample["__key__"]] = sample
    return found
