"""Shared memory that a worker lends to the trainer's process and reuses: for the files of a batch.

New memory for each batch would be zeroed first, page by page, and the process that drops the last
reference, the trainer's, would free those pages while it holds the GIL: 3 ms for 256 photographs.
So a worker keeps its blocks. The first byte of a block says whether it is lent; the borrower
resets it when its last view is gone. If the borrower has forked in between, it is unknown whether
the child still reads the block, so the block is never reused.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Any

HEAD = 64
"""Bytes before the data; the first is the mark."""
_BACK, _OUT, _GONE = range(3)
_STEP = 1 << 20
_MOST = 16
_forks: list[None] = []
"""One element for each fork of this process and of its ancestors."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _forks.append(None))


class SharedBlockPool:
    """The shared memory blocks of one process.

    >>> pool = SharedBlockPool()
    >>> block = pool.lend(1000)
    >>> pool.lend(1000) is block
    False
    >>> memory = view_block(block)
    >>> del memory
    >>> pool.lend(1000) is block
    True
    """

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, Any]] = []
        self._turn = threading.Lock()

    def lend(self, size: int) -> Any:
        """Return a tensor in shared memory with space for ``size`` bytes after its header."""
        with self._turn:
            for block, mark in self.blocks:
                if mark[0] == _BACK and len(block) >= HEAD + size:
                    mark[0] = _OUT
                    return block
            return self._new(size)

    def _new(self, size: int) -> Any:
        import torch

        # With a reserve, so that the next batch fits too; unused pages are never touched.
        capacity = -(-(HEAD + size + size // 8) // _STEP) * _STEP
        storage = torch.UntypedStorage._new_shared(capacity)  # type: ignore[no-untyped-call]
        block = torch.empty(0, dtype=torch.uint8).set_(storage)
        mark = block.numpy()
        mark[0] = _OUT
        if torch.multiprocessing.get_sharing_strategy() == "file_system":  # type: ignore[no-untyped-call]
            return block  # its name would remain in /dev/shm after the worker ends
        # Drop returned blocks, which are too small; the borrowers own those that are lent.
        kept = [one for one in self.blocks if one[1][0] == _OUT]
        self.blocks = [*kept[-_MOST + 1 :], (block, mark)]
        return block


def view_block(block: Any) -> Any:
    """Return the data of a lent block as an array. The block is free when its last view is gone."""
    whole = block.numpy()  # the base of all views, also of views of views
    back = weakref.finalize(whole, _give_back, block.numpy(), len(_forks))
    back.atexit = False
    return whole[HEAD:]


def _give_back(mark: Any, forks: int) -> None:
    mark[0] = _BACK if forks == len(_forks) else _GONE


def current_pool() -> SharedBlockPool:
    """Return the pool of this process. A fork must not lend its parent's blocks."""
    return _pool_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _pool_of(process: int) -> SharedBlockPool:
    return SharedBlockPool()
