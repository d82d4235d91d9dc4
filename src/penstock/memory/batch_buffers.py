"""Reusable memory for batches: samples are written directly into the batch they will be part of.

A *block* is the memory of one field of one batch. While threads prepare samples ahead of time, each
sample's arrays are rows of a block. If collation finds all rows of a batch in order, the batch is
the block itself. Single arrays that are elsewhere are copied into their rows. If samples were
dropped or mixed, or differ in shape, collation copies all of them into memory of the store.

Memory returns to its store when the last array or tensor that uses it is gone. A trainer that waits
for data drops its batch as soon as it gets the next one. So, if no block is free, the first samples
of a batch, up to a quarter of it, are placed elsewhere until a block returns; only then another
block is allocated. Two blocks are enough for such a trainer.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.memory.output import Allocator, give_by
from penstock.memory.scratch import system_memory

Array = np.ndarray[Any, Any]
LEAST_BYTES = 64 << 10
"""Smaller batches are allocated as fast without a block."""
STEADY = 4
"""Number of samples of the same shape in a row before a block is used for that shape."""
ENOUGH = 2
"""Blocks for the batch that the training loop holds and the one being filled."""
PART_ELSEWHERE = 4
"""One in this many samples of a batch may be placed elsewhere until a block returns."""
WATCHED = 4
"""Memory that stayed unused while this many blocks returned goes back to the system."""


class Block:
    """The memory of a batch as a flat array, the size of a row, and the rows already assigned."""

    __slots__ = ("flat", "row", "taken")

    def __init__(self, flat: Array, row: int) -> None:
        self.flat, self.row, self.taken = weakref.ref(flat), row, dict[int, object]()

    def claim(self, slot: int) -> bool:
        """Assign the row and return True, or return False if it was assigned before.

        Both the sample's thread and collation claim rows: a row that collation has copied a sample
        into must not be assigned to another sample."""
        mine = object()
        return self.taken.setdefault(slot, mine) is mine


_blocks: dict[int, Block] = {}
"""Blocks by address, until they become a batch."""


class Spare:
    """Memory of one size: what is lent, and what was returned for reuse.

    Without locks: memory returns on whatever thread drops the last view, also during garbage
    collection.
    """

    def __init__(self) -> None:
        self.lent = set[int]()
        self._free: deque[Any] = deque()
        self._least = self._returned = 0

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> Any:
        """Return free memory, or None if there is none."""
        try:
            memory = self._free.popleft()
        except IndexError:
            return None
        self._least = min(self._least, len(self._free))
        return memory

    def put(self, memory: Any) -> None:
        """Return memory to this list, and drop what has not been needed for a while."""
        self._free.append(memory)
        self._returned += 1
        if self._returned >= WATCHED:
            self.drop(self._least)
            self._returned, self._least = 0, len(self._free)

    def drop(self, count: int) -> None:
        """Drop up to ``count`` free pieces of memory."""
        for _ in range(min(count, len(self._free))):
            self.take()


class Store:
    """Allocates and reuses the memory of batches; optionally pinned, for copying to a GPU.

    >>> store = Store()
    >>> first = store.empty((1000, 100), "float32")
    >>> address = first.ctypes.data
    >>> del first
    >>> store.empty((500, 200), "float32").ctypes.data == address
    True
    """

    def __init__(self, *, pinned: bool = False, most_bytes: int = 1 << 30) -> None:
        self.pinned, self.most_bytes = pinned, most_bytes
        self._process = os.getpid()
        self._spare: dict[int, Spare] = {}

    def __reduce__(self) -> Any:
        return (_store, (self.pinned, self.most_bytes))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array, from this store's memory if it is large enough."""
        dtype = np.dtype(dtype)
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        if size < LEAST_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        return self.flat(size, size, dtype).reshape(shape)

    @property
    def held_bytes(self) -> int:
        """Bytes that the store holds: lent, or kept for reuse."""
        held = [(size, len(spare.lent) + len(spare)) for size, spare in list(self._spare.items())]
        return sum(size * count for size, count in held)

    def spare(self, size: int) -> Spare:
        """Return the list of memory of that size."""
        if self._process != os.getpid():  # memory from before a fork belongs to the parent, too
            self._process, self._spare = os.getpid(), {}
        return self._spare.setdefault(size, Spare())

    def comes_back(self, size: int) -> bool:
        """Return whether to wait for a block of that size instead of allocating one."""
        spare = self.spare(size)
        lent = len(spare.lent)
        # Wait even if a third block is free, left over from a peak: unused, it is dropped. More
        # than two are lent if batches queue up for the loop. Pinned memory returns to torch unseen.
        return not self.pinned and (lent == ENOUGH or (lent > ENOUGH and not len(spare)))

    def flat(self, size: int, row: int, dtype: np.dtype[Any]) -> Array:
        """Return ``size`` bytes as a flat array, registered as a block of ``row``-byte rows."""
        spare = self.spare(size)
        memory = spare.take()
        if memory is None:
            memory = self._new(size)
        # Through a memoryview: numpy then makes this array the base of all its views, so that it
        # lives exactly as long as they do.
        flat: Array = np.frombuffer(memoryview(memory), dtype)
        address = address_of(flat)
        _blocks[address] = Block(flat, row)
        spare.lent.add(address)
        # Pinned memory returns to torch, which waits for pending copies to the GPU.
        back = None if self.pinned else memory
        weakref.finalize(flat, _released, address, spare, back).atexit = False
        return flat

    def _new(self, size: int) -> Any:
        for other, spare in list(self._spare.items()):
            if other != size and len(spare) > 1:
                spare.drop(len(spare))  # batches have a different size now
        if self.pinned:
            import torch

            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return system_memory(size)


def _store(pinned: bool, most_bytes: int) -> Store:
    return Store(pinned=pinned, most_bytes=most_bytes)


def _released(address: int, spare: Spare, memory: Any) -> None:
    _blocks.pop(address, None)
    # Free before it is no longer lent: a thread that finds neither allocates another block.
    if memory is not None:
        spare.put(memory)
    spare.lent.discard(address)


def address_of(array: Array) -> int:
    """Return the address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address


class Open:
    """One field of a batch that is being filled: its block, once it has one."""

    __slots__ = ("block", "elsewhere")

    def __init__(self) -> None:
        self.block: Block | None = None
        self.elsewhere = 0


class Blocks:
    """Assigns rows of blocks to the arrays of samples, for the threads of one iteration."""

    def __init__(self, store: Store, batch_size: int) -> None:
        self.store, self.batch_size = store, batch_size
        self._lock = threading.Lock()
        self._shapes: dict[tuple[int, int], list[Any]] = {}  # (row, which) → shape, how often
        self._open: dict[tuple[int, int, int], Open] = {}

    def rows(self, row: int, first: int) -> Rows:
        """Return this thread's allocator for the samples from number ``first`` on."""
        return Rows(self, row, first)

    def place(
        self, row: int, number: int, which: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        """Return memory for the ``which``-th array of a sample, or None to allocate it normally."""
        batch, slot = divmod(number, self.batch_size)
        with self._lock:
            known = self._shapes.setdefault((row, which), [None, 0])
            if known[0] != (shape, dtype):
                known[:] = [(shape, dtype), 0]
            if known[1] < STEADY:
                known[1] += 1
                return None
            opened = self._opened(row, batch, which)
            flat = self._flat(opened, shape, dtype)
            if flat is None:
                return self.store.empty(shape, dtype)
            if opened.block is None or not opened.block.claim(slot):
                return None
        own: Array = flat.reshape(self.batch_size, *shape)[slot]
        return own

    def _opened(self, row: int, batch: int, which: int) -> Open:
        found = self._open.get((row, batch, which))
        if found is None:
            found = self._open[row, batch, which] = Open()
            for key in [key for key in self._open if key[0] == row and key[1] < batch - 2]:
                del self._open[key]
        return found

    def _flat(self, opened: Open, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """Return the block's memory, or None to wait for a block. Assigned rows keep it alive."""
        step = math.prod(shape) * dtype.itemsize
        size = step * self.batch_size
        flat = None if opened.block is None else opened.block.flat()
        if flat is not None and flat.nbytes == size and flat.dtype == dtype:
            return flat
        most = self.batch_size // PART_ELSEWHERE
        if opened.elsewhere < most and self.store.comes_back(size):
            opened.elsewhere += 1
            return None
        flat = self.store.flat(size, step, dtype)
        opened.block = _blocks[address_of(flat)]
        return flat

    def forget(self, row: int) -> None:
        """Drop the open batches of a row of stages that has been closed."""
        with self._lock:
            for key in [key for key in self._open if key[0] == row]:
                del self._open[key]


class Rows:
    """Allocates memory on one thread, for the samples of one chunk."""

    def __init__(self, blocks: Blocks, row: int, first: int) -> None:
        self.blocks, self.row, self.first = blocks, row, first
        self.number = 0
        self._given: dict[int, int] = {}  # sample → number of arrays allocated for it
        give_by(self.give)

    def at(self, number: int) -> None:
        """Set the sample of the chunk that the next arrays belong to."""
        self.number = self.first + number

    def give(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a row of a block, or separate memory."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize * self.blocks.batch_size
        found: Array | None = None
        which = self._given.get(self.number, 0)
        self._given[self.number] = which + 1
        if LEAST_BYTES <= size <= self.blocks.store.most_bytes // 4 and not kind.hasobject:
            found = self.blocks.place(self.row, self.number, which, tuple(shape), kind)
        return np.empty(shape, kind) if found is None else found


def whole(values: Sequence[Any]) -> Array | None:
    """Return the block whose rows are these arrays, in order, as a batch; or None.

    Arrays that are elsewhere are copied into their rows, if those are not assigned.

    A block is returned once: another batch of the same rows must not share its memory. Parts of
    rows and other axes do not qualify: the memory layout would differ from that of a copied batch.

    >>> store = Store()
    >>> flat = store.flat(200_000, 50_000, np.dtype("uint8"))
    >>> rows = list(flat.reshape(4, 50_000))
    >>> whole(rows[1:]) is None, whole(rows).shape, whole(rows) is None
    (True, (4, 50000), True)
    """
    if not _blocks or type(values[0]) is not np.ndarray:
        return None
    # The first samples may be elsewhere until a block returns, and the last ones too: now and then
    # the engine measures a few samples on the thread of the loop, which has no rows.
    last = len(values) - 1
    block = _block_of(values, last) or _block_of(values, last // 2) or _block_of(values, 0)
    flat = None if block is None else block.flat()
    if block is None or flat is None:
        return None
    shape, dtype, step = values[0].shape, flat.dtype, block.row
    base, elsewhere = address_of(flat), list[int]()
    if step * len(values) > flat.nbytes or values[0].nbytes != step:
        return None
    for number, value in enumerate(values):
        if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
            return None
        if address_of(value) != base + number * step or not value.flags.c_contiguous:
            elsewhere.append(number)
    if not all(map(block.claim, elsewhere)) or _blocks.pop(base, None) is None:
        return None
    batch: Array = flat[: step // dtype.itemsize * len(values)].reshape(len(values), *shape)
    for number in elsewhere:
        batch[number] = values[number]
    return batch


def _block_of(values: Sequence[Any], number: int) -> Block | None:
    """Return the block that has one of the arrays in its row, if there is one."""
    value = values[number]
    if type(value) is not np.ndarray:
        return None
    return _blocks.get(address_of(value) - number * value.nbytes)


def use(store: Store | None) -> Allocator | None:
    """Allocate the batches that this thread copies from a store. Return the previous allocator."""
    return give_by(None if store is None else store.empty)
