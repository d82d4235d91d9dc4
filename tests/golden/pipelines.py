"""The pipelines whose states are in ``states.json``. Do not change one: add another."""

from __future__ import annotations

import itertools

import penstock as wds

SHARDS = "numbers-{000..003}.tar"
STOP = 7
"""Number of items before the state was saved."""
FOLLOWING = 12
"""Number of items after that, stored with the state."""


def number(sample):
    return int(sample["cls"])


def not_fifth(n):
    return n % 5 != 0


def noisy(n, rng):
    return n * 1000 + int(rng.integers(1000))


def length(n):
    return n % 13 + 1


def with_length(n):
    return {"n": n, "length": length(n)}


def stream(**options):
    return wds.WebDataset(SHARDS, **{"shardshuffle": 3, "seed": 5, **options}).map(number)


def indexed(**options):
    return stream(index=True, ends="exact", **options)


def dataset(**options):
    return wds.WebDataset(SHARDS, shardshuffle=2, seed=3, **options)


def numbers(items):
    return [item["n"] for item in items]


def bucketed(source):
    return source.map(with_length).dynamic_bucketed_batch(
        "length",
        len_fn=int,
        buffersize=12,
        collate_fn=numbers,
        sampler_kwargs={"target_batch_numel": 30},
    )


PIPELINES = {
    "streaming": lambda: stream(),
    "streaming in order": lambda: stream(shardshuffle=False),
    "streaming, shuffle": lambda: stream().shuffle(10, initial=5),
    "streaming, lanes": lambda: stream(lanes=3).shuffle(4),
    "streaming, select, batched": lambda: stream().select(not_fifth).listed(3),
    "streaming, map with rng": lambda: stream().map(noisy, rng=True),
    "streaming, slice": lambda: stream().slice(2, 40, 2),
    "streaming, rsample": lambda: stream().rsample(0.7),
    "streaming, listed, unlisted, shuffle": lambda: stream().listed(4).unlisted().shuffle(6),
    "streaming, repeat": lambda: stream().repeat(3),
    "streaming, with_epoch": lambda: stream().repeat().with_epoch(30),
    "streaming, bucketed": lambda: bucketed(stream()),
    "resampled": lambda: stream(resampled=True, shardshuffle=False).with_epoch(40),
    "indexed": lambda: indexed(),
    "indexed, shuffle, batched": lambda: indexed().shuffle(10).listed(3),
    "indexed, lanes": lambda: indexed(lanes=6).listed(2),
    "indexed, lanes, drop": lambda: stream(index=True, ends="drop", lanes=4).listed(2),
    "indexed, lanes, select, shuffle": lambda: indexed(lanes=4).select(not_fifth).shuffle(5),
    "indexed, bucketed": lambda: bucketed(indexed()),
    "random mix": lambda: wds.DataPipeline(
        wds.RandomMix([dataset(index=True), dataset()], [2, 1], longest=True), wds.map(number)
    ),
    "round robin": lambda: wds.DataPipeline(
        wds.RoundRobin([dataset(index=True), dataset()]), wds.map(number), wds.shuffle(3)
    ),
    "nested": lambda: wds.DataPipeline(stream().shuffle(5), wds.select(not_fifth), wds.listed(2)),
    "loader inline": lambda: wds.WebLoader(indexed(lanes=4).listed(2), batch_size=None),
    "loader on threads": lambda: wds.WebLoader(
        stream().shuffle(8).listed(2), batch_size=None, num_workers=2, engine="threads"
    ),
    "loader with worker processes": lambda: wds.WebLoader(
        indexed(lanes=4).shuffle(4).listed(2), batch_size=None, num_workers=2
    ),
}


def half(number):
    return f"numbers-{{{2 * number:03d}..{2 * number + 1:03d}}}.tar"


def parts(**options):
    """Return the two halves of the samples, the second with stages."""
    first, second = (
        wds.WebDataset(half(n), index=True, shardshuffle=2, ends="exact", **options)
        for n in range(2)
    )
    return {"a": first, "b": second.decode().rename(cls="cls")}


def small(sample):
    return number(sample) < 60


MIXTURES = {
    "mixture": lambda: wds.mix(parts(), seed=3).map(number),
    "mixture, lanes": lambda: wds.DataPipeline(
        wds.mix(parts(fraction=0.9, seed=2), [1, {"step": {0: 2, 50: 1}}], until="all"),
        wds.map(number),
        lanes=2,
    ),
    "mixture in a mixture": lambda: wds.mix(
        {"one": wds.mix(parts()), "two": parts(exclude={"s0001"})["a"]}, [1, 2], until="forever"
    ).map(number),
    "mixture of streams": lambda: wds.mix(
        {name: part.select(small) for name, part in parts().items()}, [1, 3], until="each"
    ).map(number),
    "mixture of streams, not indexed": lambda: wds.mix(
        [stream(), stream(handler=wds.ignore_and_continue)]
    ),
    "mixture in a round robin": lambda: wds.DataPipeline(
        wds.RoundRobin([wds.mix(parts(), seed=4), dataset()]), wds.map(number), wds.shuffle(3)
    ),
    "loader, mixture": lambda: wds.WebLoader(
        wds.DataPipeline(wds.mix(parts()), lanes=2).map(number).listed(2), batch_size=None
    ),
}
"""Pipelines whose states are in ``states-mixtures.json``, which was written later."""


def plain(item):
    """Return an item as JSON values."""
    if isinstance(item, (list, tuple)):
        return [plain(part) for part in item]
    return item.tolist() if hasattr(item, "tolist") else item


def take(stream, count):
    """Return the next items of a stream, at most ``count``."""
    return [plain(item) for item in itertools.islice(stream, count)]
