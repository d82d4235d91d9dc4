"""A plan carried out by the native module: from a JPEG's bytes into the row, in one call."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.transforms.jpeg_fallback import Frame, reduction
from penstock.transforms.crop_plan import Plan
from penstock.transforms.pixel_format import Form

Array = np.ndarray[Any, np.dtype[Any]]

_ORDER = struct.Struct("17i6f")
_ROOM = 200  # bytes for a message, which is as long as libjpeg's get


def fill(
    native: Callable[..., int],
    data: bytes,
    frame: Frame,
    plan: Plan,
    filter: str,
    form: Form,
    row: Array,
) -> bool:
    """Write the planned picture into the row; False where it has to be seen by another decoder."""
    room = row if row.flags.c_contiguous else np.empty(row.shape, row.dtype)
    order = _ORDER.pack(
        frame.height,
        frame.width,
        *plan,
        reduction(plan),
        filter == "bicubic",
        form.layout == "CHW",
        form.dtype == "float32",
        *form.factor,
        *form.offset,
    )
    message = ctypes.create_string_buffer(_ROOM)  # for debuggers: the other decoder has its own
    if native(data, len(data), order, room.ctypes.data, message, _ROOM) != 0:
        return False
    if room is not row:
        row[...] = room
    return True
