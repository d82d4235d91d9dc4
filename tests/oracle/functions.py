"""What generated pipelines read, and the functions they apply to it.

A sample has an id, a whole number. Inside a pipeline an item is ``id * 1000 + noise``: functions
that draw random numbers change only the noise, so the model knows every item by its id.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import cbor2
import msgpack
from numbered import write_shards

from penstock.stages.stage import Each, Many

DATA = {
    "even": (0, [6, 6, 6, 6]),
    "uneven": (100, [5, 9, 1, 7, 12, 3]),
    "one": (200, [7]),
    "three": (300, [8, 8, 8]),
    "gaps": (400, [4, 0, 5]),
}
"""Data set → the id of its first sample, and how many samples each shard has."""
RECORDS = {"cbor": cbor2.dumps, "msgpack": msgpack.packb}
NOISE = 1000
LIST = [id * NOISE for id in range(500, 517)]
"""The items of a source without shards."""


def shards_of(name: str) -> list[list[int]]:
    """The ids of a data set's samples, shard by shard."""
    first, sizes = DATA[name]
    ends = [first + sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [list(range(end - size, end)) for end, size in zip(ends, sizes)]


def urls_of(folder: Path, name: str, kind: str = "tar") -> list[str]:
    return [str(folder / name / f"{place}000.{kind}") for place in range(len(DATA[name][1]))]


def index_of(folder: Path, name: str) -> str:
    return str(folder / name / "index.parquet")


def write_data(folder: Path) -> None:
    """Write all data sets: shards, their index with a column of lengths, and files of records."""
    from penstock.shards.index import build_index  # not needed in workers, and slow to import

    for name in DATA:
        (folder / name).mkdir()
        for place, ids in enumerate(shards_of(name)):
            first = ids[0] if ids else 0
            write_shards(folder / name, 1, len(ids), first=first, name=str(place))
            for kind, pack in RECORDS.items():
                records = b"".join(pack({"__key__": f"s{id}", "cls": id}) for id in ids)
                Path(urls_of(folder, name, kind)[place]).write_bytes(records)
        columns = {"frames": lambda sample: frames(int(sample["cls"]))}
        build_index(urls_of(folder, name), index_of(folder, name), columns=columns)


# ── from samples to numbers ─────────────────────────────────────────────────────────────


def number(sample):
    return int(sample["cls"]) * NOISE


def scaled(values):
    return int(values[0]) * NOISE


def read_number(stream):
    return int(stream.read())


def more(key):
    return {"more": len(key)}


# ── on numbers ──────────────────────────────────────────────────────────────────────────


def id_of(item):
    return item // NOISE


def frames(id):
    """The length of a sample."""
    return 1 + id * 7 % 11


def frames_of(item):
    return frames(id_of(item))


def plus_one(item):
    return item + NOISE


def noisy(item, rng):
    return id_of(item) * NOISE + int(rng.integers(NOISE))


def noisy_global(item):
    return id_of(item) * NOISE + random.randrange(NOISE)


DELAYS = True
"""False in reference runs: without threads the time that a function takes changes nothing."""


def slow(item):
    """Take long enough that a loader on threads sends the work to its pool, and not evenly."""
    if DELAYS:
        time.sleep((3 + item // NOISE % 5) * 1e-4)
    return item


def kept(id):
    return id % 5 != 0


def keep(item):
    return kept(id_of(item))


def keep_none(item):
    return False


def fails(id):
    return id % 9 == 4


def failing(item):
    if fails(id_of(item)):
        raise ValueError(f"{item} fails")
    return item


def pair(item):
    return item, f"n{item}"


def first(values):
    return int(values[0])


def tokens(item):
    return [item] * frames_of(item)


def packed_items(row):
    return [int(row["tokens"][start]) for start in row["cu_seqlens"][:-1]]


class dropping(Each):
    """A user's stage: leaves out the items that ``keep`` does."""

    def __init__(self):
        pass

    def apply(self, item):
        return item if keep(item) else None


class copying(Many):
    """A user's stage: each item ``id % most`` times."""

    def __init__(self, most):
        self.most = most

    def expand(self, item):
        return [item + copy * NOISE * 1000 for copy in range(id_of(item) % self.most)]


def every_other(source):
    for place, item in enumerate(source):
        if place % 2:
            yield item


def delayed(source):
    """The same items, each two later: the last ones come when the source has ended."""
    waiting = []
    for item in source:
        waiting.append(item)
        if len(waiting) > 2:
            yield waiting.pop(0)
    yield from waiting
