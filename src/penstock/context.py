"""Where an iteration runs (seed, epoch, rank, worker), and counters shared with loader workers.

A :class:`Context` is created once, when iteration begins, and passed to every stage. Only this
module reads the rank and the worker from torch or the environment.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import random
import struct
import sys
import tempfile
import threading
import warnings
import weakref
from multiprocessing import context, reduction
from typing import Any, BinaryIO

from penstock import env
from penstock.rng import CounterRng, stable_hash

WORKERS = 256
"""Loader workers with a separate column in :class:`SharedCounts`; further ones share the last."""


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
    """With lanes, the order does not depend on the number of ranks and workers."""
    run: int = 1
    """Consecutive samples that are taken from one lane before the next: the batch size."""
    countable: bool = True
    """False if a stage changes the number of samples: the default of ``ends`` is then "exact"."""
    counts_drops: bool = False
    """Whether stages count the samples they drop, because the previous pass yielded none."""
    engine: Any = dataclasses.field(default=None, compare=False, repr=False)
    """The thread engine that runs fused stages; None: they run inline, when items are requested."""

    versions: Any = dataclasses.field(default=None, compare=False, repr=False)
    """The versions of the shards that the lane has read, which a replay is compared with."""

    @property
    def stream_id(self) -> tuple[int, ...]:
        """The identity of this stream among those of the same job: (lane,) or (rank, worker)."""
        return (self.lane,) if self.lane is not None else (self.rank, self.worker)

    def draws(self, *words: object) -> CounterRng:
        """Return a generator for (seed, epoch, words) whose state is the count of numbers drawn."""
        return CounterRng(stable_hash(self.seed, self.epoch, *words))

    def rng(self, *words: object) -> random.Random:
        """Return a generator for (seed, epoch, words): equal on all machines and Pythons."""
        return random.Random(stable_hash(self.seed, self.epoch, *words))


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's order. Epoch 0 has the given seed, as in WebDataset."""
    return seed if epoch == 0 else stable_hash(seed, epoch)


def current_context(*, seed: int | None = None, epoch: int = 0, group: Any = None) -> Context:
    """Return the context of this process, from variables, torch.distributed and worker info.

    torch is consulted only if the program has already imported it.

    >>> current_context(seed=3).seed
    3
    """
    rank, world_size = _find_rank(group)
    worker, num_workers = _find_worker()
    if seed is None:
        seed = env.integer("WDS_SEED") or 0
    return Context(seed, epoch, rank, world_size, worker, num_workers)


def _find_rank(group: Any) -> tuple[int, int]:
    rank, world_size = env.integer("RANK"), env.integer("WORLD_SIZE")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        group = group if group is not None else distributed.group.WORLD
        return distributed.get_rank(group=group), distributed.get_world_size(group=group)
    return 0, 1


def in_worker() -> bool:
    """Return whether this is a worker process of a torch ``DataLoader``."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _find_worker() -> tuple[int, int]:
    worker, num_workers = env.integer("WORKER"), env.integer("NUM_WORKERS")
    if worker is not None and num_workers is not None:
        return worker, num_workers
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return (info.id, info.num_workers) if info is not None else (0, 1)


_adding = threading.Lock()
_alive: weakref.WeakSet[SharedCounts] = weakref.WeakSet()
MOST_DESCRIPTORS = 16
"""Counters shared with one spawned process by descriptor; those of nested pipelines may be copied.

A fork server accepts 256 descriptors per process."""


def _reset_after_fork() -> None:
    # Another thread may have held the parent's lock during the fork.
    global _adding
    _adding = threading.Lock()
    for counts in list(_alive):
        counts.leave_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


class SharedCounts:
    """Integer counters, one row per name and one column per worker, shared with loader workers.

    torch's ``DataLoader`` starts new workers every epoch from the same unchanged data set, or keeps
    workers, which must then see ``set_epoch``. So the counters are in memory that a process shares
    with its loader's workers, forked or spawned; each writes its own column. Threads of one process
    share a column. A process that is not a loader worker, such as another rank, gets a copy; so
    does a reader that unpickles the counters from a file or a socket.

    >>> counts = SharedCounts(2)
    >>> counts.add(1, worker=0); counts.add(1, worker=3); counts.total(1)
    2
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._memory = mmap.mmap(-1, rows * WORKERS * 8)
        self._parent: mmap.mmap | None = None  # memory of the process whose loader started this one
        self._earlier: mmap.mmap | None = None  # memory that workers forked earlier share
        self._file: BinaryIO | None = None  # backs the memory, once a process was spawned
        _alive.add(self)

    @property
    def _numbers(self) -> mmap.mmap:
        return self._parent if self._parent is not None and in_worker() else self._memory

    def _at(self, row: int, worker: int) -> int:
        return (row * WORKERS + min(worker, WORKERS - 1)) * 8

    @property
    def shared(self) -> bool:
        """True in a loader worker that sees what the loader's process writes."""
        return self._parent is not None and in_worker()

    def get(self, row: int, worker: int = 0) -> int:
        value: int = struct.unpack_from("q", self._numbers, self._at(row, worker))[0]
        return value

    def set(self, row: int, value: int, worker: int = 0) -> None:
        self._write(self._at(row, worker), struct.pack("q", value))

    def set_all(self, row: int, value: int) -> None:
        """Set the value for every worker."""
        self._write(self._at(row, 0), struct.pack("q", value) * WORKERS)

    def _write(self, start: int, data: bytes) -> None:
        memories = [self._numbers]
        if self._earlier is not None and memories[0] is self._memory:
            memories.append(self._earlier)
        for memory in memories:
            memory[start : start + len(data)] = data

    def add(self, row: int, count: int = 1, worker: int = 0) -> None:
        with _adding:
            struct.pack_into(
                "q", self._numbers, self._at(row, worker), self.get(row, worker) + count
            )

    def total(self, row: int) -> int:
        start = self._at(row, 0)
        return sum(struct.unpack(f"{WORKERS}q", self._numbers[start : start + WORKERS * 8]))

    def copy(self) -> SharedCounts:
        """Return a copy that shares no memory with this one."""
        return _counts(self.rows, self._values())

    def _values(self) -> dict[int, int]:
        with memoryview(self._numbers) as memory, memory.cast("q") as numbers:
            return {index: value for index, value in enumerate(numbers) if value}

    # ── other processes ─────────────────────────────────────────────────────────────────

    def leave_parent(self) -> None:
        """Stop sharing with the parent after a fork, except in a loader worker."""
        self._parent, self._earlier, self._file = self._memory, None, None
        self._memory = mmap.mmap(-1, len(self._parent))
        self._memory[:] = self._parent[:]

    def __reduce__(self) -> Any:
        child = context.get_spawning_popen()
        if child is None or len(getattr(child, "_fds", ())) >= MOST_DESCRIPTORS:
            return (_counts, (self.rows, self._values()))
        return (_counts, (self.rows, self._values(), self._descriptor()))

    def _descriptor(self) -> Any:
        """Return a descriptor by which a process being spawned shares this memory, or None."""
        if os.name != "posix":
            return None
        with _adding:
            if self._file is None:
                try:
                    file = open_unnamed_file("penstock-counts")
                    file.truncate(len(self._memory))
                    memory = mmap.mmap(file.fileno(), len(self._memory))
                except OSError as error:
                    warnings.warn(
                        "spawned workers get a copy of the epoch and will not receive set_epoch():"
                        f" no memory can be shared with them ({error})",
                        stacklevel=2,
                    )
                    return None
                memory[:] = self._memory[:]
                self._earlier, self._memory, self._file = self._memory, memory, file
        return reduction.DupFd(self._file.fileno())

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]


def _counts(rows: int, values: dict[int, int], descriptor: Any = None) -> SharedCounts:
    counts = SharedCounts(rows)
    for index, value in values.items():
        struct.pack_into("q", counts._memory, index * 8, value)
    if descriptor is not None:
        number = descriptor.detach()
        counts._parent = mmap.mmap(number, len(counts._memory))
        os.close(number)
    return counts


def open_unnamed_file(name: str) -> BinaryIO:
    """Return an unnamed file that spawned processes can map; ``name`` is only a label.

    It is deleted with its last user. It is in memory if the system supports that: unlike
    ``/dev/shm``, containers do not limit it.
    """
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create(name), "w+b")
    return tempfile.TemporaryFile()


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
