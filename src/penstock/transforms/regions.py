"""The region of a JPEG alone, by the TurboJPEG library of version 3, where there is one.

The wheel ``turbojpeg`` brings it, as do conda and some systems. Of the rows above the region only
the bits are counted, what is beside it is hardly looked at, what is below it not at all; the pixels
are those of the whole picture, to the level. The library is called through ctypes: the one long
call lets other threads run, the short ones keep the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.transforms.jpeg_fallback import Array, Frame, Part, colours, reduction
from penstock.transforms.crop_plan import Plan
from penstock.memory.scratch import room

_SYSTEM = "libturbojpeg.so.0"  # of version 2 as well, which has no regions
_DECOMPRESS = 1
_SAMPLING, _WIDTH, _HEIGHT = 4, 5, 6
_FORMATS = {"RGB": 0, "RGBX": 2}
_BLOCK_WIDTHS = (8, 16, 16, 8, 8, 32, 8)  # 4:4:4, 4:2:2, 4:2:0, grey, 4:4:0, 4:1:1, 4:4:1
# Colours are smoothed over the edge of a block: with a margin the part is what the whole would be.
_MARGIN = 2
_MOST_REDUCED = 4  # at 1/8 libjpeg-turbo leaves the last columns of a region unset


class _Region(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_int),
        ("y", ctypes.c_int),
        ("w", ctypes.c_int),
        ("h", ctypes.c_int),
    )


class _Scale(ctypes.Structure):
    _fields_ = (("over", ctypes.c_int), ("under", ctypes.c_int))


class Library(NamedTuple):
    """The functions of the library."""

    begin: Any
    end: Any
    read_header: Any
    get: Any
    scale: Any
    cut: Any
    decode: Any


@functools.cache
def library() -> Library | None:
    """The library, or None where there is none of version 3."""
    for file in _files():
        try:
            return _opened(file)
        except (OSError, AttributeError):  # not there, or too old
            continue
    return None


def _files() -> Iterator[str]:
    try:
        wheel = importlib.metadata.distribution("turbojpeg")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        for path in wheel.files or ():
            if path.name.startswith("libturbojpeg"):
                yield str(wheel.locate_file(path))
    yield _SYSTEM


def _opened(file: str) -> Library:
    holding, releasing = ctypes.PyDLL(file), ctypes.CDLL(file)
    handle, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    size = ctypes.c_size_t
    found = Library(
        holding.tj3Init,
        holding.tj3Destroy,
        holding.tj3DecompressHeader,
        holding.tj3Get,
        holding.tj3SetScalingFactor,
        holding.tj3SetCroppingRegion,
        releasing.tj3Decompress8,
    )
    found.begin.argtypes, found.begin.restype = [number], handle
    found.end.argtypes, found.end.restype = [handle], None
    found.read_header.argtypes = [handle, text, size]
    found.get.argtypes = [handle, number]
    found.scale.argtypes = [handle, _Scale]
    found.cut.argtypes = [handle, _Region]
    found.decode.argtypes = [handle, text, size, handle, number, number]
    return found


def decode_region(library: Library, data: bytes, frame: Frame, plan: Plan) -> Part | None:
    """The pixels of the box and a little around, in memory that this thread's next call uses again.

    None where the library cannot, or has something to say about the data.
    """
    if not frame.complete or reduction(plan) > _MOST_REDUCED:
        return None
    # One for each picture: it would keep tables, and lend them to the next one that has none.
    handle = library.begin(_DECOMPRESS)
    if not handle:
        return None
    try:
        return _decoded(library, handle, data, frame, plan)
    finally:
        library.end(handle)


def _decoded(library: Library, handle: int, data: bytes, frame: Frame, plan: Plan) -> Part | None:
    get, factor, size = library.get, reduction(plan), len(data)
    if library.read_header(handle, data, size):
        return None
    sampling = get(handle, _SAMPLING)
    if (get(handle, _HEIGHT), get(handle, _WIDTH)) != frame[:2]:
        return None
    if not 0 <= sampling < len(_BLOCK_WIDTHS):
        return None
    if factor > 1 and library.scale(handle, _Scale(1, factor)):
        return None
    top, left, height, width = _region(plan, frame, factor, _BLOCK_WIDTHS[sampling] // factor)
    if library.cut(handle, _Region(left, top, width, height)):
        return None
    kind = colours(factor)
    line = width * len(kind)
    memory = room("pixels", height * line)
    where = memory.__array_interface__["data"][0]
    if library.decode(handle, data, size, where, line, _FORMATS[kind]):
        return None
    pixels: Array = memory[: height * line].reshape(height, width, len(kind))
    return Part(pixels, factor, top, left)


def _region(plan: Plan, frame: Frame, factor: int, block: int) -> tuple[int, int, int, int]:
    """Top, left, height and width, in reduced pixels; the left where the library can begin."""
    top = max(0, plan.top // factor - _MARGIN)
    left = max(0, plan.left // factor - _MARGIN)
    left -= left % block
    below = min(-(-frame.height // factor), -(-(plan.top + plan.height) // factor) + _MARGIN)
    right = min(-(-frame.width // factor), -(-(plan.left + plan.width) // factor) + _MARGIN)
    return top, left, below - top, right - left
