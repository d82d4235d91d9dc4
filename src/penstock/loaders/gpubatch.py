"""A batch of JPEG files decoded by the device's engines and by cores, whoever is free first.

The engines take files from one end of the batch, threads of the CPU from the other; files that
are not for an engine (:mod:`penstock.transforms.jpegheader`) are for the threads. Then one kernel
(:mod:`penstock.loaders.gpukernel`) makes the batch of it all. A thread that decodes is in C, so
the trainer keeps the interpreter's lock.

Engines alone do not keep up with a trainer: behind each picture the library starts a small kernel
of its own, which waits until a kernel of the trainer leaves a place. With an idle GPU a batch of
256 took 20 ms so, beside the training of ResNet-50 60 ms.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import SampleError
from penstock.loaders.gpukernel import Finish, Kernel, compiled, jobs_of
from penstock.loaders.measuring import cores
from penstock.loaders.nvjpeg import Engine, engine_for
from penstock.native import load_many
from penstock.transforms.plan import resized
from penstock.transforms.undecoded import Undecoded

if TYPE_CHECKING:
    import torch

ENGINE_FILES, THREAD_FILES = (8, 64, 4), (2, 8, 16)
"""How many files the engines, and a thread, take at a time: at least, at most, and that part of
what is left. Many at first, since all need the interpreter's lock in between; few in the end, so
that all end together."""
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


def same_size(pictures: list[Undecoded]) -> tuple[int, int]:
    """Height and width of all; a SampleError where they differ."""
    sizes = {one.size for one in pictures}
    if len(sizes) > 1:
        raise SampleError(
            f"all shapes must be equal in a batch, got {sorted(sizes)}: give the transform a size "
            "of (height, width)"
        )
    return sizes.pop()


def fits(picture: Undecoded) -> bool:
    """Whether the box lies in the picture: a kernel would read whatever stands beside it."""
    plan, header = picture.plan, picture.header
    return (
        plan is not None
        and header is not None
        and 0 <= plan.top <= header.height - plan.height
        and 0 <= plan.left <= header.width - plan.width
    )


class Together:
    """Makes batches of pictures that were left undecoded, on the stream that is current."""

    def __init__(self, kernel: Kernel, engine: Engine, threads: int | None = None) -> None:
        self.kernel, self.engine, self.device = kernel, engine, kernel.device
        # Without the native module a thread would hold the interpreter's lock half of the time.
        able = load_many() is not None
        usual = min(cores() // 2, MOST_THREADS) if able else 0
        self.threads = usual if threads is None else threads

    def __call__(self, pictures: list[Undecoded]) -> torch.Tensor:
        """One batch of them in their order. Raises what decoding them on the CPU raises."""
        work = Work(pictures, same_size(pictures), self.device)
        threads = [threading.Thread(target=work.by_cpu, daemon=True) for _ in range(self.threads)]
        for thread in threads:
            thread.start()
        try:
            work.by_engine(self.engine)
            work.by_cpu()  # what the engine refused, or nobody else will take
        finally:
            work.stop()
            for thread in threads:
                thread.join()
        return self.kernel.batch(work.jobs(), work.size)


class Work:
    """One batch: what is left of it, and where what is done lies."""

    def __init__(
        self, pictures: list[Undecoded], size: tuple[int, int], device: torch.device
    ) -> None:
        import numpy as np
        import torch

        self.pictures, self.size, self.device = pictures, size, device
        self.headers = [one.header if fits(one) else None for one in pictures]
        able = [place for place, header in enumerate(self.headers) if header is not None]
        able.sort(key=self._chroma)
        self._lock = threading.Lock()
        self._able = deque(able)
        self._others = deque(place for place, header in enumerate(self.headers) if header is None)
        self._rows: list[tuple[int, int]] = []  # (place, row) of what threads have taken
        self._error: BaseException | None = None
        # Of each picture once decoded: its address, and the bytes of a row, a pixel, a colour.
        sizes = np.array([(0, 0) if one is None else one[:2] for one in self.headers], np.int64)
        rows, row_bytes = sizes[:, 0], 3 * sizes[:, 1]
        taken = -(-rows * row_bytes // _ALIGNED) * _ALIGNED
        ends = np.cumsum(taken)
        room = -(-int(ends[-1]) // _ROOM) * _ROOM
        self.memory = torch.empty(room, dtype=torch.uint8, device=device)
        first = self.memory.data_ptr() + ends - taken
        ones = np.ones_like(first)
        self.places = np.stack([first, row_bytes, 3 * ones, ones], 1)
        pinned, shape = device.type == "cuda", (len(pictures), 3, *size)
        self.cpu = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)

    def _chroma(self, place: int) -> tuple[int, int]:
        header = self.headers[place]
        return (0, 0) if header is None else header.chroma

    # ── by the engine ───────────────────────────────────────────────────────────────────

    def by_engine(self, engine: Engine) -> None:
        """Decode from the one end, until nothing is left or the engine refuses."""
        stream, wait = self._stream()
        while places := self._for_engine():
            if not self._decoded(engine, places, stream, wait):
                with self._lock:
                    self._others.extend(places)
                return

    def _stream(self) -> tuple[int, Callable[[], None]]:
        import torch

        if self.device.type != "cuda":
            return 0, lambda: None
        torch.cuda.set_device(self.device)  # the engines want a context in this very thread
        stream = torch.cuda.current_stream(self.device)
        return stream.cuda_stream, stream.synchronize

    def _for_engine(self) -> list[int]:
        """Files of one chroma."""
        able, taken = self._able, list[int]()
        with self._lock:
            count = _count(len(able), ENGINE_FILES)
            while able and len(taken) < count:
                if taken and self._chroma(able[0]) != self._chroma(taken[0]):
                    break
                taken.append(able.popleft())
        return taken

    def _decoded(
        self, engine: Engine, places: list[int], stream: int, wait: Callable[[], None]
    ) -> bool:
        from penstock.transforms.many import address_of

        files = [self.pictures[place].data for place in places]
        to = self.places[places, :2]
        addresses, sizes = [address_of(file) for file in files], [len(file) for file in files]
        return engine.decode(addresses, sizes, self._chroma(places[0]), to, stream, wait)

    # ── by the CPU ──────────────────────────────────────────────────────────────────────

    def by_cpu(self) -> None:
        """Make pictures from the other end, until nothing is left."""
        from penstock.transforms.many import fill_rows

        try:
            rows: Any = self.cpu.numpy()
            while taken := self._for_cpu():
                pictures = [self.pictures[place] for place, _ in taken]
                fill_rows(load_many(), pictures, [rows[row] for _, row in taken])
        except BaseException as error:  # noqa: BLE001 - raised where the batch is wanted
            self._error = self._error or error
            self.stop()

    def _for_cpu(self) -> list[tuple[int, int]]:
        taken = list[tuple[int, int]]()
        with self._lock:
            count = _count(len(self._others) + len(self._able), THREAD_FILES)
            while len(taken) < count and (self._others or self._able):
                place = self._others.popleft() if self._others else self._able.pop()
                taken.append((place, len(self._rows) + len(taken)))
            self._rows += taken
        return taken

    def stop(self) -> None:
        """Nothing more is taken."""
        with self._lock:
            self._able.clear()
            self._others.clear()

    # ── all of it ───────────────────────────────────────────────────────────────────────

    def jobs(self) -> Any:
        """What the kernel is to do, once all have come to an end. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        whole = resized((0, 0, *self.size), self.size)
        plans = [one.plan or whole for one in self.pictures]
        cubic = [one.transform.interpolation == "bicubic" for one in self.pictures]
        if self._rows:
            made = self.cpu[: len(self._rows)].to(self.device, non_blocking=True)
            self.moved = made  # it must stay as long as the kernel may read it
            colour_bytes = self.size[0] * self.size[1]
            for place, row in self._rows:
                plans[place] = whole
                first = made.data_ptr() + 3 * colour_bytes * row
                self.places[place] = first, self.size[1], 1, colour_bytes
        return jobs_of(plans, self.places, cubic)


def _count(left: int, pieces: tuple[int, int, int]) -> int:
    least, most, part = pieces
    return max(least, min(most, left // part))
