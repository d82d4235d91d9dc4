"""What a transform will do to a picture of a known size, decided before a pixel is decoded.

Every recipe here (crop, resize, flip and their chains) is one :class:`Plan`: a box of the picture,
the size the box is brought to, the window of that which is kept, and whether it is mirrored.
So a decoder can be told which part of the picture is needed, and how finely.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from penstock.errors import PipelineError


class Plan(NamedTuple):
    """The box (top, left, height, width) becomes (out_height, out_width); of that the window
    (row, column, rows, columns) is kept. What of the window lies outside is black.
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
    """Where a transform draws from: numpy's generators, ``random.Random`` and our own fit."""

    def random(self) -> float:
        """A number from 0 up to, not including, 1."""


def resized(box: tuple[int, int, int, int], size: tuple[int, int], flip: bool = False) -> Plan:
    """The box brought to a size, all of it kept."""
    return Plan(*box, *size, 0, 0, *size, flip)


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: Random
) -> tuple[int, int, int, int]:
    """A box with a part of the area drawn from ``scale`` and a shape drawn from ``ratio``.

    As in the recipe of Inception, and in torchvision: ten tries of a uniform area and a
    log-uniform ratio (width to height), at a uniform place; then the centre, as near to the
    ratios as the picture allows.

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


def short_side(height: int, width: int, size: int) -> tuple[int, int]:
    """The picture's size once its shorter side is ``size``; the longer one is cut to whole pixels.

    >>> short_side(375, 500, 256)
    (256, 341)
    """
    if height <= width:
        return size, max(1, int(size * width / height))
    return max(1, int(size * height / width)), size


def centred(height_width: tuple[int, int], to: tuple[int, int], crop: tuple[int, int]) -> Plan:
    """The picture brought to a size, and the middle of that; the crop may be the larger one.

    >>> centred((375, 500), (256, 341), (224, 224))[6:8]
    (16, 58)
    """
    row, column = (
        round(left / 2) if left >= 0 else -(-left // 2)
        for left in (to[0] - crop[0], to[1] - crop[1])
    )
    if height_width != to:
        return Plan(0, 0, *height_width, *to, row, column, *crop)
    # Nothing is resized: pixels outside the window are not needed at all.
    top, left = max(0, row), max(0, column)
    inside = min(crop[0], to[0]), min(crop[1], to[1])
    return Plan(top, left, *inside, *inside, min(0, row), min(0, column), *crop)


def pair(size: int | tuple[int, int], what: str) -> tuple[int, int]:
    """(height, width) from one number or two."""
    numbers = (size, size) if isinstance(size, int) else tuple(size)
    if len(numbers) != 2 or not all(isinstance(n, int) and 0 < n < 1 << 16 for n in numbers):
        raise PipelineError(f"{what} is a number of pixels, or (height, width), not {size!r}")
    return numbers[0], numbers[1]
