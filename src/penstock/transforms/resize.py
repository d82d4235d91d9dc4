"""Pixels brought to another size by the filters of Pillow, which look at every pixel once shrunk.

torch has the same filters with the same rounding as Pillow's, three to five times as fast; it is
used where it is installed. The two differ by one level of 255 at most; by bicubic more where it
overshoots, since what is beyond black or white is cut between the two directions.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from types import ModuleType
from typing import Any

import numpy as np

from penstock.codecs.images import pillow_image
from penstock.memory.scratch import room

Array = np.ndarray[Any, np.dtype[Any]]
Box = tuple[float, float, float, float]

FILTERS = ("bilinear", "bicubic")


@functools.cache
def _torch() -> ModuleType | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch.nn.functional

    module: ModuleType = torch
    return module


def resample(pixels: Array, box: Box, size: tuple[int, int], filter: str) -> Array:
    """The box (top, left, height, width) of HxWx3 or HxWx4 pixels, brought to a size.

    The fourth byte of a pixel, where there is one, is of no account. Pixels outside the box have
    no part in the result, as if it had been cut out first.
    """
    top, left, height, width = box
    if (height, width) == size and top == int(top) and left == int(left):
        return pixels[int(top) :, int(left) :][: size[0], : size[1]]
    whole = all(float(number).is_integer() for number in box)
    if whole and (torch := _torch()) is not None:
        return _by_torch(torch, pixels, [int(number) for number in box], size, filter)
    return _by_pillow(pixels, box, size, filter)


def _by_torch(
    torch: ModuleType, pixels: Array, box: list[int], size: tuple[int, int], filter: str
) -> Array:
    top, left, height, width = box
    # The copy is numpy's: torch would make it with threads of its own, one team per caller.
    part = pixels[top : top + height, left : left + width]
    if not (part.flags.c_contiguous and part.flags.writeable):  # torch warns, though it only reads
        copy = room("part", part.size)[: part.size].reshape(part.shape)
        copy[...] = part
        part = copy
    # A batch of one by reshape: else torch does not see that colours are last, and copies. Axes are
    # numpy's business: each of torch's functions that is called brings half a megabyte of code in.
    planes = torch.from_numpy(part.reshape(1, *part.shape).transpose(0, 3, 1, 2))
    result = torch.nn.functional.interpolate(planes, size, mode=filter, antialias=True)
    made: Array = result.numpy()[0].transpose(1, 2, 0)
    return made


def _by_pillow(pixels: Array, box: Box, size: tuple[int, int], filter: str) -> Array:
    pillow = pillow_image()
    top, left = math.floor(box[0]), math.floor(box[1])
    part = pixels[top : math.ceil(box[0] + box[2]), left : math.ceil(box[1] + box[3])]
    y, x = box[0] - top, box[1] - left
    height, width = min(box[2], len(part) - y), min(box[3], part.shape[1] - x)
    if part.shape[2] == 4:  # no copy: four bytes a pixel are Pillow's own layout
        part = np.ascontiguousarray(part)
        image = pillow.frombuffer("RGBX", part.shape[1::-1], part, "raw", "RGBX", 0, 1)
    else:
        image = pillow.fromarray(np.ascontiguousarray(part))
    kind = pillow.Resampling[filter.upper()]
    small = image.resize(size[::-1], kind, box=(x, y, x + width, y + height))
    made: Array = np.asarray(small)
    return made
