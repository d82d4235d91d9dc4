"""Decode only a region of a JPEG, by TurboJPEG 3 if it is installed.

The wheel ``turbojpeg`` contains it, as do conda and some systems. Rows above the region are only
entropy-decoded, blocks beside it are mostly skipped, rows below it are not read; the pixels equal
those of the whole image. The library is called through ctypes: the one long call releases the GIL,
the short ones keep it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.memory.scratch import scratch_memory
from penstock.transforms.crop_plan import CropPlan
from penstock.transforms.jpeg_fallback import (
    Array,
    Frame,
    ImageRegion,
    choose_layout,
    choose_reduction,
)

_SYSTEM = "libturbojpeg.so.0"  # also the name of version 2, which has no regions
_DECOMPRESS = 1
_SAMPLING, _WIDTH, _HEIGHT = 4, 5, 6
_FORMATS = {"RGB": 0, "RGBX": 2}
_BLOCK_WIDTHS = (8, 16, 16, 8, 8, 32, 8)  # 4:4:4, 4:2:2, 4:2:0, grey, 4:4:0, 4:1:1, 4:4:1
# Chroma is interpolated across block edges: with a margin the region equals the whole image.
_MARGIN = 2
_MAX_REDUCTION = 4  # at 1/8 libjpeg-turbo leaves the last columns of a region unset


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
def load_library() -> Library | None:
    """Return the library, or None if version 3 is not installed."""
    for file in _list_candidates():
        try:
            return _open(file)
        except (OSError, AttributeError):  # missing, or too old
            continue
    return None


def _list_candidates() -> Iterator[str]:
    try:
        wheel = importlib.metadata.distribution("turbojpeg")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        for path in wheel.files or ():
            if path.name.startswith("libturbojpeg"):
                yield str(wheel.locate_file(path))
    yield _SYSTEM


def _open(file: str) -> Library:
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


def decode_region(
    library: Library, data: bytes, frame: Frame, plan: CropPlan
) -> ImageRegion | None:
    """Return the pixels of the box and a margin, in memory that this thread's next call reuses.

    Return None if the library fails or warns.
    """
    if not frame.complete or choose_reduction(plan) > _MAX_REDUCTION:
        return None
    # A handle per image: it keeps tables and would use them for a later image that lacks its own.
    handle = library.begin(_DECOMPRESS)
    if not handle:
        return None
    try:
        return _decode(library, handle, data, frame, plan)
    finally:
        library.end(handle)


def _decode(
    library: Library, handle: int, data: bytes, frame: Frame, plan: CropPlan
) -> ImageRegion | None:
    get, factor, size = library.get, choose_reduction(plan), len(data)
    if library.read_header(handle, data, size):
        return None
    sampling = get(handle, _SAMPLING)
    if (get(handle, _HEIGHT), get(handle, _WIDTH)) != frame[:2]:
        return None
    if not 0 <= sampling < len(_BLOCK_WIDTHS):
        return None
    if factor > 1 and library.scale(handle, _Scale(1, factor)):
        return None
    top, left, height, width = _choose_region(
        plan, frame, factor, _BLOCK_WIDTHS[sampling] // factor
    )
    if library.cut(handle, _Region(left, top, width, height)):
        return None
    kind = choose_layout(factor)
    line = width * len(kind)
    memory = scratch_memory("pixels", height * line)
    where = memory.__array_interface__["data"][0]
    if library.decode(handle, data, size, where, line, _FORMATS[kind]):
        return None
    pixels: Array = memory[: height * line].reshape(height, width, len(kind))
    return ImageRegion(pixels, factor, top, left)


def _choose_region(
    plan: CropPlan, frame: Frame, factor: int, block: int
) -> tuple[int, int, int, int]:
    """Return top, left, height and width in reduced pixels; left is a multiple of ``block``."""
    top = max(0, plan.top // factor - _MARGIN)
    left = max(0, plan.left // factor - _MARGIN)
    left -= left % block
    below = min(-(-frame.height // factor), -(-(plan.top + plan.height) // factor) + _MARGIN)
    right = min(-(-frame.width // factor), -(-(plan.left + plan.width) // factor) + _MARGIN)
    return top, left, below - top, right - left
