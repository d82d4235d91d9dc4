"""The part of a JPEG that a plan needs, by simplejpeg.

Two things are saved. Rows below the box: in a sequential JPEG the rows come from top to bottom,
and a decoder that is told of a smaller height stops there. And detail: where the box is to become
four times smaller or more, the decoder gives the picture at 1/2, 1/4 or 1/8, which is a part of
its transform, and at least a factor of two is left for the filter.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from penstock.codecs.images import FAST_PIXELS, JPEG_PIXELS_PER_BYTE
from penstock.transforms.jpeg_markers import BASELINE, OTHERS, SCAN, complete, segments
from penstock.transforms.crop_plan import Plan
from penstock.memory.scratch import room

Array = np.ndarray[Any, np.dtype[Any]]

_SEQUENTIAL = (BASELINE, 0xC1)
_FRAMES = frozenset((*_SEQUENTIAL, 0xC2))
_LEFT_FOR_THE_FILTER = 2
_MARGIN = 16  # colours are smoothed over the edge of a block, which is at most 16 rows high


class Frame(NamedTuple):
    """What a JPEG's header says."""

    height: int
    width: int
    colours: int
    """How many: 1 is grey, 3 is colour."""
    place: int
    """Where in the data the height stands."""
    complete: bool
    """Whether its end mark is there."""
    cuttable: bool
    """Whether a smaller height may be written there."""


class Part(NamedTuple):
    """Pixels of a picture, and where they stand in it."""

    pixels: Array
    factor: int
    """By how much they are reduced."""
    top: int
    left: int
    """Of their first row and column, in reduced pixels."""


def read_frame(data: bytes) -> Frame | None:
    """The header of a JPEG, or None where Pillow had better look: print colours, huge, odd.

    >>> read_frame(b"GIF89a") is None
    True
    """
    frame = None
    most = min(FAST_PIXELS, JPEG_PIXELS_PER_BYTE * len(data))
    try:
        for mark, place in segments(data):
            if mark in _FRAMES and data[place + 4] == 8:  # bits a number has
                height = data[place + 5] << 8 | data[place + 6]
                width = data[place + 7] << 8 | data[place + 8]
                frame = height, width, data[place + 9], place + 5, mark in _SEQUENTIAL
            elif mark == SCAN:
                if frame is None or frame[2] not in (1, 3) or not 0 < frame[0] * frame[1] <= most:
                    return None
                whole = complete(data)
                # One scan that has all colours, from top to bottom.
                in_order = frame[4] and data[place + 4] == frame[2]
                return Frame(*frame[:4], complete=whole, cuttable=whole and in_order)
            elif mark in OTHERS:
                return None
    except IndexError:
        return None
    return None


def reduction(plan: Plan) -> int:
    """By how much the decoder may reduce the picture: 1, 2, 4 or 8."""
    shrinks = min(plan.height / plan.out_height, plan.width / plan.out_width)
    for factor in (8, 4, 2):
        if shrinks >= factor * _LEFT_FOR_THE_FILTER:
            return factor
    return 1


def colours(factor: int) -> str:
    """What pixels become: reduced ones go to Pillow's filter, which likes four bytes."""
    return "RGB" if factor == 1 else "RGBX"


def decode_part(simplejpeg: ModuleType, data: bytes, frame: Frame, plan: Plan) -> Part | None:
    """The pixels from the top to the box's end, in memory that this thread's next call uses again.

    None where simplejpeg cannot, or might see the data otherwise than Pillow.
    """
    cut: bytes | bytearray = data
    factor, height = reduction(plan), frame.height
    kind = colours(factor)
    below = plan.top + plan.height + 2 * _MARGIN
    below -= below % _MARGIN
    if frame.cuttable and below < height:
        height = below
        cut = bytearray(data)
        cut[frame.place : frame.place + 2] = height.to_bytes(2, "big")
    try:
        pixels: Array = simplejpeg.decode_jpeg(
            cut,
            kind,
            buffer=room("pixels", height * frame.width * len(kind)),
            min_height=-(-height // factor) if factor > 1 else 0,
            min_width=-(-frame.width // factor) if factor > 1 else 0,
            strict=cut is data,  # what is left over below the cut is no damage
        )
    except ValueError:
        return None
    if pixels.shape[:2] != (-(-height // factor), -(-frame.width // factor)):
        return None
    return Part(pixels, factor, 0, 0)
