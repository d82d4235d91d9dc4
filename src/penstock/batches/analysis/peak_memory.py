"""Measures the peak memory of a training step."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

STATM = "/proc/self/statm"
PAGE_BYTES = 4096
EVERY_S = 0.001


def free_memory(failed: bool) -> None:
    """Release unreferenced memory, including what the device's allocator caches."""
    # Only a failed step can leave old reference cycles; a full collection takes long.
    gc.collect(2 if failed else 1)
    cuda = _cuda()
    if cuda is not None:
        cuda.synchronize()
        cuda.empty_cache()


class Peak:
    """The peak memory, in bytes, measured by :func:`watch_memory`."""

    bytes = 0


@contextlib.contextmanager
def watch_memory() -> Iterator[Peak]:
    """Measure the peak memory of a step: the device's if CUDA is in use, else this process's.

    The process's is its resident memory, sampled every millisecond (or what Python's allocator
    handed out, if the system does not report resident memory).

    >>> with watch_memory() as peak:
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
        with _trace(peak):
            yield peak
    else:
        with _poll(peak):
            yield peak


def resident_bytes() -> int | None:
    """Return the resident memory of this process, or None if the system does not report it."""
    try:
        with open(STATM, "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return None


@contextlib.contextmanager
def _poll(peak: Peak) -> Iterator[None]:
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
def _trace(peak: Peak) -> Iterator[None]:
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
    """Return ``torch.cuda`` if the program uses CUDA, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None
