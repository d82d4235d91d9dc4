"""An order of all samples of an index, and the work that gathers a part of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.jobs.output_files import TaskWriter
from penstock.jobs.plan import Task
from penstock.rng import stable_hash
from penstock.shards.index.index import Index
from penstock.shards.index.random_access import SampleReader

GATHER_BYTES = 32 << 20
"""Samples of remote shards are requested in groups of about this size."""
GATHER_SAMPLES = 4096

Array = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class SampleOrder:
    """An order of all samples of an index: the same on every machine and with every version."""

    by: str = "random"
    seed: int = 0

    def rows(self, index: Index) -> Array:
        """Return the rows of the index in this order."""
        if self.by == "random":
            return np.argsort(_mix(len(index), self.seed), kind="stable")
        if self.by == "key":
            keys = [key.encode("utf-8", "surrogateescape") for key in index.keys]
            return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
        values = index.column(self.by)
        if values.dtype == object:
            missing = [row for row, value in enumerate(values) if value is None]
            known = [row for row, value in enumerate(values) if value is not None]
            return np.array(sorted(known, key=values.__getitem__) + missing, np.int64)
        return np.argsort(values, kind="stable")


def _mix(count: int, seed: int) -> Array:
    """Return one 64-bit random number per row, by SplitMix64."""
    with np.errstate(over="ignore"):
        start = np.uint64(stable_hash("reshard", seed))
        z = start + (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Array = z ^ (z >> np.uint64(31))
    return mixed


def cut_by_size(sizes: Array, maxcount: float, maxsize: float) -> Iterator[tuple[int, int]]:
    """Yield the range of the order that each output shard holds."""
    ends = np.cumsum(sizes)
    begin, before = 0, 0
    while begin < len(sizes):
        # A shard that has reached maxsize takes no further sample.
        full = int(np.searchsorted(ends, before + maxsize)) + 1
        end = int(min(begin + maxcount, max(full, begin + 1), len(sizes)))
        yield begin, end
        begin, before = end, int(ends[end - 1])


class Gather:
    """The work of a task: read the samples of its part of the order, and write them."""

    remedy = "; reshard writes the names of its inputs: change them with map_shards before"

    def __init__(self, index: Index, order: SampleOrder, rows: Array | None) -> None:
        self._reader, self._order, self._rows = SampleReader(index), order, rows

    def __call__(self, task: Task, write: TaskWriter) -> None:
        if self._rows is None:
            self._rows = self._order.rows(self._reader.index)
        write.keep_meta = True
        begin, end = task.argument
        rows = self._rows[begin:end].tolist()
        if not self._reader.remote:
            for row in rows:
                write(self._reader.read(row))
                write.count(kept=True)
            return
        for group in self._groups(rows):
            for sample in self._reader.read_many(group):
                write(sample)
                write.count(kept=True)

    def _groups(self, rows: list[int]) -> Iterator[list[int]]:
        group: list[int] = []
        waiting = 0
        for row in rows:
            group.append(row)
            waiting += self._reader.index.size.item(row)
            if waiting >= GATHER_BYTES or len(group) >= GATHER_SAMPLES:
                yield group
                group, waiting = [], 0
        if group:
            yield group

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}  # computed again where it is needed
