"""How much memory a step takes, and whether it failed for want of it."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
STATM = "/proc/self/statm"
PAGE_BYTES = 4096
EVERY_S = 0.001


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory was not enough, on the host or on a device.

    >>> ran_out(MemoryError()), ran_out(RuntimeError("CUDA out of memory")), ran_out(ValueError())
    (True, True, False)
    """
    if isinstance(error, MemoryError):
        return True
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in OUT_OF_MEMORY)


def set_free(failed: bool) -> None:
    """Give back what nobody holds any more, also what the device's allocator keeps for later."""
    # A failed step may leave anything behind; looking through all objects takes long.
    gc.collect(2 if failed else 1)
    cuda = _cuda()
    if cuda is not None:
        cuda.synchronize()
        cuda.empty_cache()


class Peak:
    """The most memory, in bytes, that was in use while :func:`watched` watched."""

    bytes = 0


@contextlib.contextmanager
def watched() -> Iterator[Peak]:
    """Watch the memory of a step: the device's where CUDA is in use, else this process's.

    The process's is what is resident, looked up every millisecond (where the system does not tell
    it, what Python's allocator gave out).

    >>> with watched() as peak:
    ...     block = bytes(50_000_000)
    >>> peak.bytes > 50_000_000
    True
    """
    peak, cuda = Peak(), _cuda()
    if cuda is not None:
        cuda.reset_peak_memory_stats()
        try:
            yield peak
        finally:
            with contextlib.suppress(RuntimeError):
                cuda.synchronize()
            peak.bytes = cuda.max_memory_allocated()
    elif resident_bytes() is None:
        with _traced(peak):
            yield peak
    else:
        with _polled(peak):
            yield peak


def resident_bytes() -> int | None:
    """The memory of this process; None where the system does not tell it in this way."""
    try:
        with open(STATM, "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return None


@contextlib.contextmanager
def _polled(peak: Peak) -> Iterator[None]:
    done = threading.Event()

    def look() -> None:
        while True:
            peak.bytes = max(peak.bytes, resident_bytes() or 0)
            if done.wait(EVERY_S):
                return

    thread = threading.Thread(target=look, name="penstock-memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        peak.bytes = max(peak.bytes, resident_bytes() or 0)
        done.set()
        thread.join()


@contextlib.contextmanager
def _traced(peak: Peak) -> Iterator[None]:
    began = not tracemalloc.is_tracing()
    if began:
        tracemalloc.start()
    tracemalloc.reset_peak()
    try:
        yield
    finally:
        peak.bytes = tracemalloc.get_traced_memory()[1]
        if began:
            tracemalloc.stop()


def _cuda() -> Any:
    """torch's module for CUDA, where the program uses it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None
