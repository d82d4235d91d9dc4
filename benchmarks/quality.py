"""Shuffle quality and its memory: buffers, windows of shards, all samples.

Orders of a million numbers in 1,000 shards, produced by the stages themselves, measured by
``penstock.shuffle_quality``. Nothing is timed, so the numbers are the same on every machine.

    python benchmarks/quality.py            # the table
    python benchmarks/quality.py --docs     # also write it to docs/, with the drawing
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import drawing
import numpy as np
import samples
from measure import Report, arguments_of, progress

import penstock
from penstock.stages.sources.epoch_order import Order

BATCH = 64
SAMPLE_BYTES = 110_000
BUFFERS = (1000, 10_000)
WINDOWS = (1, 4, 16, 64)
LANES = (1, 8, 64)
DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- made by benchmarks/quality.py -->\n", "<!-- end -->\n"


@dataclass
class Mixing:
    """A way to shuffle: its order and its memory."""

    family: str
    name: str
    lanes: str
    order: Any
    waiting: int = 0
    """Samples that wait in the buffer of one process."""
    order_bytes: int = 0
    """Of index and order, in one process."""

    @property
    def megabytes(self) -> float:
        return (self.waiting * SAMPLE_BYTES + self.order_bytes) / 1e6


def shard(number: int, each: int) -> range:
    return range(number * each, (number + 1) * each)


def batches_in_turn(streams: list[Iterator[int]]) -> Iterator[int]:
    """Take a batch of each worker in turn, as loaders do."""
    while streams:
        for stream in list(streams):
            some = [number for number, _ in zip(stream, range(BATCH))]
            yield from some
            if len(some) < BATCH:
                streams.remove(stream)


def by_webdataset(shards: int, each: int, buffer: int, lanes: int) -> Mixing:
    """Shuffle the shards and deal them to workers, each with a buffer of that size."""
    import webdataset

    urls = list(webdataset.shuffle(shards, seed=0)(iter(range(shards))))
    streams = [
        webdataset.shuffle(buffer, seed=worker)(
            chain.from_iterable(shard(n, each) for n in urls[worker::lanes])
        )
        for worker in range(lanes)
    ]
    order = list(batches_in_turn([iter(stream) for stream in streams]))
    name = f"WebDataset, shuffle({buffer})"
    return Mixing("WebDataset", name, str(lanes), order, min(buffer, shards * each // lanes))


def by_buffer(shards: int, each: int, buffer: int, lanes: int) -> Mixing:
    """The same with penstock, where the lanes share the buffer size."""
    pipeline = penstock.DataPipeline(
        [list(shard(number, each)) for number in range(shards)],
        penstock.shuffle(shards),
        penstock.split_by_worker,
        penstock.unlisted(),
        penstock.shuffle(buffer),
        penstock.listed(BATCH),
        lanes=lanes,
    )
    order = list(chain.from_iterable(pipeline))
    name = f"penstock, shuffle({buffer})"
    return Mixing("penstock, buffer", name, str(lanes), order, buffer // lanes)


def by_window(shards: int, each: int, window: int, index_bytes: float, name: str = "") -> Mixing:
    starts = np.arange(0, shards * each + 1, each)
    tracemalloc.start()
    order = Order(starts, window=window, seed=0, epoch=0)
    rows = np.fromiter(map(order.row, range(shards * each)), np.int64, shards * each)
    kept = tracemalloc.get_traced_memory()[0] - rows.nbytes
    tracemalloc.stop()
    name = name or f"penstock, index, window of {window}"
    size = round(kept + index_bytes * shards * each)
    return Mixing("penstock, index", name, "any", rows, order_bytes=size)


def bytes_of_index(data: Path) -> float:
    """Return the memory of an open index, per sample."""
    from penstock.shards.index import open_index

    urls = samples.shards_of("tiny", "plain", 20_000, None, data)
    check_lanes(urls)  # also makes the index if there is none, and imports everything
    tracemalloc.start()
    index = open_index(urls, True)
    _ = index.keys, index.fields, index.shard
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return kept / len(index)


def check_lanes(urls: list[str]) -> None:
    """Check that with an index the order does not depend on the number of lanes."""
    orders = []
    for lanes in LANES:
        data = penstock.WebDataset(urls, index=True, shardshuffle=2, lanes=lanes).listed(BATCH)
        orders.append([sample["__key__"] for batch in data for sample in batch])
    if any(order != orders[0] for order in orders):
        raise SystemExit("the order depends on the number of lanes")


def mixings(shards: int, each: int, index_bytes: float) -> Iterator[Mixing]:
    yield Mixing("in order", "in stored order", "1", np.arange(shards * each))
    for make in (by_webdataset, by_buffer):
        for buffer in BUFFERS:
            for lanes in LANES:
                yield make(shards, each, buffer, lanes)
    for window in WINDOWS:
        yield by_window(shards, each, window, index_bytes)
    yield by_window(shards, each, shards, index_bytes, "penstock, index, all shards (full)")


def rows(found: Iterable[Mixing], sizes: list[int]) -> Iterator[dict[str, Any]]:
    for mixing in found:
        progress(mixing.name)
        quality = penstock.shuffle_quality(mixing.order, sizes, batch=BATCH)
        # If lanes are ranks, the optimizer sees one batch of each.
        lanes = LANES[-1] if mixing.lanes == "any" else int(mixing.lanes)
        step = penstock.shuffle_quality(mixing.order, sizes, batch=BATCH * lanes)
        yield {
            "order": mixing.name,
            "family": mixing.family,
            "lanes": mixing.lanes,
            "MB per process": round(mixing.megabytes, 1),
            "spread": quality.spread,
            "same shard": quality.same_shard,
            "in a step": step.same_shard,
            "displacement": quality.displacement,
            "correlation": quality.correlation,
        }
    progress("")


def markdown(table: list[dict[str, Any]]) -> str:
    names = [name for name in table[0] if name != "family"]
    lines = ["| " + " | ".join(names) + " |", "|---" + "|---:" * (len(names) - 1) + "|"]
    for row in table:
        cells = [f"{row[n]:,}" if isinstance(row[n], float) else str(row[n]) for n in names]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_docs(table: list[dict[str, Any]]) -> None:
    """Write the table and the drawing into the documentation."""
    page = DOCS / "shuffle-quality.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}{markdown(table)}{END}{after}")
    panels = {
        "Pairs from one shard in a batch, relative to a full permutation": lines(
            table, "same shard"
        ),
        "The same in a step: a batch of every lane": lines(table, "in a step"),
    }
    picture = DOCS / "images" / "shuffle-quality.svg"
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(drawing.scatter(panels))


def lines(table: list[dict[str, Any]], column: str) -> list[drawing.Series]:
    """Return a series for each way to shuffle, a point per number of lanes."""
    series: dict[str, drawing.Series] = {}
    for row in table:
        if row["MB per process"]:
            label = row["order"].removeprefix("WebDataset, ").removeprefix("penstock, ")
            label = label.removeprefix("index, ") + ("" if row["lanes"] == "any" else ", 64 lanes")
            one = series.setdefault(row["order"], drawing.Series(row["family"], label, []))
            one.points.append((row["MB per process"], row[column]))
    return list(series.values())


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--each", type=int, default=1000, help="samples per shard")
    parser.add_argument("--docs", action="store_true", help="write docs/shuffle-quality.md's table")
    options = parser.parse_args()
    report = Report("Quality of shuffles", options.json)
    found = mixings(options.shards, options.each, bytes_of_index(options.data))
    table = list(rows(found, [options.each] * options.shards))
    shown = [{name: v for name, v in row.items() if name != "family"} for row in table]
    report.table(f"{options.shards:,} shards of {options.each:,} samples", shown)
    if options.docs:
        write_docs(table)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
