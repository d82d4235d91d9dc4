"""What generated pipelines read, and the functions they apply to it.

A sample has an id, a whole number. Inside a pipeline an item is ``id * 1000 + noise``: functions
that draw random numbers change only the noise, so the model knows every item by its id.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import cbor2
import msgpack
from numbered import write_shards

from penstock import TarWriter
from penstock.documents import ImagePiece
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


DOCUMENTS = "docs.tar"


def index_of(folder: Path, name: str, kind: str = "tar") -> str:
    return str(folder / name / f"{kind}.index.parquet")


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
        write_documents(folder, name)
        build_index(
            urls_of(folder, name, DOCUMENTS), index_of(folder, name, DOCUMENTS), group="dashed"
        )
        with TarWriter(other_of(folder, name)) as sink:
            for id in reversed([id for ids in shards_of(name) for id in ids if joins(id)]):
                sink.write({"__key__": f"s{id:04d}", "other": str(id).encode()})


def write_documents(folder: Path, name: str) -> None:
    """Write interleaved documents: a text each, and up to two images."""
    for url, ids in zip(urls_of(folder, name, DOCUMENTS), shards_of(name)):
        with TarWriter(url) as sink:
            for id in ids:
                images = [f"{place}.jpg" for place in range(id % 3)]
                infos = [{"image_name": image, "matched_text_index": 0} for image in images]
                text = json.dumps({"text_list": [str(id)], "image_info": infos}).encode()
                sink.write({"__key__": f"s{id:04d}", "json": text})
                for image in images:
                    sink.write({"__key__": f"s{id:04d}-{image[:1]}", "jpg": b"image"})


def other_of(folder: Path, name: str) -> str:
    """A shard with another field of most samples."""
    return str(folder / name / "other.tar")


def joins(id):
    """Whether the other shard has the sample."""
    return id % 6 != 2


def chosen(id):
    """Whether a subset has the sample."""
    return id % 4 != 2


def left_out(key):
    return not chosen(int(key[1:]))


# ── from samples to numbers ─────────────────────────────────────────────────────────────


def number(sample):
    return int(sample["cls"]) * NOISE


def scaled(values):
    return int(values[0]) * NOISE


def read_number(stream):
    return int(stream.read())


def joined(sample):
    if sample["other"] not in (None, sample["cls"]):
        raise ValueError(f"{sample['__key__']} is joined with {sample['other']}")
    return number(sample)


def document_number(document):
    images = [piece for piece in document.pieces if isinstance(piece, ImagePiece)]
    (id,) = (int(piece.text) for piece in document.pieces if piece not in images)
    if len(images) != id % 3:
        raise ValueError(f"document {id} has {len(images)} images")
    return id * NOISE


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


RAISING = Path("raise")
"""A file in the folder of a trainer: which items :func:`raising` fails on, and how."""
ERRORS = {kind.__name__: kind for kind in (ValueError, MemoryError, KeyboardInterrupt)}


def raising(item):
    """Fail as long as a file says so: a resumed run does not."""
    if os.path.exists(RAISING):
        rest, kind = json.loads(RAISING.read_text())
        if id_of(item) % 11 == rest:
            raise ERRORS[kind](f"raised at {item}")
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
