"""Execute a crop plan on an image of any type: bytes of a file, array, tensor, Pillow image.

The image's size is read first, because the plan depends on it; then only the pixels that the plan
needs. Everything becomes 8-bit RGB: grey is repeated, alpha is dropped, the upper 8 of 16 bits are
kept. Orientation tags are ignored, as in Pillow and torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.codecs.arrays import as_array
from penstock.codecs.images import find_simplejpeg, has_many_scans, import_pillow, open_image
from penstock.errors import DecodingError, PenstockError, SampleError, describe_cause
from penstock.transforms.crop_plan import CropPlan
from penstock.transforms.fused import fill
from penstock.transforms.jpeg_fallback import (
    Frame,
    ImageRegion,
    choose_reduction,
    decode_part,
    read_frame,
)
from penstock.transforms.native import load
from penstock.transforms.pixel_format import PixelFormat, new_row, write
from penstock.transforms.regions import decode_region, load_library
from penstock.transforms.resize import resample

Array = np.ndarray[Any, np.dtype[Any]]
OVERSHOOT = 1.0
"""How far floats may exceed 0 and 1, as filters and noise leave them. They are then clipped."""
Planner = Callable[[int, int], CropPlan]
"""Returns the plan for a height and width."""


def render_image(value: Any, plan_for: Planner, filter: str, form: PixelFormat) -> Array:
    """Return the planned part of an image, in a new row of the format."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        pixels = _as_rgb(value)
        plan = plan_for(*pixels.shape[:2])
        row = new_row(plan.rows, plan.columns, form)
        write(_resize_window(ImageRegion(pixels, 1, 0, 0), plan, filter), plan.flip, form, row)
        return row
    data = value if isinstance(value, bytes) else bytes(value)
    try:
        frame = read_frame(data) if data[:2] == b"\xff\xd8" else None
        if frame is not None:
            return _render_jpeg(data, frame, plan_for(frame.height, frame.width), filter, form)
        image = open_image(data)
        plan = plan_for(image.height, image.width)
        row = new_row(plan.rows, plan.columns, form)
        write(_render_by_pillow(image, plan, filter), plan.flip, form, row)
        return row
    except (PenstockError, MemoryError):
        raise
    except Exception as error:  # each of Pillow's formats raises other types
        raise unreadable(error) from error


def unreadable(error: Exception) -> DecodingError:
    """Return the error for an image that no decoder can read."""
    return DecodingError(f"cannot read the picture: {describe_cause(error)}")


def _render_jpeg(
    data: bytes, frame: Frame, plan: CropPlan, filter: str, form: PixelFormat
) -> Array:
    """Render by the native module, else by TurboJPEG or simplejpeg, else by Pillow."""
    row = new_row(plan.rows, plan.columns, form)
    native = load() if frame.complete else None
    if native is None or not fill(native, data, frame, plan, filter, form, row):
        fill_by_fallback(data, frame, plan, filter, form, row)
    return row


def fill_by_fallback(
    data: bytes, frame: Frame | None, plan: CropPlan, filter: str, form: PixelFormat, row: Array
) -> None:
    """Write the planned part of a JPEG into the row, without the native module."""
    part = None if frame is None else _decode_part(data, frame, plan)
    if part is None:
        pixels = _render_by_pillow(open_image(data), plan, filter)
    else:
        pixels = _resize_window(part, plan, filter)
    write(pixels, plan.flip, form, row)


def _decode_part(data: bytes, frame: Frame, plan: CropPlan) -> ImageRegion | None:
    """Return the pixels that the plan needs, or None if Pillow must decode the image."""
    if not frame.cuttable and has_many_scans(data):
        return None
    part = None
    if (turbojpeg := load_library()) is not None:
        part = decode_region(turbojpeg, data, frame, plan)
    if part is None and (simplejpeg := find_simplejpeg()) is not None:
        part = decode_part(simplejpeg, data, frame, plan)
    return part


def describe_jpeg_decoder() -> str:
    """Name the decoder of JPEGs that the image transforms use here, and how to get a faster one."""
    if load() is not None:
        return "native module (libjpeg-turbo)"
    if load_library() is not None:
        name = "turbojpeg"
    elif find_simplejpeg() is not None:
        name = "simplejpeg (libjpeg-turbo)"
    else:
        import_pillow()
        from PIL import features

        turbo = features.check_feature("libjpeg_turbo")
        name = f"Pillow ({'libjpeg-turbo' if turbo else 'libjpeg, without turbo'})"
    return (
        f"{name}, the slower fallback; for the native module install a C compiler and"
        " libjpeg-turbo's headers (Debian: gcc, libjpeg-dev), then run 'penstock native build'"
    )


def _render_by_pillow(image: Any, plan: CropPlan, filter: str) -> Array:
    factor = choose_reduction(plan)
    if factor > 1:  # only JPEGs support it, and may choose another factor
        width = image.width
        image.draft("RGB", (width // factor, image.height // factor))
        factor = round(width / image.width)
    return _resize_window(ImageRegion(_from_pillow(image), factor, 0, 0), plan, filter)


def _resize_window(part: ImageRegion, plan: CropPlan, filter: str) -> Array:
    """Resize the plan's box and return the window of it; black where the window exceeds it."""
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
        return _as_rgb(np.asarray(image).astype(np.uint16, copy=False))
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _as_rgb(value: Any) -> Array:
    """Return HxWx3 uint8 from a Pillow image, an array (HxW, HxWxC) or a tensor (HxW, CxHxW)."""
    if isinstance(value, import_pillow().Image):
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
