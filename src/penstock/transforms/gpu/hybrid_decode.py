"""A batch of JPEG files decoded by the device's engines and by cores, whoever is free first.

The engines take files from one end of the batch, threads of the CPU from the other; files that
are not for an engine (:mod:`penstock.transforms.jpeg_markers`) are for the threads. Then one kernel
(:mod:`penstock.transforms.gpu.resize_kernel`) makes the batch of it all. The threads are the native module's
and never have the interpreter's lock; what is done here with it, for the trainer waits for it, does
not grow with the batch.

Engines alone do not keep up with a trainer: behind each picture the library starts a small kernel
of its own, which waits until a kernel of the trainer leaves a place. With an idle GPU a batch of
256 took 20 ms so, beside the training of ResNet-50 60 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.transforms.gpu.resize_kernel import Finish, Kernel, compiled, jobs_of
from penstock.loaders.measuring import cores
from penstock.transforms.gpu.nvjpeg import Engine, engine_for
from penstock.transforms.native import load_many
from penstock.transforms.jpeg_native import MADE, address_of
from penstock.transforms.gpu.file_table import Files, orders
from penstock.transforms.any_image import Array
from penstock.transforms.crop_plan import resized

if TYPE_CHECKING:
    import torch

ENGINE_FILES = 8, 64, 4
"""How many files the engines take at a time: at least, at most, and that part of what is left. Many
at first, since all need the interpreter's lock in between; few in the end, so that all end
together."""
MOST_THREADS = 8
_ALIGNED = 256
_ROOM = 16 << 20  # memory on the device is asked for in such steps, so that it fits again


def together(device: torch.device, finish: Finish) -> Together | None:
    """What makes batches there; None without engines, or without a compiler for the kernel."""
    import torch

    index = device.index or 0
    torch.cuda.set_device(index)  # the library wants a context in this very thread
    launch, engine = compiled(index), engine_for(index)
    if launch is None or engine is None:
        return None
    return Together(Kernel(launch, device, finish), engine)


def fits(table: Array) -> Array:
    """Whose box lies in the picture, by its header: a kernel would read what stands beside it."""
    top, left, height, width = table["plan"].T[:4]
    rows, columns = table["height"] - height, table["width"] - width
    inside: Array = (top >= 0) & (top <= rows) & (left >= 0) & (left <= columns)
    return inside


class Together:
    """Makes batches of pictures that were left undecoded, on the stream that is current."""

    def __init__(self, kernel: Kernel, engine: Engine, threads: int | None = None) -> None:
        self.kernel, self.engine, self.device = kernel, engine, kernel.device
        self.threads = min(cores() // 2, MOST_THREADS) if threads is None else threads

    def __call__(self, files: Files) -> torch.Tensor:
        """One batch of them in their order. Raises what decoding them on the CPU raises."""
        work = Work(files, self.device)
        shared, done = Shared(work.orders, work.able, self.threads), False
        try:
            refused = work.by_engine(self.engine, shared)
            done = True
        finally:
            first = shared.end(help=done)
        work.by_cpu(first, refused, self.threads)
        return self.kernel.batch(work.jobs(), work.size)


class Shared:
    """Jobs between two ends: taken from the front, and made from the end by threads in C.

    Without the native module nobody makes any. The first ``able`` can be taken.
    """

    def __init__(self, jobs: Array, able: int, threads: int) -> None:
        self.jobs, self.able, self.first = jobs, able, 0
        self.native, self.batch = load_many(), None
        if self.native is not None:
            self.batch = self.native.begin(address_of(jobs), len(jobs), threads)

    @property
    def left(self) -> int:
        """How many could be taken now."""
        behind = self.able
        if self.native is not None and self.batch is not None:
            behind = min(behind, self.native.behind(self.batch))
        return max(behind - self.first, 0)

    def take(self, count: int) -> slice:
        """So many from the front, or as many as there are."""
        if self.native is not None and self.batch is not None:
            count = self.native.take(self.batch, count)
        begin = self.first
        self.first += count
        return slice(begin, self.first)

    def end(self, help: bool) -> int:
        """The first that was not taken, once those are made; without ``help`` not all may be."""
        if self.native is None or self.batch is None:
            return self.first
        batch, self.batch = self.batch, None
        first: int = self.native.end(batch, help)
        return first


class Work:
    """One batch, those for an engine first, by their chroma: where each lies once it is decoded."""

    def __init__(self, files: Files, device: torch.device) -> None:
        import torch

        self.files, self.size, self.device = files, files.size, device
        inside = fits(files.table)
        chroma = files.table["chroma"]
        self.order = np.lexsort((chroma[:, 1], chroma[:, 0], ~inside))
        self.table = table = files.table[self.order]
        self.able = int(inside.sum())
        self.chroma = table["chroma"][: self.able].tolist()
        # Of each picture once decoded: its address, and the bytes of a row, a pixel, a colour.
        rows, row_bytes = table["height"] * inside[self.order], 3 * table["width"]
        taken = -(-rows * row_bytes // _ALIGNED) * _ALIGNED
        ends = np.cumsum(taken)
        room = -(-int(ends[-1]) // _ROOM) * _ROOM
        self.memory = torch.empty(room, dtype=torch.uint8, device=device)
        first = self.memory.data_ptr() + ends - taken
        ones = np.ones_like(first)
        self.places = np.stack([first, row_bytes, 3 * ones, ones], 1)
        # The CPU begins with the last: its rows are the first ones of this memory.
        pinned, shape = device.type == "cuda", (len(table), 3, *self.size)
        self.cpu = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        self.row = np.arange(len(table))[::-1]
        self.row_bytes = 3 * self.size[0] * self.size[1]
        out = self.cpu.data_ptr() + self.row_bytes * self.row
        self.orders = orders(table, files.transforms, out)
        self.made = np.zeros(len(table), bool)  # by the CPU

    # ── by the engine ───────────────────────────────────────────────────────────────────

    def by_engine(self, engine: Engine, shared: Shared) -> slice:
        """Decode from the front until nothing is left, or the engine refuses; what it refused."""
        stream, wait = self._stream()
        sizes = self.table["bytes"].astype(np.uint64)
        addresses = self.table["address"].astype(np.uint64)
        while (piece := self._piece(shared)).start < piece.stop:
            chroma = tuple(self.chroma[piece.start])
            to = self.places[piece, :2]
            if not engine.decode(addresses[piece], sizes[piece], chroma, to, stream, wait):
                return piece
        return piece

    def _piece(self, shared: Shared) -> slice:
        """The next files, which are of one chroma."""
        least, most, part = ENGINE_FILES
        left = shared.left
        count = min(max(least, min(most, left // part)), left)
        if count:
            first = shared.first
            count = self.chroma[first : first + count].count(self.chroma[first])
        return shared.take(count)

    def _stream(self) -> tuple[int, Callable[[], None]]:
        import torch

        if self.device.type != "cuda":
            return 0, lambda: None
        torch.cuda.set_device(self.device)  # the engines want a context in this very thread
        stream = torch.cuda.current_stream(self.device)
        return stream.cuda_stream, stream.synchronize

    # ── by the CPU ──────────────────────────────────────────────────────────────────────

    def by_cpu(self, first: int, refused: slice, threads: int) -> None:
        """Make what no engine has: what the native module left, and what it cannot make."""
        if refused.start < refused.stop:
            Shared(self.orders[refused], 0, threads).end(help=True)
        self.made[first:] = self.made[refused] = True
        rows: Any = self.cpu.numpy()
        for place in np.flatnonzero(self.made & (self.orders["state"] & MADE == 0)).tolist():
            rows[self.row[place]] = self.files.decoded(int(self.order[place]))

    # ── all of it ───────────────────────────────────────────────────────────────────────

    def jobs(self) -> Any:
        """What the kernel is to do, once all is decoded."""
        plans, made = self.table["plan"], self.made
        if made.any():
            count = int(self.row[made].max()) + 1
            # It must stay as long as the kernel may read it.
            self.moved = self.cpu[:count].to(self.device, non_blocking=True)
            plans[made] = resized((0, 0, *self.size), self.size)
            self.places[made, 0] = self.moved.data_ptr() + self.row_bytes * self.row[made]
            self.places[made, 1:] = self.size[1], 1, self.size[0] * self.size[1]
        cubic = np.array([one.interpolation == "bicubic" for one in self.files.transforms])
        in_our_order = jobs_of(plans, self.places, cubic[self.table["transform"]])
        jobs = np.empty_like(in_our_order)
        jobs[self.order] = in_our_order
        return jobs
