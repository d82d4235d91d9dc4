"""Memory for batches that is used again: samples are written into the batch they will be part of.

A *block* is the memory of one batch of one field. While threads make samples ahead of time, each
sample's arrays are rows of a block; if collation then finds the rows of a batch at their places,
the batch is the block itself. Single arrays that stand elsewhere are copied to their places. Where
samples were dropped or mixed, or differ in shape, collation copies all, into memory of the store.

Memory goes back to its store when the last array or tensor on it is gone: nobody has to say so.
A trainer that waits for data lets go of its batch as soon as it gets the next. So, where no memory
is left, the first samples of a batch stand elsewhere until a block comes back, up to a quarter of
the batch; only then there is one block more. Two are enough for such a trainer.
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

from penstock.memory.scratch import system_memory
from penstock.memory.output import Give, give_by

Array = np.ndarray[Any, Any]
LEAST_BYTES = 64 << 10
"""Smaller batches are made as fast in memory of their own."""
STEADY = 4
"""So many samples must have the same shape before a block is laid out for more of them."""
ENOUGH = 2
"""The batch that the training loop has, and the one that is being made."""
PART_ELSEWHERE = 4
"""One in so many samples of a batch may wait elsewhere for a block that comes back."""
WATCHED = 4
"""What was not needed while so many blocks came back is given to the system."""


class Block:
    """The memory of a batch as a flat array, the size of a row, and the rows that were given."""

    __slots__ = ("flat", "row", "taken")

    def __init__(self, flat: Array, row: int) -> None:
        self.flat, self.row, self.taken = weakref.ref(flat), row, dict[int, object]()

    def claim(self, slot: int) -> bool:
        """Whether the row was nobody's until now. Those who make samples ask, and who makes the
        batch: a row that it was filled up with is no sample's any more, whatever its number."""
        mine = object()
        return self.taken.setdefault(slot, mine) is mine


_blocks: dict[int, Block] = {}
"""By address; a block that is a batch's is no longer among them."""


class Spare:
    """Memory of one size: what is lent and, to be used again, what came back.

    No locks: memory comes back wherever the last view dies, in the garbage collector too.
    """

    def __init__(self) -> None:
        self.lent = set[int]()
        self._free: deque[Any] = deque()
        self._least = self._returned = 0

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> Any:
        """Memory that came back; None where there is none."""
        try:
            memory = self._free.popleft()
        except IndexError:
            return None
        self._least = min(self._least, len(self._free))
        return memory

    def put(self, memory: Any) -> None:
        """Memory comes back; what lay here all the time is let go."""
        self._free.append(memory)
        self._returned += 1
        if self._returned >= WATCHED:
            self.drop(self._least)
            self._returned, self._least = 0, len(self._free)

    def drop(self, count: int) -> None:
        """Let go of so many."""
        for _ in range(min(count, len(self._free))):
            self.take()


class Store:
    """Memory that batches are made in, pinned for the copy to a GPU if asked for.

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
        """An array to be filled; of this store's memory where it is worth it."""
        dtype = np.dtype(dtype)
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        if size < LEAST_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        return self.flat(size, size, dtype).reshape(shape)

    @property
    def held_bytes(self) -> int:
        """All memory that was taken from the system and not given back: lent, or kept for later."""
        held = [(size, len(spare.lent) + len(spare)) for size, spare in list(self._spare.items())]
        return sum(size * count for size, count in held)

    def spare(self, size: int) -> Spare:
        """The memory of that size."""
        if self._process != os.getpid():  # memory from before a fork is the other process's too
            self._process, self._spare = os.getpid(), {}
        return self._spare.setdefault(size, Spare())

    def comes_back(self, size: int) -> bool:
        """Whether a block of that size had better be waited for."""
        spare = self.spare(size)
        lent = len(spare.lent)
        # Also where a third one lies here, from a moment in which it was needed: it is to go. More
        # are lent where batches wait for the loop. Pinned memory comes back to torch, unseen.
        return not self.pinned and (lent == ENOUGH or (lent > ENOUGH and not len(spare)))

    def flat(self, size: int, row: int, dtype: np.dtype[Any]) -> Array:
        """Memory of so many bytes as a flat array, known as a block of such rows."""
        spare = self.spare(size)
        memory = spare.take()
        if memory is None:
            memory = self._new(size)
        # By way of a memoryview: numpy then makes this array the base of all views on it, so that
        # it lives exactly as long as they do.
        flat: Array = np.frombuffer(memoryview(memory), dtype)
        address = address_of(flat)
        _blocks[address] = Block(flat, row)
        spare.lent.add(address)
        # Pinned memory goes back to torch, which waits for copies to the GPU that are under way.
        back = None if self.pinned else memory
        weakref.finalize(flat, _released, address, spare, back).atexit = False
        return flat

    def _new(self, size: int) -> Any:
        for other, spare in list(self._spare.items()):
            if other != size and len(spare) > 1:
                spare.drop(len(spare))  # batches have another size now
        if self.pinned:
            import torch

            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return system_memory(size)


def _store(pinned: bool, most_bytes: int) -> Store:
    return Store(pinned=pinned, most_bytes=most_bytes)


def _released(address: int, spare: Spare, memory: Any) -> None:
    _blocks.pop(address, None)
    spare.lent.discard(address)
    if memory is not None:
        spare.put(memory)


def address_of(array: Array) -> int:
    """Where an array's first number stands."""
    address: int = array.__array_interface__["data"][0]
    return address


class Open:
    """A batch of one field whose samples are being made: its block, once it has one."""

    __slots__ = ("block", "elsewhere")

    def __init__(self) -> None:
        self.block: Block | None = None
        self.elsewhere = 0


class Blocks:
    """Gives the arrays of samples ahead their rows, for the threads of one iteration."""

    def __init__(self, store: Store, batch_size: int) -> None:
        self.store, self.batch_size = store, batch_size
        self._lock = threading.Lock()
        self._shapes: dict[tuple[int, int], list[Any]] = {}  # row, place → shape, how often
        self._open: dict[tuple[int, int, int], Open] = {}

    def rows(self, row: int, first: int) -> Rows:
        """What gives memory on this thread for the samples from number ``first`` on."""
        return Rows(self, row, first)

    def place(
        self, row: int, number: int, which: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        """Memory for the ``which``-th array of a sample; None where a block is not worth it."""
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
        """The block's memory, which the rows given hold; None where it had better be waited for."""
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
        """The row of stages is closed."""
        with self._lock:
            for key in [key for key in self._open if key[0] == row]:
                del self._open[key]


class Rows:
    """Gives memory on one thread, for the samples of one chunk."""

    def __init__(self, blocks: Blocks, row: int, first: int) -> None:
        self.blocks, self.row, self.first = blocks, row, first
        self.number = 0
        self._given: dict[int, int] = {}  # a sample → how many arrays it has been given
        give_by(self.give)

    def at(self, number: int) -> None:
        """The next arrays are those of that sample of the chunk."""
        self.number = self.first + number

    def give(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A row of a block, or memory of its own."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize * self.blocks.batch_size
        found: Array | None = None
        which = self._given.get(self.number, 0)
        self._given[self.number] = which + 1
        if LEAST_BYTES <= size <= self.blocks.store.most_bytes // 4 and not kind.hasobject:
            found = self.blocks.place(self.row, self.number, which, tuple(shape), kind)
        return np.empty(shape, kind) if found is None else found


def whole(values: Sequence[Any]) -> Array | None:
    """The block that these arrays are the rows of, each at its place; or None.

    Arrays that stand elsewhere are copied to their places, where nobody was given those.

    A block is given once: what else is made of its rows must not share memory with that batch.
    Parts of rows and other axes are no whole: such a batch would lie in memory otherwise than
    one that was copied.

    >>> store = Store()
    >>> flat = store.flat(200_000, 50_000, np.dtype("uint8"))
    >>> rows = list(flat.reshape(4, 50_000))
    >>> whole(rows[1:]) is None, whole(rows).shape, whole(rows) is None
    (True, (4, 50000), True)
    """
    if not _blocks or type(values[0]) is not np.ndarray:
        return None
    block = _block_of(values, len(values) - 1) or _block_of(values, 0)
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
    """The block in which one of the arrays stands at its place, if it does."""
    value = values[number]
    if type(value) is not np.ndarray:
        return None
    return _blocks.get(address_of(value) - number * value.nbytes)


def use(store: Store | None) -> Give | None:
    """Let batches that are copied on this thread be made in a store's memory."""
    return give_by(None if store is None else store.empty)
