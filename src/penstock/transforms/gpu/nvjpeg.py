"""The JPEG engines of a data-centre GPU, through NVIDIA's libnvjpeg.

They decode beside the processors of the GPU, so a training step loses little. torchvision uses
them too; here the pictures go to a stream that we choose, into memory that we choose, with the
colours of 4:2:0 interpolated as libjpeg does it, and without the interpreter's lock.

The library, like the engines, may be missing: :func:`engine_for` then gives None.
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
INTERPOLATED = 1 << 5  # colours between those of 4:2:0 and 4:2:2 are interpolated
_IMAGE_NUMBERS, _PITCH_AT = 8, 4  # nvjpegImage_t: four pointers, four pitches

Numbers = np.ndarray[Any, np.dtype[np.uint64]]
"""One after another in memory, as the library reads them."""
Places = np.ndarray[Any, np.dtype[np.int64]]
"""Where pictures are to go on the device, and the bytes from row to row: (count, 2)."""


def candidates() -> Iterator[str]:
    """Where the library may be: beside torch's own libraries, beside torchvision's, installed."""
    for folder in sys.path:
        for inside in ("nvidia/*/lib/libnvjpeg.so.*", "torchvision.libs/libnvjpeg*.so*"):
            yield from sorted(glob.glob(str(Path(folder or ".") / inside)), reverse=True)
    toolkits = (env.text("CUDA_HOME"), env.text("CUDA_PATH"), "/usr/local/cuda")
    for root in filter(None, toolkits):
        yield from sorted(glob.glob(f"{root}/lib64/libnvjpeg.so.*"), reverse=True)
    yield from ("libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so")


@functools.cache
def library() -> ctypes.CDLL | None:
    """libnvjpeg, or None where it is not to be found."""
    for name in candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


_making = threading.Lock()


def engine_for(index: int) -> Engine | None:
    """The engines of a device, for all who decode there; None where it has none."""
    with _making:  # two who come at once must get the same, to take turns
        return _engine_for(index)


@functools.cache
def _engine_for(index: int) -> Engine | None:
    found = library()
    if found is None:
        return None
    try:
        return Engine(found)
    except (DecodingError, AttributeError):  # no engines, or too old a library
        return None


class Engine:
    """Decodes JPEG files that have the same chroma, many at once, into memory of the device.

    A context of the device must be current where it is made and used. Callers take turns, and each
    batch is waited for: with several under way at a time the library stood still for ever.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._turn = threading.Lock()
        self._decoders: dict[Any, _Decoder] = {}
        with self._turn:  # whether there are engines is known once a decoder was made
            self._decoders[1, 1] = _Decoder(library)

    def decode(
        self,
        files: Numbers,
        sizes: Numbers,
        chroma: Any,
        to: Places,
        on: int,
        wait: Callable[[], None],
    ) -> bool:
        """Decode files, given by their addresses, on a stream; whether the library took them.

        ``wait`` is called to wait for that stream.
        """
        with self._turn:
            # The library makes its memory anew when the chroma changes: a decoder for each.
            decoder = self._decoders.get(chroma)
            if decoder is None:
                try:
                    decoder = self._decoders[chroma] = _Decoder(self.library)
                except DecodingError:  # no memory, say: there are cores, too
                    return False
            done = decoder.decode(files, sizes, to, on)
            wait()
            return done


class _Decoder:
    """A handle of the library with its state."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.handle, self.state = ctypes.c_void_p(), ctypes.c_void_p()
        self.count = 0
        create = library.nvjpegCreateEx
        made = create(HARDWARE, None, None, INTERPOLATED, ctypes.byref(self.handle))
        if made != 0:
            raise DecodingError(f"libnvjpeg gives no JPEG engine (status {made})")
        made = library.nvjpegJpegStateCreate(self.handle, ctypes.byref(self.state))
        if made != 0:
            raise DecodingError(f"libnvjpeg cannot decode here (status {made})")

    def decode(self, files: Numbers, sizes: Numbers, to: Places, on: int) -> bool:
        count = len(files)
        if count != self.count:
            self.count = 0
            begin = self.library.nvjpegDecodeBatchedInitialize
            if begin(self.handle, self.state, count, 1, INTERLEAVED) != 0:
                return False
            self.count = count
        images = np.zeros((count, _IMAGE_NUMBERS), np.uint64)
        images[:, 0], images[:, _PITCH_AT] = to[:, 0], to[:, 1]
        self.images = images  # it must stay until the batch was waited for, as the others do
        arrays = [ctypes.c_void_p(array.ctypes.data) for array in (files, sizes, images)]
        decode = self.library.nvjpegDecodeBatched
        done: int = decode(self.handle, self.state, *arrays, ctypes.c_void_p(on))
        if done != 0:
            self.count = 0  # a batch that failed must be begun anew
        return done == 0
