"""Decode a batch of JPEG files on the GPU's engines and on CPU threads at the same time.

The engines take files from the front of the batch, CPU threads from its end. Files that an engine
must not decode (:mod:`penstock.transforms.jpeg_markers`) go to the threads. Then one kernel
(:mod:`penstock.transforms.gpu.resize_kernel`) makes the batch. The threads belong to the native
module and never hold the GIL; the Python work per batch, which holds it, does not grow with the
number of pictures.

Engines alone are too slow during training: after each picture the library launches a small kernel,
which waits for the training kernels. A batch of 256 took 20 ms on an idle GPU and 60 ms next to
the training of ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.context import cores
from penstock.transforms.any_image import Array
from penstock.transforms.crop_plan import plan_resize
from penstock.transforms.gpu.file_table import FileTable, make_native_jobs
from penstock.transforms.gpu.nvjpeg import NvjpegDecoder, engine_for
from penstock.transforms.gpu.resize_kernel import Finish, Kernel, compile_kernel, make_jobs
from penstock.transforms.jpeg_native import MADE, address_of
from penstock.transforms.native import load_many

if TYPE_CHECKING:
    import torch

ENGINE_FILES = 8, 64, 4
"""Files that the engines take at a time: minimum, maximum, and the divisor of the remaining count.
Many at first, because each call needs the GIL; few at the end, so that engines and threads finish
at the same time."""
MAX_THREADS = 8
_ALIGNED = 256
_ALLOCATION_STEP = 16 << 20  # device memory is requested in multiples, so that it can be reused


def make_hybrid_decoder(device: torch.device, finish: Finish) -> HybridDecoder | None:
    """Return the device's decoder, or None without engines or a compiler for the kernel."""
    import torch

    index = device.index or 0
    torch.cuda.set_device(index)  # the library needs a context in the current thread
    launch, engine = compile_kernel(index), engine_for(index)
    if launch is None or engine is None:
        return None
    return HybridDecoder(Kernel(launch, device, finish), engine)


def boxes_fit(table: Array) -> Array:
    """Return which crop boxes lie inside of their picture. The kernel does not check that."""
    top, left, height, width = table["plan"].T[:4]
    rows, columns = table["height"] - height, table["width"] - width
    inside: Array = (top >= 0) & (top <= rows) & (left >= 0) & (left <= columns)
    return inside


class HybridDecoder:
    """Makes batches from undecoded pictures, on the current stream."""

    def __init__(self, kernel: Kernel, engine: NvjpegDecoder, threads: int | None = None) -> None:
        self.kernel, self.engine, self.device = kernel, engine, kernel.device
        self.threads = min(cores() // 2, MAX_THREADS) if threads is None else threads

    def __call__(self, files: FileTable) -> torch.Tensor:
        """Return the batch, in the files' order. Raise what decoding them on the CPU raises."""
        work = HybridBatch(files, self.device)
        queue, done = TwoEndedQueue(work.native_jobs, work.able, self.threads), False
        try:
            refused = work.decode_on_engine(self.engine, queue)
            done = True
        finally:
            first = queue.end(help=done)
        work.decode_on_cpu(first, refused, self.threads)
        return self.kernel.run(work.make_kernel_jobs(), work.size)


class TwoEndedQueue:
    """Jobs that the engine takes from the front while C threads execute them from the end.

    Without the native module no job is executed. Only the first ``able`` jobs can be taken.
    """

    def __init__(self, jobs: Array, able: int, threads: int) -> None:
        self.jobs, self.able, self.first = jobs, able, 0
        self.native, self.batch = load_many(), None
        if self.native is not None:
            self.batch = self.native.begin(address_of(jobs), len(jobs), threads)

    @property
    def remaining(self) -> int:
        """The number of jobs that can still be taken."""
        end = self.able
        if self.native is not None and self.batch is not None:
            end = min(end, self.native.behind(self.batch))
        return max(end - self.first, 0)

    def take(self, count: int) -> slice:
        """Take up to ``count`` jobs from the front and return their range."""
        if self.native is not None and self.batch is not None:
            count = self.native.take(self.batch, count)
        begin = self.first
        self.first += count
        return slice(begin, self.first)

    def end(self, help: bool) -> int:
        """Wait for the threads and return the index of the first job that was not taken.

        With ``help`` all remaining jobs are executed; without it the threads stop early.
        """
        if self.native is None or self.batch is None:
            return self.first
        batch, self.batch = self.batch, None
        first: int = self.native.end(batch, help)
        return first


class HybridBatch:
    """The memory and jobs of one batch: files for an engine first, sorted by their chroma."""

    def __init__(self, files: FileTable, device: torch.device) -> None:
        import torch

        self.files, self.size, self.device = files, files.size, device
        inside = boxes_fit(files.table)
        chroma = files.table["chroma"]
        self.order = np.lexsort((chroma[:, 1], chroma[:, 0], ~inside))
        self.table = table = files.table[self.order]
        self.able = int(inside.sum())
        self.chroma = table["chroma"][: self.able].tolist()
        # Of each decoded picture: its address, and the strides of rows, pixels and channels.
        rows, row_bytes = table["height"] * inside[self.order], 3 * table["width"]
        taken = -(-rows * row_bytes // _ALIGNED) * _ALIGNED
        ends = np.cumsum(taken)
        size_bytes = -(-int(ends[-1]) // _ALLOCATION_STEP) * _ALLOCATION_STEP
        self.memory = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        first = self.memory.data_ptr() + ends - taken
        ones = np.ones_like(first)
        self.sources = np.stack([first, row_bytes, 3 * ones, ones], 1)
        # The CPU starts with the last job, whose output is the first row of this memory.
        pinned, shape = device.type == "cuda", (len(table), 3, *self.size)
        self.cpu = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        self.row = np.arange(len(table))[::-1]
        self.row_bytes = 3 * self.size[0] * self.size[1]
        out = self.cpu.data_ptr() + self.row_bytes * self.row
        self.native_jobs = make_native_jobs(table, files.transforms, out)
        self.on_cpu = np.zeros(len(table), bool)

    # ── engine ──────────────────────────────────────────────────────────────────────────

    def decode_on_engine(self, engine: NvjpegDecoder, queue: TwoEndedQueue) -> slice:
        """Decode from the front until the queue is empty or the engine refuses some.

        Return the range that it refused.
        """
        stream, wait = self._stream()
        sizes = self.table["bytes"].astype(np.uint64)
        addresses = self.table["address"].astype(np.uint64)
        while (piece := self._take_piece(queue)).start < piece.stop:
            chroma = tuple(self.chroma[piece.start])
            to = self.sources[piece, :2]
            if not engine.decode(addresses[piece], sizes[piece], chroma, to, stream, wait):
                return piece
        return piece

    def _take_piece(self, queue: TwoEndedQueue) -> slice:
        """Take the next files with the same chroma."""
        least, most, part = ENGINE_FILES
        remaining = queue.remaining
        count = min(max(least, min(most, remaining // part)), remaining)
        if count:
            first = queue.first
            count = self.chroma[first : first + count].count(self.chroma[first])
        return queue.take(count)

    def _stream(self) -> tuple[int, Callable[[], None]]:
        import torch

        if self.device.type != "cuda":
            return 0, lambda: None
        torch.cuda.set_device(self.device)  # the engines need a context in the current thread
        stream = torch.cuda.current_stream(self.device)
        return stream.cuda_stream, stream.synchronize

    # ── CPU ─────────────────────────────────────────────────────────────────────────────

    def decode_on_cpu(self, first: int, refused: slice, threads: int) -> None:
        """Decode what the engine refused, and what the native threads could not decode."""
        if refused.start < refused.stop:
            TwoEndedQueue(self.native_jobs[refused], 0, threads).end(help=True)
        self.on_cpu[first:] = self.on_cpu[refused] = True
        rows: Any = self.cpu.numpy()
        missing = self.on_cpu & (self.native_jobs["state"] & MADE == 0)
        for index in np.flatnonzero(missing).tolist():
            rows[self.row[index]] = self.files.decode(int(self.order[index]))

    # ── both ────────────────────────────────────────────────────────────────────────────

    def make_kernel_jobs(self) -> Any:
        """Return the kernel's jobs, after all files are decoded."""
        plans, on_cpu = self.table["plan"], self.on_cpu
        if on_cpu.any():
            count = int(self.row[on_cpu].max()) + 1
            # An attribute, so that it stays alive while the kernel may read it.
            self.moved = self.cpu[:count].to(self.device, non_blocking=True)
            plans[on_cpu] = plan_resize((0, 0, *self.size), self.size)
            self.sources[on_cpu, 0] = self.moved.data_ptr() + self.row_bytes * self.row[on_cpu]
            self.sources[on_cpu, 1:] = self.size[1], 1, self.size[0] * self.size[1]
        cubic = np.array([one.interpolation == "bicubic" for one in self.files.transforms])
        in_our_order = make_jobs(plans, self.sources, cubic[self.table["transform"]])
        jobs = np.empty_like(in_our_order)
        jobs[self.order] = in_our_order
        return jobs
