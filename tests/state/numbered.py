"""Shards of numbered samples, and the functions that the tests' pipelines are made of."""

from __future__ import annotations

import io
import tarfile

from penstock.stages.stage import Many

PLACES = ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS", "WDS_SEED", "WDS_EPOCH")


def write_shards(folder, count=4, each=6, first=0, name="d"):
    """Tars of samples s0000, s0001 …, each with its number as ``cls`` and a ``txt``."""
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


def flat(batches):
    return [item for batch in batches for item in batch]


class copies(Many):
    """Each number n % 3 times, with the number of the copy behind it: 0, 1 or 2 for one."""

    def __init__(self, most=3):
        self.most = most

    def expand(self, item):
        return [item * 10 + copy for copy in range(item % self.most)]
