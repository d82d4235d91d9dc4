"""Synthetic pictures, as detailed as photographs, so that a wrong filter or offset is visible."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def pixels(height, width, seed=0):
    """Return waves of all lengths, an edge and some noise, as H x W x 3 uint8."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    picture = np.zeros((height, width, 3))
    for _ in range(24):
        wave = 2 ** rng.uniform(2, 9)
        angle, phase = rng.uniform(0, 2 * np.pi, 2)
        turn = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / wave + phase)
        picture += turn[..., None] * rng.normal(size=3) * wave**0.5
    picture *= 50 / picture.std()
    picture[(x - width / 3) ** 2 + (y - height / 2) ** 2 < (height / 4) ** 2] += 60
    picture += rng.normal(scale=4, size=picture.shape)
    return np.clip(picture + 128, 0, 255).astype(np.uint8)


def encoded(array, format="JPEG", **options):
    """Return the array as the bytes of a file."""
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format, **options)
    return stream.getvalue()


def damaged(data, rng):
    """Return the file with a few bytes changed, after its first marker."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        data[rng.randrange(2, len(data))] = rng.randrange(256)
    return data


def pillow_result(data, plan, filter=Image.Resampling.BILINEAR):
    """Apply a crop plan with Pillow: crop, resize, take the window, mirror."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = (plan.left, plan.top, plan.left + plan.width, plan.top + plan.height)
    image = image.crop(box).resize((plan.out_width, plan.out_height), filter)
    window = (plan.column, plan.row, plan.column + plan.columns, plan.row + plan.rows)
    result = np.asarray(image.crop(window))
    return result[:, ::-1] if plan.flip else result


def differences(a, b):
    return np.abs(a.astype(int) - b.astype(int))


def is_pillows(found, expected):
    """Return whether at most 2 of 255 levels differ, and more than 1 in under 0.1 % of pixels."""
    apart = differences(found, expected)
    return apart.max() <= 2 and (apart > 1).mean() < 0.001 and apart.mean() < 0.3


def many_scans(count, height=60, width=80):
    """Return a progressive JPEG with ``count`` additional scans without data."""
    data = encoded(pixels(height, width), quality=80, progressive=True)
    begin = data.rindex(b"\xff\xda")
    head = data[begin : begin + 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")]
    return data[:-2] + head * count + data[-2:]
