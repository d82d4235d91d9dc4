"""The JPEG engines of a data-centre GPU, through NVIDIA's libnvjpeg.

The engines are separate from the GPU's multiprocessors, so decoding slows training little.
torchcodec uses them too; this module also selects the stream and the output memory, interpolates
4:2:0 chroma as libjpeg does, and releases the GIL.

If the library or the engines are missing, :func:`engine_for` returns None.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock import env
from penstock.errors import DecodingError

HARDWARE = 3
INTERLEAVED = 5  # red, green, blue, red, green, blue
INTERPOLATED = 1 << 5  # chroma of 4:2:0 and 4:2:2 is interpolated
_IMAGE_NUMBERS, _PITCH_AT = 8, 4  # nvjpegImage_t: four pointers, four pitches

Numbers = np.ndarray[Any, np.dtype[np.uint64]]
"""Contiguous, as the library requires."""
Outputs = np.ndarray[Any, np.dtype[np.int64]]
"""Device address and row stride in bytes of each picture: (count, 2)."""


def list_candidates() -> Iterator[str]:
    """Yield possible paths of the library: next to torch, in other wheels, system-wide."""
    wheels = (f"{name}.libs/libnvjpeg*.so*" for name in ("torchcodec", "torchvision"))
    places = ("nvidia/*/lib/libnvjpeg.so.*", *wheels)
    for folder in sys.path:
        for inside in places:
            yield from sorted(glob.glob(str(Path(folder or ".") / inside)), reverse=True)
    toolkits = (env.text("CUDA_HOME"), env.text("CUDA_PATH"), "/usr/local/cuda")
    for root in filter(None, toolkits):
        yield from sorted(glob.glob(f"{root}/lib64/libnvjpeg.so.*"), reverse=True)
    yield from ("libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so")


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return libnvjpeg, or None if it is not found."""
    for name in list_candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


_making = threading.Lock()


def engine_for(index: int) -> NvjpegDecoder | None:
    """Return the device's engines, shared by all threads, or None if it has none."""
    with _making:  # concurrent callers must get the same object, because of its lock
        return _engine_for(index)


@functools.cache
def _engine_for(index: int) -> NvjpegDecoder | None:
    found = load_library()
    if found is None:
        return None
    try:
        return NvjpegDecoder(found)
    except (DecodingError, AttributeError):  # no engines, or too old a library
        return None


class NvjpegDecoder:
    """Decodes a list of JPEG files with the same chroma subsampling into device memory.

    A context of the device must be current in the calling thread. A lock admits one batch at a time
    and waits for its end: with several batches in flight the library deadlocked.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._turn = threading.Lock()
        self._decoders: dict[Any, _NvjpegState] = {}
        with self._turn:  # only creating a decoder shows whether there are engines
            self._decoders[1, 1] = _NvjpegState(library)

    def decode(
        self,
        files: Numbers,
        sizes: Numbers,
        chroma: Any,
        to: Outputs,
        on: int,
        wait: Callable[[], None],
    ) -> bool:
        """Decode files, given by address, on a stream. Return whether the library accepted them.

        ``wait`` is called to synchronise that stream.
        """
        with self._turn:
            # The library reallocates its memory when the chroma changes: one decoder for each.
            decoder = self._decoders.get(chroma)
            if decoder is None:
                try:
                    decoder = self._decoders[chroma] = _NvjpegState(self.library)
                except DecodingError:  # out of memory, for example: the CPU decodes instead
                    return False
            done = decoder.decode(files, sizes, to, on)
            wait()
            return done


class _NvjpegState:
    """A handle of the library and its state."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.handle, self.state = ctypes.c_void_p(), ctypes.c_void_p()
        self.count = 0
        create = library.nvjpegCreateEx
        status = create(HARDWARE, None, None, INTERPOLATED, ctypes.byref(self.handle))
        if status != 0:
            raise DecodingError(f"libnvjpeg has no JPEG engine here (status {status})")
        status = library.nvjpegJpegStateCreate(self.handle, ctypes.byref(self.state))
        if status != 0:
            raise DecodingError(f"libnvjpeg cannot decode here (status {status})")

    def decode(self, files: Numbers, sizes: Numbers, to: Outputs, on: int) -> bool:
        count = len(files)
        if count != self.count:
            self.count = 0
            begin = self.library.nvjpegDecodeBatchedInitialize
            if begin(self.handle, self.state, count, 1, INTERLEAVED) != 0:
                return False
            self.count = count
        images = np.zeros((count, _IMAGE_NUMBERS), np.uint64)
        images[:, 0], images[:, _PITCH_AT] = to[:, 0], to[:, 1]
        self.images = images  # must stay alive until the batch is complete, like the other arrays
        arrays = [ctypes.c_void_p(array.ctypes.data) for array in (files, sizes, images)]
        decode = self.library.nvjpegDecodeBatched
        status: int = decode(self.handle, self.state, *arrays, ctypes.c_void_p(on))
        if status != 0:
            self.count = 0  # after a failed batch the decoder must be initialised again
        return status == 0
