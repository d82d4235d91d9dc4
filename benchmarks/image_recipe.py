"""The transforms that the loaders of images.py share: RandomResizedCrop(224), flip, uint8 NCHW.

Other loaders run them in two forms. *pillow*: as their documentation shows. *by hand*: simplejpeg
with OpenCV, the fastest combination of wheels that a careful user would put into the same loader.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SIZE = 224
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10
Recipe = Callable[[bytes], np.ndarray]


def box_of(width: int, height: int, draw: Any = random) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a crop: draw area, then aspect; up to ten tries."""
    for _ in range(TRIES):
        area = width * height * draw.uniform(*SCALE)
        aspect = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def by_pillow(data: bytes) -> np.ndarray:
    """Decode, crop and resize with Pillow, antialiased; channels first."""
    from PIL import Image

    image: Any = Image.open(io.BytesIO(data)).convert("RGB")
    left, top, w, h = box_of(*image.size)
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, (left, top, left + w, top + h))
    array = np.asarray(image)
    if random.random() < 0.5:
        array = array[:, ::-1]
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def by_hand(data: bytes) -> np.ndarray:
    """Decode with simplejpeg, resize with OpenCV without antialiasing; channels first."""
    import cv2
    import simplejpeg

    try:
        image = simplejpeg.decode_jpeg(data)
    except ValueError:  # CMYK and the like
        return by_pillow(data)
    height, width = image.shape[:2]
    left, top, w, h = box_of(width, height)
    image = cv2.resize(image[top : top + h, left : left + w], (SIZE, SIZE))
    if random.random() < 0.5:
        image = cv2.flip(image, 1)
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def by_torchvision(data: bytes) -> np.ndarray:
    """Decode and crop with torchvision, on tensors."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional

    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    image = decode_jpeg(raw, mode=ImageReadMode.RGB)
    left, top, w, h = box_of(image.shape[2], image.shape[1])
    image = functional.resized_crop(image, top, left, h, w, [SIZE, SIZE], antialias=True)
    array: np.ndarray = image.numpy()
    return array[:, :, ::-1] if random.random() < 0.5 else array


RECIPES: dict[str, Recipe] = {
    "pillow": by_pillow,
    "by hand": by_hand,
    "torchvision": by_torchvision,
}


def stacked(pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Stack a batch of (image, label) to two arrays."""
    return np.stack([image for image, _ in pairs]), np.array([int(label) for _, label in pairs])
