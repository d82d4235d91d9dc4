"""The crop and resize of an image of known size, chosen before a pixel is decoded.

Every image transform (crop, resize, flip and their chains) is one :class:`CropPlan`: a box of the
image, the size to which the box is resized, the window of that which is kept, and whether it is
mirrored. A decoder can therefore decode only the needed part, at the needed resolution.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from penstock.errors import PipelineError


class CropPlan(NamedTuple):
    """The box (top, left, height, width) is resized to (out_height, out_width); of that the window
    (row, column, rows, columns) is kept. Parts of the window outside of it are black.
    """

    top: int
    left: int
    height: int
    width: int
    out_height: int
    out_width: int
    row: int
    column: int
    rows: int
    columns: int
    flip: bool = False


class Random(Protocol):
    """A source of random numbers: numpy's generators, ``random.Random`` or ``CounterRng``."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


def plan_resize(
    box: tuple[int, int, int, int], size: tuple[int, int], flip: bool = False
) -> CropPlan:
    """Return the plan that resizes a box and keeps all of it."""
    return CropPlan(*box, *size, 0, 0, *size, flip)


resized = plan_resize
"""The former name, which transforms of users import."""


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: Random
) -> tuple[int, int, int, int]:
    """Draw a box: its share of the area from ``scale``, its aspect ratio from ``ratio``.

    As in Inception and torchvision: ten tries with a uniform area, a log-uniform ratio (width to
    height) and a uniform position; then the centre, as close to the ratios as the image allows.

    >>> import random
    >>> top, left, h, w = random_box(300, 400, (0.5, 0.5), (1, 1), random.Random(1))
    >>> h == w == 245 and 0 <= top <= 55 and 0 <= left <= 155
    True
    """
    area = height * width
    low, high = math.log(ratio[0]), math.log(ratio[1])
    draw = rng.random
    for _ in range(10):
        target = area * (scale[0] + (scale[1] - scale[0]) * draw())
        shape = math.exp(low + (high - low) * draw())
        w = round(math.sqrt(target * shape))
        h = round(math.sqrt(target / shape))
        if 0 < w <= width and 0 < h <= height:
            return int(draw() * (height - h + 1)), int(draw() * (width - w + 1)), h, w
    if width / height < ratio[0]:
        w, h = width, min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        w, h = min(width, max(1, round(height * ratio[1]))), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def resize_short_side(height: int, width: int, size: int) -> tuple[int, int]:
    """Return the image's size after its shorter side becomes ``size``; the longer is rounded down.

    >>> resize_short_side(375, 500, 256)
    (256, 341)
    """
    if height <= width:
        return size, max(1, int(size * width / height))
    return max(1, int(size * height / width)), size


def plan_center_crop(
    height_width: tuple[int, int], to: tuple[int, int], crop: tuple[int, int]
) -> CropPlan:
    """Return the plan that resizes the image and crops its centre; the crop may be larger.

    >>> plan_center_crop((375, 500), (256, 341), (224, 224))[6:8]
    (16, 58)
    """
    row, column = (
        round(left / 2) if left >= 0 else -(-left // 2)
        for left in (to[0] - crop[0], to[1] - crop[1])
    )
    if height_width != to:
        return CropPlan(0, 0, *height_width, *to, row, column, *crop)
    # Without resizing, no pixels outside the window are needed.
    top, left = max(0, row), max(0, column)
    inside = min(crop[0], to[0]), min(crop[1], to[1])
    return CropPlan(top, left, *inside, *inside, min(0, row), min(0, column), *crop)


def pair(size: int | tuple[int, int], what: str) -> tuple[int, int]:
    """Return (height, width) from one number or two."""
    numbers = (size, size) if isinstance(size, int) else tuple(size)
    if len(numbers) != 2 or not all(isinstance(n, int) and 0 < n < 1 << 16 for n in numbers):
        raise PipelineError(f"{what} is a number of pixels, or (height, width), not {size!r}")
    return numbers[0], numbers[1]
