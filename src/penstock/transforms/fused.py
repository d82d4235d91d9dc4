"""Execute the plan of one JPEG by the native module: from its bytes into the row, in one call."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.transforms.crop_plan import CropPlan
from penstock.transforms.jpeg_fallback import Frame, choose_reduction
from penstock.transforms.pixel_format import PixelFormat

Array = np.ndarray[Any, np.dtype[Any]]

_ORDER = struct.Struct("17i6f")
_MESSAGE_BYTES = 200  # libjpeg's longest


def fill(
    native: Callable[..., int],
    data: bytes,
    frame: Frame,
    plan: CropPlan,
    filter: str,
    form: PixelFormat,
    row: Array,
) -> bool:
    """Write the planned image into the row. Return False if another decoder must be used."""
    out = row if row.flags.c_contiguous else np.empty(row.shape, row.dtype)
    order = _ORDER.pack(
        frame.height,
        frame.width,
        *plan,
        choose_reduction(plan),
        filter == "bicubic",
        form.layout == "CHW",
        form.dtype == "float32",
        *form.factor,
        *form.offset,
    )
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)  # unused: the next decoder has another
    if native(data, len(data), order, out.ctypes.data, message, _MESSAGE_BYTES) != 0:
        return False
    if out is not row:
        row[...] = out
    return True
