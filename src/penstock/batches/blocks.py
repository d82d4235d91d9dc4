"""Memory for batches that is used again: samples are written into the batch they will be part of.

A *block* is the memory of one batch of one field. While threads make samples ahead of time, each
sample's arrays are rows of a block; if collation then finds the rows of a batch behind each
other, the batch is the block itself, and nothing is copied. Where samples were dropped or mixed, or
differ in shape, collation copies as always, into memory of the same store.

Memory goes back to its store when the last array or tensor on it is gone: nobody has to say so.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.transforms.rows import Give, give_by

Array = np.ndarray[Any, Any]
LEAST_BYTES = 64 << 10
"""Smaller batches are made as fast in memory of their own."""
STEADY = 4
"""So many samples must have the same shape before a block is laid out for more of them."""
_blocks: dict[int, tuple[weakref.ref[Array], int]] = {}
"""By address: the block's memory as one flat array, and the size of a row."""


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
        self._free: dict[int, deque[Any]] = {}

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

    def flat(self, size: int, row: int, dtype: np.dtype[Any]) -> Array:
        """Memory of so many bytes as a flat array, known as a block of such rows."""
        if self._process != os.getpid():  # memory from before a fork is the other process's too
            self._process, self._free = os.getpid(), {}
        free = self._free.setdefault(size, deque())
        try:
            memory = free.popleft()
        except IndexError:
            memory = self._new(size)
        # By way of a memoryview: numpy then makes this array the base of all views on it, so that
        # it lives exactly as long as they do.
        flat: Array = np.frombuffer(memoryview(memory), dtype)
        address = flat.__array_interface__["data"][0]
        _blocks[address] = (weakref.ref(flat), row)
        # Pinned memory goes back to torch, which waits for copies to the GPU that are under way.
        back = None if self.pinned else free
        weakref.finalize(flat, _released, address, back, memory).atexit = False
        return flat

    def _new(self, size: int) -> Any:
        for other, free in list(self._free.items()):
            if other != size and len(free) > 1:
                free.clear()  # batches have another size now
        if self.pinned:
            import torch

            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return np.empty(size, np.uint8)


def _store(pinned: bool, most_bytes: int) -> Store:
    return Store(pinned=pinned, most_bytes=most_bytes)


def _released(address: int, free: deque[Any] | None, memory: Any) -> None:
    # No lock: this runs wherever the last view dies, in the garbage collector too.
    _blocks.pop(address, None)
    if free is not None:
        free.append(memory)


class Blocks:
    """Gives the arrays of samples ahead their rows, for the threads of one iteration."""

    def __init__(self, store: Store, batch_size: int) -> None:
        self.store, self.batch_size = store, batch_size
        self._lock = threading.Lock()
        self._shapes: dict[tuple[int, int], list[Any]] = {}  # row, place → shape, how often, from
        self._open: dict[tuple[int, int, int], tuple[Array, set[int]]] = {}

    def rows(self, row: int, first: int) -> Rows:
        """What gives memory on this thread for the samples from number ``first`` on."""
        return Rows(self, row, first)

    def place(
        self, row: int, number: int, which: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        """Memory for the ``which``-th array of a sample; None where a block is not worth it."""
        batch, slot = divmod(number, self.batch_size)
        with self._lock:
            known = self._shapes.setdefault((row, which), [None, 0, 0])
            if known[0] != (shape, dtype):
                known[:] = [(shape, dtype), 0, batch]
            if known[1] < STEADY:
                known[1], known[2] = known[1] + 1, max(batch, known[2])
                return None
            # Not in a batch whose first samples are elsewhere already.
            if batch <= known[2]:
                return None
            block, taken = self._block(row, batch, which, shape, dtype)
            if slot in taken:
                return None
            taken.add(slot)
            if len(taken) == self.batch_size:
                del self._open[row, batch, which]
        own: Array = block[slot]
        return own

    def _block(
        self, row: int, batch: int, which: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[Array, set[int]]:
        found = self._open.get((row, batch, which))
        if found is None or found[0].shape[1:] != shape or found[0].dtype != dtype:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            flat = self.store.flat(size * self.batch_size, size, dtype)
            found = flat.reshape(self.batch_size, *shape), set()
            self._open[row, batch, which] = found
            for key in [key for key in self._open if key[0] == row and key[1] < batch - 2]:
                del self._open[key]  # samples that were dropped have left rows free
        return found

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
        kind, size = np.dtype(dtype), 1
        for extent in shape:
            size *= extent
        size *= kind.itemsize * self.blocks.batch_size
        found: Array | None = None
        which = self._given.get(self.number, 0)
        self._given[self.number] = which + 1
        if LEAST_BYTES <= size <= self.blocks.store.most_bytes // 4 and not kind.hasobject:
            found = self.blocks.place(self.row, self.number, which, tuple(shape), kind)
        return np.empty(shape, kind) if found is None else found


def whole(values: Sequence[Any]) -> Array | None:
    """The block that these arrays are the rows of, one behind the other from the first; or None.

    A block is given once: what else is made of its rows must not share memory with that batch.
    Parts of rows and other axes are no whole: such a batch would lie in memory otherwise than
    one that was copied.

    >>> store = Store()
    >>> flat = store.flat(200_000, 50_000, np.dtype("uint8"))
    >>> rows = list(flat.reshape(4, 50_000))
    >>> whole(rows[1:]) is None, whole(rows).shape, whole(rows) is None
    (True, (4, 50000), True)
    """
    first = values[0]
    if not _blocks or type(first) is not np.ndarray:
        return None
    address = first.__array_interface__["data"][0]
    known = _blocks.get(address)
    flat = known[0]() if known is not None else None
    if known is None or flat is None or first.dtype != flat.dtype:
        return None
    step, shape = known[1], first.shape
    if first.nbytes != step or step * len(values) > flat.nbytes:
        return None
    for number, value in enumerate(values):
        if (
            type(value) is not np.ndarray
            or value.shape != shape
            or value.dtype != first.dtype
            or not value.flags.c_contiguous
            or value.__array_interface__["data"][0] != address + number * step
        ):
            return None
    if _blocks.pop(address, None) is None:
        return None
    count = step // first.dtype.itemsize * len(values)
    return flat[:count].reshape(len(values), *shape)


def use(store: Store | None) -> Give | None:
    """Let batches that are copied on this thread be made in a store's memory."""
    return give_by(None if store is None else store.empty)
