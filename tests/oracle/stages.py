"""The stages of generated pipelines: how each is made, and what the model says it does.

A row takes numbers and returns numbers, so that any may follow any. Rows that make batches take
them apart again, except at the end of a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from random import Random
from typing import Any, NamedTuple

import penstock as wds
from oracle import functions as f
from oracle.model import Change, Known, chunks, cut, graded, per_item, per_stream, same
from penstock.documents import documents

HEADS: dict[str, list[Any]] = {
    "map": [wds.map(f.number)],
    "decode": [wds.decode(), wds.map(f.number)],
    "xdecode": [wds.xdecode(cls=f.read_number), wds.map(f.number)],
    "to_tuple": [wds.to_tuple("cls", "txt"), wds.map_tuple(int, None), wds.map(f.scaled)],
    "extract_keys": [wds.extract_keys("*.cls", "txt"), wds.map(f.scaled)],
    "rename": [wds.rename(number="cls"), wds.rename(cls="number"), wds.map(f.number)],
    "rename_keys": [wds.rename_keys(cls="*cls", keep_unselected=True), wds.map(f.number)],
    "associate": [wds.associate(f.more), wds.map_dict(cls=int), wds.map(f.number)],
    "interleaved_to_dict": [wds.interleaved_to_dict("cls;txt"), wds.map(f.number)],
    "info": [wds.info(n=0), wds.log_keys(None), wds.map(f.number)],
    "joined": [wds.map(f.joined)],
    "documents": [documents(), wds.map(f.document_number)],
}
"""From the samples of shards to numbers. The last two are for certain sources."""


class Row(NamedTuple):
    """``make(*arguments)`` returns stages, ``model(known, *arguments)`` what comes out of them."""

    make: Callable[..., list[Any]]
    model: Change
    draw: Callable[[Random], list[Any]] = lambda rng: []
    apart: Callable[[], list[Any]] | None = None
    """Where ``make`` makes batches: the stages that take them apart."""
    count: str = "kept"  # type: ignore[assignment]  # also a method of tuples
    """Whether as many items come out as go in: kept, changed, or hidden from the library."""
    lanes: bool = True
    """Whether it can run in a pipeline with lanes."""
    loader: bool = True
    """Whether it can follow a loader, and do there what it does after a list of the same items."""


def few(rng: Random) -> list[Any]:
    return [rng.randint(2, 7)]


def name(rng: Random) -> list[Any]:
    """The name of a file in the folder where the case runs."""
    return [f"kept-{rng.randrange(1 << 30)}"]


def batch(rng: Random) -> list[Any]:
    return [rng.randint(1, 6), rng.random() < 0.7]


def slice_bounds(rng: Random) -> list[Any]:
    start = rng.randint(0, 6)
    return [start, start + rng.randint(1, 14), rng.randint(1, 3)]


def bucketed(numel: int, buffer: int) -> list[Any]:
    limits = {"target_batch_numel": numel, "max_batch_numel": numel}
    options: dict[str, Any] = {"len_fn": f.frames_of, "collate_fn": None, "buffersize": buffer}
    return [wds.dynamic_bucketed_batch(sampler_kwargs=limits, **options)]


def packed(row_length: int, buffer: int) -> list[Any]:
    rows = wds.packed(row_length, buffer=buffer)
    return [wds.map(f.tokens), rows, wds.map(f.packed_items)]


def repeated(known: Known, epochs: int, items: int) -> Known:
    if items > 0:
        return cut(known, items)
    return known._replace(items=known.items * epochs)


def taken_apart() -> list[Any]:
    return [wds.unlisted()]


ROWS: dict[str, Row] = {
    "plus_one": Row(lambda: [wds.map(f.plus_one)], per_item(lambda id: [id + 1])),
    "noisy": Row(lambda: [wds.map(f.noisy, rng=True)], same, loader=False),
    "noisy_global": Row(lambda: [wds.map(f.noisy_global, rng="global")], same, loader=False),
    "slow": Row(lambda: [wds.map(f.slow)], same),
    "select": Row(
        lambda: [wds.select(f.keep)],
        per_item(lambda id: [id] if f.kept(id) else []),
        count="changed",
    ),
    "select_none": Row(
        lambda: [wds.select(f.keep_none)], per_item(lambda id: []), count="changed", loader=False
    ),
    "failing": Row(
        lambda: [wds.map(f.failing, handler=wds.ignore_and_continue)],
        per_item(lambda id: [] if f.fails(id) else [id]),
        count="hidden",
    ),
    "raising": Row(lambda: [wds.map(f.raising)], same),
    "stopping": Row(
        lambda: [wds.map(f.failing, handler=wds.ignore_and_stop)],
        per_stream(lambda items: list(takewhile(lambda item: not f.fails(*item), items))),
        count="hidden",
    ),
    "dropping": Row(
        lambda: [f.dropping()],
        per_item(lambda id: [id] if f.kept(id) else []),
    ),
    "copying": Row(
        lambda most: [f.copying(most)],
        per_item(lambda id, most: [id + 1000 * copy for copy in range(id % most)]),
        few,
        count="changed",
    ),
    "shuffle": Row(
        lambda size, initial, seed: [wds.shuffle(size, initial=initial, seed=seed)],
        graded("bag"),
        lambda rng: [*few(rng), *few(rng), rng.choice([None, 3])],
    ),
    "detshuffle": Row(lambda size: [wds.detshuffle(size)], graded("bag"), few),
    "rsample": Row(lambda p: [wds.rsample(p)], graded("some"), lambda rng: [0.7], count="changed"),
    "slice": Row(
        lambda *bounds: [wds.slice(*bounds)],
        per_stream(lambda items, *bounds: items[slice(*bounds)]),
        slice_bounds,
        count="changed",
        lanes=False,
    ),
    "listed": Row(
        lambda size, partial: [wds.listed(size, partial)], chunks, batch, apart=taken_apart
    ),
    "batched": Row(
        lambda size, partial: [wds.map(f.pair), wds.batched(size, partial=partial)],
        chunks,
        batch,
        apart=lambda: [wds.unbatched(), wds.map(f.first)],
    ),
    "bucketed": Row(
        bucketed,
        graded("flat"),
        lambda rng: [rng.randint(12, 40), rng.randint(2, 9)],
        apart=taken_apart,
        count="changed",
    ),
    "packed": Row(
        packed,
        graded("flat"),
        lambda rng: [rng.randint(11, 30), rng.randint(2, 9)],
        apart=taken_apart,
        count="changed",
    ),
    "repeat": Row(
        lambda epochs, items: [wds.repeat(epochs, items)],
        repeated,
        lambda rng: rng.choice([[2, -1], [3, -1], [-1, rng.randint(5, 40)]]),
        count="changed",
        loader=False,
    ),
    "every_other": Row(
        lambda: [f.every_other], per_stream(lambda items: items[1::2]), count="changed"
    ),
    "delayed": Row(lambda: [f.delayed], same, count="changed"),
    "non_empty": Row(lambda: [wds.non_empty], same, count="changed"),
    "cached": Row(lambda: [wds.Cached()], same, count="changed"),
    "lmdb_cached": Row(
        lambda place: [wds.LMDBCached(f"{place}.lmdb", map_size=1e7)], same, name, count="changed"
    ),
    "dbcache": Row(lambda place: [wds.DBCache(f"{place}.db", 1000)], same, name, count="changed"),
    "to_device": Row(lambda: [wds.to_device("cpu")], same),
}
BATCHES = [name for name, row in ROWS.items() if row.apart is not None]


def make_row(spec: list[Any], last: bool = False) -> list[Any]:
    """The stages of ``[name, *arguments]``; batches stay only if they are the ``last`` row."""
    name, *arguments = spec
    row = ROWS[name]
    stages = row.make(*arguments)
    return stages if last or row.apart is None else [*stages, *row.apart()]
