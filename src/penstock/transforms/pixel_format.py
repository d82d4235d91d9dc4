"""Write pixels into the batch: layout, dtype, normalisation and mirroring in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PipelineError
from penstock.memory.output import empty

Array = np.ndarray[Any, np.dtype[Any]]


class PixelFormat(NamedTuple):
    """The format of an output: ``number = level * factor + offset``, per channel."""

    layout: str
    dtype: str
    factor: tuple[float, ...]
    offset: tuple[float, ...]

    @classmethod
    def of(
        cls,
        layout: str,
        dtype: str,
        mean: Sequence[float] | float | None,
        std: Sequence[float] | float | None,
    ) -> PixelFormat:
        if layout not in ("CHW", "HWC"):
            raise PipelineError(f"layout is 'CHW' or 'HWC', not {layout!r}")
        if dtype not in ("uint8", "float32"):
            raise PipelineError(f"dtype is 'uint8' or 'float32', not {dtype!r}")
        if dtype == "uint8" and (mean is not None or std is not None):
            raise PipelineError("mean and std make numbers below 0: use dtype='float32' too")
        means, stds = _three(0.0 if mean is None else mean), _three(1.0 if std is None else std)
        if not all(std > 0 for std in stds):
            raise PipelineError(f"std is above 0, not {std!r}")
        factor = tuple(1 / (255 * std) for std in stds)
        return cls(layout, dtype, factor, tuple(-m / s for m, s in zip(means, stds)))


def _three(numbers: Sequence[float] | float) -> tuple[float, ...]:
    values = (float(numbers),) * 3 if isinstance(numbers, (int, float)) else tuple(numbers)
    if len(values) != 3:
        raise PipelineError(f"mean and std are one number or three, not {numbers!r}")
    return tuple(float(value) for value in values)


def new_row(rows: int, columns: int, form: PixelFormat) -> Array:
    """Return the memory for an image of this size."""
    shape = (3, rows, columns) if form.layout == "CHW" else (rows, columns, 3)
    return empty(shape, form.dtype)


def write(pixels: Array, flip: bool, form: PixelFormat, row: Array) -> None:
    """Write uint8 pixels HxWx3 (or HxWx4, the last ignored), mirrored or not, into a row."""
    if flip:
        pixels = pixels[:, ::-1]
    if form.dtype == "uint8" and form.layout == "CHW":
        row[...] = pixels[:, :, :3].transpose(2, 0, 1)
        return
    # One channel after another: numpy is slow if the innermost of three axes is short.
    for colour in range(3):
        part = row[colour] if form.layout == "CHW" else row[:, :, colour]
        if form.dtype == "uint8":
            part[...] = pixels[:, :, colour]
        else:
            np.multiply(pixels[:, :, colour], np.float32(form.factor[colour]), out=part)
            part += np.float32(form.offset[colour])
