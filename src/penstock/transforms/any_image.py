"""Pictures as they come (bytes of a file, arrays, tensors, Pillow images), and the planned part.

A picture's size is asked first, because the plan depends on it; then its pixels, as far as the
plan needs them. Everything becomes RGB of 8 bits: grey is repeated, transparency is dropped, of 16
bits the upper 8 are kept. Orientation tags are left alone, as in Pillow and torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.codecs.arrays import as_array
from penstock.codecs.images import open_image, pillow_image, simplejpeg_if_there
from penstock.errors import DecodingError, PenstockError, SampleError
from penstock.transforms.native import load
from penstock.transforms.fused import fill
from penstock.transforms.jpeg_fallback import Frame, Part, decode_part, read_frame, reduction
from penstock.transforms.crop_plan import Plan
from penstock.transforms.regions import decode_region, library
from penstock.transforms.resize import resample
from penstock.transforms.pixel_format import Form, new_row, write

Array = np.ndarray[Any, np.dtype[Any]]
OVERSHOOT = 1.0
"""How far floats may lie beyond 0 and 1, as filters and noise leave them. They are cut there."""
Planner = Callable[[int, int], Plan]
"""From height and width of the picture to the plan."""


def picture_row(value: Any, plan_for: Planner, filter: str, form: Form) -> Array:
    """The picture as planned, in a fresh row of that form."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        pixels = _rgb(value)
        plan = plan_for(*pixels.shape[:2])
        row = new_row(plan.rows, plan.columns, form)
        write(_window(Part(pixels, 1, 0, 0), plan, filter), plan.flip, form, row)
        return row
    data = value if isinstance(value, bytes) else bytes(value)
    try:
        frame = read_frame(data) if data[:2] == b"\xff\xd8" else None
        if frame is not None:
            return _jpeg_row(data, frame, plan_for(frame.height, frame.width), filter, form)
        image = open_image(data)
        plan = plan_for(image.height, image.width)
        row = new_row(plan.rows, plan.columns, form)
        write(_by_pillow(image, plan, filter), plan.flip, form, row)
        return row
    except PenstockError:
        raise
    except Exception as error:  # each format of Pillow's has errors of its own
        raise unreadable(error) from error


def unreadable(error: Exception) -> DecodingError:
    """The error for a picture that a decoder gave up."""
    return DecodingError(f"cannot read the picture: {type(error).__name__}: {error}")


def _jpeg_row(data: bytes, frame: Frame, plan: Plan, filter: str, form: Form) -> Array:
    """By the native module, else by simplejpeg; what they do not take, Pillow has to judge."""
    row = new_row(plan.rows, plan.columns, form)
    native = load() if frame.complete else None
    if native is None or not fill(native, data, frame, plan, filter, form, row):
        fill_by_wheels(data, frame, plan, filter, form, row)
    return row


def fill_by_wheels(
    data: bytes, frame: Frame | None, plan: Plan, filter: str, form: Form, row: Array
) -> None:
    """Write the planned part of a JPEG into the row, without the native module."""
    part = None if frame is None else _part(data, frame, plan)
    pixels = (
        _by_pillow(open_image(data), plan, filter) if part is None else _window(part, plan, filter)
    )
    write(pixels, plan.flip, form, row)


def _part(data: bytes, frame: Frame, plan: Plan) -> Part | None:
    """The pixels that the plan needs, or None where Pillow has to judge."""
    part = None
    if (turbojpeg := library()) is not None:
        part = decode_region(turbojpeg, data, frame, plan)
    if part is None and (simplejpeg := simplejpeg_if_there()) is not None:
        part = decode_part(simplejpeg, data, frame, plan)
    return part


def _by_pillow(image: Any, plan: Plan, filter: str) -> Array:
    factor = reduction(plan)
    if factor > 1:  # only JPEGs follow, and then as they can
        width = image.width
        image.draft("RGB", (width // factor, image.height // factor))
        factor = round(width / image.width)
    return _window(Part(_from_pillow(image), factor, 0, 0), plan, filter)


def _window(part: Part, plan: Plan, filter: str) -> Array:
    """The box resized, and the window of it; black where the window sticks out."""
    size = plan.out_height, plan.out_width
    pixels, factor, top, left = part
    box = plan.top / factor - top, plan.left / factor - left
    result = resample(pixels, (*box, plan.height / factor, plan.width / factor), size, filter)
    if (plan.rows, plan.columns) == size and not plan.row and not plan.column:
        return result
    first, leftmost = max(0, plan.row), max(0, plan.column)
    inside = result[first : plan.row + plan.rows, leftmost : plan.column + plan.columns]
    if inside.shape[:2] == (plan.rows, plan.columns):
        return inside
    framed = np.zeros((plan.rows, plan.columns, 3), np.uint8)
    row, column = first - plan.row, leftmost - plan.column
    height, width = inside.shape[:2]
    framed[row : row + height, column : column + width] = inside[:, :, :3]
    return framed


def _from_pillow(image: Any) -> Array:
    if image.mode.startswith("I;16"):
        return _rgb(np.asarray(image).astype(np.uint16, copy=False))
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _rgb(value: Any) -> Array:
    """HxWx3 of uint8 from a Pillow image, an array (HxW, HxWxC) or a tensor (HxW, CxHxW)."""
    if isinstance(value, pillow_image().Image):
        return _from_pillow(value)
    if not isinstance(value, np.ndarray) and not hasattr(value, "detach"):
        raise SampleError(
            "a picture is the bytes of a file, an array, a tensor or a Pillow image,"
            f" not {type(value).__name__}"
        )
    pixels = as_array(value)
    if hasattr(value, "detach") and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or 0 in pixels.shape:
        raise SampleError(
            "a picture is HxW, HxWx1, HxWx3 or HxWx4 as an array, CxHxW as a tensor,"
            f" not of shape {tuple(value.shape)}"
        )
    if pixels.dtype.kind == "f":
        low, high = pixels.min(), pixels.max()
        if not (low >= -OVERSHOOT and high <= 1 + OVERSHOOT):
            raise SampleError(
                f"a picture of floats has numbers from 0 to 1, not from {low:g} to {high:g}: divide"
                " levels by 255 or give them as uint8, and normalise last"
            )
        pixels = np.rint(np.clip(pixels, 0, 1) * 255)
    elif pixels.dtype == np.uint16:
        pixels = pixels >> 8
    elif pixels.dtype != np.uint8:
        raise SampleError(f"a picture's numbers are uint8, or floats from 0 to 1: {pixels.dtype}")
    pixels = pixels.astype(np.uint8, copy=False)
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[:, :, :3]
