"""Images of one size: a random crop for training, the whole image for validation."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SIDE = 64


def whole(image: Array) -> Array:
    """Return the whole image, scaled to 64 by 64 pixels.

    >>> whole(np.zeros((80, 96, 3), np.uint8)).shape
    (64, 64, 3)
    """
    height, width = image.shape[:2]
    rows = (np.arange(SIDE) * height) // SIDE
    columns = (np.arange(SIDE) * width) // SIDE
    scaled: Array = image[rows[:, None], columns]
    return scaled


class RandomCut:
    """Crops most of an image, flips half of them, changes brightness; 64 by 64 pixels.

    All random numbers come from one generator: the same images in the same order give the same
    result.

    >>> cut = RandomCut(seed=0)
    >>> cut(np.zeros((80, 80, 3), np.uint8)).shape
    (64, 64, 3)
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, image: Array) -> Array:
        side = len(image)
        kept = int(side * self.rng.uniform(0.85, 1.0))
        top, left = self.rng.integers(side - kept + 1, size=2)
        image = whole(image[top : top + kept, left : left + kept])
        if self.rng.random() < 0.5:
            image = image[:, ::-1]
        light = self.rng.uniform(0.7, 1.3)
        return (image * np.float32(light)).clip(0, 255).astype(np.uint8)
