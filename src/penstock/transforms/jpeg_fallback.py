"""Decode the part of a JPEG that a plan needs, by simplejpeg.

Two things are saved. Rows below the box: a sequential JPEG stores rows from top to bottom, and with
a smaller height in the header the decoder stops early. And resolution: if the box shrinks by a
factor of four or more, the decoder returns the image at 1/2, 1/4 or 1/8, which its inverse DCT does
at no cost, and at least a factor of two remains for the filter.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from penstock.codecs.images import FAST_PIXELS, JPEG_PIXELS_PER_BYTE
from penstock.memory.scratch import scratch_memory
from penstock.transforms.crop_plan import CropPlan
from penstock.transforms.jpeg_markers import BASELINE, OTHERS, SCAN, is_complete, iter_markers

Array = np.ndarray[Any, np.dtype[Any]]

_SEQUENTIAL = (BASELINE, 0xC1)
_FRAMES = frozenset((*_SEQUENTIAL, 0xC2))
_LEFT_FOR_THE_FILTER = 2
_MARGIN = 16  # chroma is interpolated across block edges; a block has at most 16 rows


class Frame(NamedTuple):
    """The header of a JPEG."""

    height: int
    width: int
    colours: int
    """Number of channels: 1 is grey, 3 is colour."""
    height_offset: int
    """Offset of the height in the data."""
    complete: bool
    """True if the end marker is present."""
    cuttable: bool
    """True if a smaller height may be written to the header."""


class ImageRegion(NamedTuple):
    """Pixels of an image, and their position in it."""

    pixels: Array
    factor: int
    """Factor by which the decoder has reduced them."""
    top: int
    left: int
    """Position of the first row and column, in reduced pixels."""


def read_frame(data: bytes) -> Frame | None:
    """Return the header of a JPEG, or None if Pillow must decode it: CMYK, huge, unusual.

    >>> read_frame(b"GIF89a") is None
    True
    """
    frame = None
    most = min(FAST_PIXELS, JPEG_PIXELS_PER_BYTE * len(data))
    try:
        for mark, offset in iter_markers(data):
            if mark in _FRAMES and data[offset + 4] == 8:  # bits per number
                height = data[offset + 5] << 8 | data[offset + 6]
                width = data[offset + 7] << 8 | data[offset + 8]
                frame = height, width, data[offset + 9], offset + 5, mark in _SEQUENTIAL
            elif mark == SCAN:
                if frame is None or frame[2] not in (1, 3) or not 0 < frame[0] * frame[1] <= most:
                    return None
                whole = is_complete(data)
                # One scan with all channels, from top to bottom.
                in_order = frame[4] and data[offset + 4] == frame[2]
                return Frame(*frame[:4], complete=whole, cuttable=whole and in_order)
            elif mark in OTHERS:
                return None
    except IndexError:
        return None
    return None


def choose_reduction(plan: CropPlan) -> int:
    """Return the factor by which the decoder may reduce the image: 1, 2, 4 or 8."""
    shrinks = min(plan.height / plan.out_height, plan.width / plan.out_width)
    for factor in (8, 4, 2):
        if shrinks >= factor * _LEFT_FOR_THE_FILTER:
            return factor
    return 1


def choose_layout(factor: int) -> str:
    """Return the pixel layout: Pillow's filter, for reduced pixels, is faster on four bytes."""
    return "RGB" if factor == 1 else "RGBX"


def decode_part(
    simplejpeg: ModuleType, data: bytes, frame: Frame, plan: CropPlan
) -> ImageRegion | None:
    """Return the pixels from the top to the box's end, or None.

    Their memory is reused by this thread's next call. None if simplejpeg fails or might differ from
    Pillow.
    """
    cut: bytes | bytearray = data
    factor, height = choose_reduction(plan), frame.height
    kind = choose_layout(factor)
    below = plan.top + plan.height + 2 * _MARGIN
    below -= below % _MARGIN
    if frame.cuttable and below < height:
        height = below
        cut = bytearray(data)
        cut[frame.height_offset : frame.height_offset + 2] = height.to_bytes(2, "big")
    try:
        pixels: Array = simplejpeg.decode_jpeg(
            cut,
            kind,
            buffer=scratch_memory("pixels", height * frame.width * len(kind)),
            min_height=-(-height // factor) if factor > 1 else 0,
            min_width=-(-frame.width // factor) if factor > 1 else 0,
            strict=cut is data,  # the data of the rows below is left over
        )
    except ValueError:
        return None
    if pixels.shape[:2] != (-(-height // factor), -(-frame.width // factor)):
        return None
    return ImageRegion(pixels, factor, 0, 0)
