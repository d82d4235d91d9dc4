"""Shards of numbered samples, and the data sets and functions that the tests use on them."""

from __future__ import annotations

import gc
import io
import json
import os
import tarfile

import penstock as wds
from penstock.stages.stage import Many

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS", "WDS_SEED", "WDS_EPOCH")


def write_shards(folder, count=4, each=6, first=0, name="d"):
    """Write tars of samples s0000, s0001, … with ``cls`` (the number) and ``txt``; return paths."""
    urls = []
    for shard in range(count):
        path = folder / f"{name}{shard:03d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for n in range(first + shard * each, first + (shard + 1) * each):
                for field, data in (("cls", b"%d" % n), ("txt", b"text %d" % n)):
                    member = tarfile.TarInfo(f"s{n:04d}.{field}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        urls.append(str(path))
    return urls


def number(sample):
    return int(sample["cls"])


def indexed(urls, **options):
    """Return the samples of indexed shards, shuffled two shards at a time."""
    return wds.WebDataset(urls, index=True, shardshuffle=2, **options)


def indexed_numbers(urls, **options):
    """Return the numbers of the samples of :func:`indexed`."""
    return indexed(urls, **options).map(number)


def is_odd(sample):
    return number(sample) % 2 == 1


def not_fifth(n):
    return n % 5 != 0


def noisy(n, rng):
    return n * 1000 + int(rng.integers(1000))


def plus_one(n):
    return n + 1


def pair(n):
    return (n, f"n{n}")


def first(values):
    return int(values[0])


def through_json(state):
    """Return the state as a file would: saved as JSON and loaded."""
    return json.loads(json.dumps(state))


def flat(batches):
    return [item for batch in batches for item in batch]


class copies(Many):
    """Yields each number n, n % ``most`` times, as 10 n plus the number of the copy."""

    def __init__(self, most=3):
        self.most = most

    def expand(self, item):
        return [item * 10 + copy for copy in range(item % self.most)]


def end_rank():
    """End a process of torch.distributed without shutting Python down.

    While Python 3.11 shuts down, a thread of gloo that frees a tensor aborts the process.
    """
    gc.collect()  # stops the workers of loaders that are no longer used
    os._exit(0)
