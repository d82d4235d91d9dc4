"""Resize pixels with Pillow's antialiasing filters.

torch has the same filters with the same rounding, three to five times as fast, and is used if it is
installed. The results differ by at most one level of 255; more for bicubic where it overshoots,
because Pillow clips between the horizontal and the vertical pass.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from types import ModuleType
from typing import Any

import numpy as np

from penstock.codecs.images import import_pillow
from penstock.memory.scratch import scratch_memory

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
    """Resize the box (top, left, height, width) of HxWx3 or HxWx4 pixels.

    The fourth byte of a pixel, if present, is ignored. Pixels outside the box do not contribute, as
    if it had been cropped first.
    """
    top, left, height, width = box
    if (height, width) == size and top == int(top) and left == int(left):
        return pixels[int(top) :, int(left) :][: size[0], : size[1]]
    whole = all(float(number).is_integer() for number in box)
    if whole and (torch := _torch()) is not None:
        return _resize_by_torch(torch, pixels, [int(number) for number in box], size, filter)
    return _resize_by_pillow(pixels, box, size, filter)


def _resize_by_torch(
    torch: ModuleType, pixels: Array, box: list[int], size: tuple[int, int], filter: str
) -> Array:
    top, left, height, width = box
    # numpy copies: torch would use separate threads, one team per caller.
    part = pixels[top : top + height, left : left + width]
    if not (part.flags.c_contiguous and part.flags.writeable):  # torch warns, though it only reads
        copy = scratch_memory("part", part.size)[: part.size].reshape(part.shape)
        copy[...] = part
        part = copy
    # A batch of one by reshape: else torch does not detect channels_last, and copies. numpy changes
    # the axes, because each torch function that is called loads half a megabyte of code.
    planes = torch.from_numpy(part.reshape(1, *part.shape).transpose(0, 3, 1, 2))
    result = torch.nn.functional.interpolate(planes, size, mode=filter, antialias=True)
    resized: Array = result.numpy()[0].transpose(1, 2, 0)
    return resized


def _resize_by_pillow(pixels: Array, box: Box, size: tuple[int, int], filter: str) -> Array:
    pillow = import_pillow()
    top, left = math.floor(box[0]), math.floor(box[1])
    part = pixels[top : math.ceil(box[0] + box[2]), left : math.ceil(box[1] + box[3])]
    y, x = box[0] - top, box[1] - left
    height, width = min(box[2], len(part) - y), min(box[3], part.shape[1] - x)
    if part.shape[2] == 4:  # no copy: Pillow stores four bytes per pixel
        part = np.ascontiguousarray(part)
        image = pillow.frombuffer("RGBX", part.shape[1::-1], part, "raw", "RGBX", 0, 1)
    else:
        image = pillow.fromarray(np.ascontiguousarray(part))
    kind = pillow.Resampling[filter.upper()]
    resized: Array = np.asarray(image.resize(size[::-1], kind, box=(x, y, x + width, y + height)))
    return resized
