"""Memory that goes to another process and comes back: for the files of a batch.

A worker that made new memory for each batch would have it zeroed first, page by page, and
whoever let go of it last, the trainer's process, would give back those pages while it holds the
interpreter's lock: 3 ms for 256 photographs. So a worker keeps its blocks. The first byte
of a block says whether it is out; who got it says so when nobody there looks at it any more. A
process that was forked meanwhile cannot know that: then the block is nobody's again.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Any

HEAD = 64
"""Bytes before the data, of which the first is the mark."""
_BACK, _OUT, _GONE = range(3)
_STEP = 1 << 20
_MOST = 16
_forks: list[None] = []
"""One for each fork of this process, and of those before it."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _forks.append(None))


class Lender:
    """The blocks of one process.

    >>> lender = Lender()
    >>> block = lender.lend(1000)
    >>> lender.lend(1000) is block
    False
    >>> memory = borrowed(block)
    >>> del memory
    >>> lender.lend(1000) is block
    True
    """

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, Any]] = []
        self._turn = threading.Lock()

    def lend(self, size: int) -> Any:
        """A tensor in shared memory with room for so many bytes behind its head."""
        with self._turn:
            for block, mark in self.blocks:
                if mark[0] == _BACK and len(block) >= HEAD + size:
                    mark[0] = _OUT
                    return block
            return self._new(size)

    def _new(self, size: int) -> Any:
        import torch

        # With some room, so that the next batch fits too; what it does not need is never touched.
        room = -(-(HEAD + size + size // 8) // _STEP) * _STEP
        storage = torch.UntypedStorage._new_shared(room)  # type: ignore[no-untyped-call]
        block = torch.empty(0, dtype=torch.uint8).set_(storage)
        mark = block.numpy()
        mark[0] = _OUT
        if torch.multiprocessing.get_sharing_strategy() == "file_system":  # type: ignore[no-untyped-call]
            return block  # its name would stay in /dev/shm behind a worker that ends
        # What is back and too small will stay so; what is out is the other's from now on.
        kept = [one for one in self.blocks if one[1][0] == _OUT]
        self.blocks = [*kept[-_MOST + 1 :], (block, mark)]
        return block


def borrowed(block: Any) -> Any:
    """The data of a block as an array; once it and all views of it are gone, the block is back."""
    whole = block.numpy()  # views of views have this as their base, and not one another
    back = weakref.finalize(whole, _give_back, block.numpy(), len(_forks))
    back.atexit = False
    return whole[HEAD:]


def _give_back(mark: Any, forks: int) -> None:
    mark[0] = _BACK if forks == len(_forks) else _GONE


def lender() -> Lender:
    """This process's own: a fork shares its parent's blocks, and must not lend them."""
    return _lender_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _lender_of(process: int) -> Lender:
    return Lender()
