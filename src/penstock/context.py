"""Where an iteration runs: seed, epoch, rank, worker. And counts that forked workers share.

A :class:`Context` is made once, when iteration begins, and handed to every stage. Nothing
else in the library asks torch or the environment where it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import mmap
import os
import random
import struct
import sys
import threading
from typing import Any

from penstock import env

WORKERS = 256
"""Loader workers with a slot of their own in :class:`SharedCounts`; more share the last."""


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """Where this iteration runs.

    >>> Context(seed=1, epoch=2).rng("shuffle").random() == Context(1, 2).rng("shuffle").random()
    True
    """

    seed: int = 0
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1
    lane: int | None = None
    lanes: int | None = None
    """With lanes the order does not depend on how many ranks and workers share the data."""
    run: int = 1
    """Lanes take turns after so many samples: the size of the batches they make."""
    countable: bool = True
    """Whether the stages keep the number of samples, so that ranks can be given equal shares."""
    engine: Any = dataclasses.field(default=None, compare=False, repr=False)
    """What runs rows of stages on threads; None where they run as they are asked for items."""

    @property
    def place(self) -> tuple[int, ...]:
        """What sets this stream apart from the others of the same job."""
        return (self.lane,) if self.lane is not None else (self.rank, self.worker)

    def draws(self, *words: object) -> Draws:
        """Random numbers for (seed, epoch, words), whose whole state is how many were drawn."""
        return Draws(mixed(self.seed, self.epoch, *words))

    def rng(self, *words: object) -> random.Random:
        """A generator for (seed, epoch, words): the same on every machine and Python version."""
        return random.Random(mixed(self.seed, self.epoch, *words))


def mixed(*words: object) -> int:
    """64 bits that depend on every word and on nothing else (``hash`` differs between runs).

    >>> mixed(1, "a") == mixed(1, "a") != mixed("1a")
    True
    """
    text = "\0".join([f"{type(word).__name__}:{word}" for word in words])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Draws:
    """Random numbers by counter: number n of a key is always the same, and state is just n.

    >>> a, b = Draws(7), Draws(7)
    >>> _ = a.below(10), a.below(10)
    >>> b.count = 1
    >>> a.count, b.below(10) == Draws(7, 1).below(10)
    (2, True)
    """

    __slots__ = ("count", "key")

    def __init__(self, key: int, count: int = 0) -> None:
        self.key, self.count = key, count

    def bits(self) -> int:
        """64 random bits, by the SplitMix64 mixing of the key and the counter."""
        self.count += 1
        z = (self.key + self.count * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return (self.bits() * n) >> 64

    def random(self) -> float:
        """A number from 0 up to, not including, 1."""
        return (self.bits() >> 11) * 2.0**-53


_MASK = (1 << 64) - 1


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's order: at epoch 0 the given one, as in WebDataset; then others."""
    return seed if epoch == 0 else mixed(seed, epoch)


def here(*, seed: int | None = None, epoch: int = 0, group: Any = None) -> Context:
    """The context of this process, from the variables, torch.distributed and torch's worker info.

    torch is asked only where the program has imported it already.

    >>> here(seed=3).seed
    3
    """
    rank, world_size = _rank(group)
    worker, num_workers = _worker()
    if seed is None:
        seed = env.integer("WDS_SEED") or 0
    return Context(seed, epoch, rank, world_size, worker, num_workers)


def _rank(group: Any) -> tuple[int, int]:
    rank, world_size = env.integer("RANK"), env.integer("WORLD_SIZE")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        group = group if group is not None else distributed.group.WORLD
        return distributed.get_rank(group=group), distributed.get_world_size(group=group)
    return 0, 1


def in_worker() -> bool:
    """Whether this is a worker process of a torch loader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _worker() -> tuple[int, int]:
    worker, num_workers = env.integer("WORKER"), env.integer("NUM_WORKERS")
    if worker is not None and num_workers is not None:
        return worker, num_workers
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return (info.id, info.num_workers) if info is not None else (0, 1)


_adding = threading.Lock()


def _forked() -> None:
    # Another thread may have held the parent's at the fork.
    global _adding
    _adding = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class SharedCounts:
    """Whole numbers, one row per name and one column per worker, that survive a fork.

    torch's ``DataLoader`` forks new workers every epoch, from the same unchanged data set.
    What a worker counts (epochs it began, samples it skipped) must outlive it, or every
    epoch would be epoch 0. The numbers stand in an anonymous shared mapping: forked workers
    write their own column; threads of one process share theirs. Spawned workers get a copy.

    >>> counts = SharedCounts(2)
    >>> counts.add(1, worker=0); counts.add(1, worker=3); counts.total(1)
    2
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._memory = mmap.mmap(-1, rows * WORKERS * 8)

    def _at(self, row: int, worker: int) -> int:
        return (row * WORKERS + min(worker, WORKERS - 1)) * 8

    def get(self, row: int, worker: int = 0) -> int:
        value: int = struct.unpack_from("q", self._memory, self._at(row, worker))[0]
        return value

    def set(self, row: int, value: int, worker: int = 0) -> None:
        struct.pack_into("q", self._memory, self._at(row, worker), value)

    def set_all(self, row: int, value: int) -> None:
        """The same value for every worker."""
        start = self._at(row, 0)
        self._memory[start : start + WORKERS * 8] = struct.pack("q", value) * WORKERS

    def add(self, row: int, count: int = 1, worker: int = 0) -> None:
        with _adding:
            self.set(row, self.get(row, worker) + count, worker)

    def total(self, row: int) -> int:
        start = self._at(row, 0)
        return sum(struct.unpack(f"{WORKERS}q", self._memory[start : start + WORKERS * 8]))

    def copy(self) -> SharedCounts:
        """A copy that no longer shares anything with this one."""
        return _counts(self.rows, self._values())

    def _values(self) -> dict[int, int]:
        with memoryview(self._memory) as memory, memory.cast("q") as numbers:
            return {place: value for place, value in enumerate(numbers) if value}

    def __reduce__(self) -> Any:
        return (_counts, (self.rows, self._values()))


def _counts(rows: int, values: dict[int, int]) -> SharedCounts:
    counts = SharedCounts(rows)
    for place, value in values.items():
        struct.pack_into("q", counts._memory, place * 8, value)
    return counts
