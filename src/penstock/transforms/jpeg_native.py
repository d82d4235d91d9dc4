"""Decode, crop and resize a batch of JPEGs by the native module.

That is called *rendering* here. It takes two calls: read all headers, then render all. Between the
calls the plans are drawn in Python, each from the random numbers of its image. An image that the
module cannot handle (not a JPEG, damaged, refused) is rendered alone from the same random numbers,
so that results and errors are the same as for images rendered one by one.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.images import FAST_PIXELS, JPEG_PIXELS_PER_BYTE
from penstock.errors import PenstockError
from penstock.handlers import Failed
from penstock.memory.scratch import scratch_memory
from penstock.rng import CounterRng
from penstock.shards.lazy_bytes import Later
from penstock.transforms.any_image import Array, fill_by_fallback, unreadable
from penstock.transforms.crop_plan import CropPlan
from penstock.transforms.deferred_image import DeferredImage
from penstock.transforms.jpeg_fallback import choose_reduction, read_frame
from penstock.transforms.jpeg_markers import read_header
from penstock.transforms.native import NativeBatch
from penstock.transforms.pixel_format import PixelFormat, new_row

if TYPE_CHECKING:
    from penstock.transforms.images import ImageTransform

# The layout of a job in picture.c: the input, the header, the output.
_ASKED, _FOUND = struct.Struct("6qQq3i"), struct.Struct("5i")
_OUT, _PLAN, _FORM = struct.Struct("q"), struct.Struct("12i"), struct.Struct("3i6f")
_KEY, _DRAWN, _CROP = struct.Struct("Qq"), struct.Struct("q"), struct.Struct("7d2i")
_KEY_AT = 48
_OUT_AT, _DRAWN_AT, _STATE_AT, _PLAN_AT = 40, 56, 64, 84
_FORM_AT = _PLAN_AT + _PLAN.size
_JOB_BYTES = _FORM_AT + _FORM.size
_KNOWN, _COMPLETE, MADE, _REFUSED = 1, 2, 4, 8
JOB = np.dtype(
    [(name, "i8") for name in ("data", "size", "file", "offset", "written", "out", "key", "drawn")]
    + [(name, "i4") for name in ("state", "most", "colours", "height", "width")]
    + [("plan", "i4", len(CropPlan._fields)), ("reduction", "i4"), ("form", "u1", _FORM.size)]
)
"""The same layout as a dtype, for jobs that are filled by columns."""


class Jobs:
    """The native module's jobs for a batch of JPEGs: bytes, or parts of files that it reads."""

    def __init__(self, native: NativeBatch, values: Sequence[bytes | Later], keep: bool) -> None:
        self.native, self.values = native, values
        self.memory = bytearray(_JOB_BYTES * len(values))
        self.address = address_of(self.memory)
        size = sum(v.size for v in values if type(v) is Later)
        self.read_into = np.empty(size, np.uint8) if keep else scratch_memory("files", size)
        self.offsets = list[int]()
        self.copies = list[tuple[Array, Array]]()
        begin = 0
        base = address_of(self.read_into) if len(self.read_into) else 0
        for number, value in enumerate(values):
            self.offsets.append(begin)
            if type(value) is Later:
                file, size = value.file, value.size
                where = file.descriptor, value.offset, file.written_ns
                data = base + begin
                begin += size
            else:
                size, where = len(value), (-1, 0, 0)  # type: ignore[arg-type]
                data = address_of(value)
            most = min(FAST_PIXELS, JPEG_PIXELS_PER_BYTE * size)
            at = number * _JOB_BYTES
            _ASKED.pack_into(self.memory, at, data, size, *where, 0, 0, 0, 0, most, 0)

    def look(self) -> None:
        """Read the files and parse their headers, without decoding."""
        self.native.look(self.address, len(self.values))

    def crop(self, crop: bytes) -> None:
        """Read files and headers, draw a crop of each, and render those that have a row."""
        self.native.crops(self.address, len(self.values), crop)
        self._copy()

    def read_result(self, number: int) -> tuple[int, int, int, int, int]:
        """Return the state, (unused), channels, height and width."""
        return _FOUND.unpack_from(self.memory, number * _JOB_BYTES + _STATE_AT)

    def data(self, number: int) -> memoryview:
        """Return a view of an image's bytes, valid as long as this object."""
        value = self.values[number]
        if type(value) is Later:
            offset = self.offsets[number]
            return self.read_into.data[offset : offset + value.size]
        return memoryview(value)  # type: ignore[arg-type]

    def copy_data(self, number: int) -> bytes:
        """Return an image's bytes, valid without this object."""
        value = self.values[number]
        return value if isinstance(value, bytes) else bytes(self.data(number))

    def order(self, number: int, plan: CropPlan, form: bytes, row: Array) -> None:
        """Set the plan and the output of an image."""
        at = number * _JOB_BYTES
        self.set_output(number, form, row)
        _PLAN.pack_into(self.memory, at + _PLAN_AT, *plan, choose_reduction(plan))

    def set_output(self, number: int, form: bytes, row: Array) -> None:
        """Set the pixel format and the row that an image is written to."""
        at = number * _JOB_BYTES
        out = row
        if not row.flags.c_contiguous:
            out = np.empty(row.shape, row.dtype)
            self.copies.append((row, out))
        _OUT.pack_into(self.memory, at + _OUT_AT, address_of(out))
        self.memory[at + _FORM_AT : at + _JOB_BYTES] = form

    def set_rng(self, number: int, draws: CounterRng) -> None:
        """Set the random numbers of an image."""
        _KEY.pack_into(self.memory, number * _JOB_BYTES + _KEY_AT, draws.key, draws.count)

    def read_plan(self, number: int) -> tuple[int, CropPlan]:
        """Return how many random numbers were drawn, and the plan."""
        at = number * _JOB_BYTES
        numbers = _PLAN.unpack_from(self.memory, at + _PLAN_AT)
        (count,) = _DRAWN.unpack_from(self.memory, at + _DRAWN_AT)
        return count, CropPlan._make((*numbers[:10], bool(numbers[10])))

    def render(self) -> None:
        """Render all images whose output is set."""
        self.native.jpegs(self.address, len(self.values))
        self._copy()

    def _copy(self) -> None:
        for row, out in self.copies:
            row[...] = out


def pack_form(form: PixelFormat, filter: str) -> bytes:
    """Return the part of a job that all images of a transform share."""
    kinds = filter == "bicubic", form.layout == "CHW", form.dtype == "float32"
    return _FORM.pack(*kinds, *form.factor, *form.offset)


def address_of(value: Any) -> int:
    """Return the memory address of a buffer."""
    if type(value) is np.ndarray:
        address: int = value.__array_interface__["data"][0]
        return address
    if type(value) is bytearray:
        return ctypes.addressof(ctypes.c_char.from_buffer(value))
    found: int = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
    return found


def render_batch(
    transform: ImageTransform,
    native: NativeBatch,
    values: Sequence[bytes | Later],
    draws: Sequence[CounterRng | None],
    turn: Any,
) -> list[Any]:
    """Return rows, or deferred images for the device; None for each that must be rendered alone."""
    deferred = transform.decode_on != "cpu"
    jobs = Jobs(native, values, keep=deferred)
    if transform.crop_bytes is not None and all(type(draw) is CounterRng for draw in draws):
        return _render_crops(transform, jobs, draws, turn)  # type: ignore[arg-type]
    jobs.look()
    results: list[Any] = [None] * len(values)
    plans: list[CropPlan | None] = [None] * len(values)
    form, shared = transform._form, transform._form_bytes
    ordered = False
    for number, draw in enumerate(draws):
        state, _, _, height, width = jobs.read_result(number)
        if state < _KNOWN or not state & _COMPLETE:
            continue
        before = draw.count if draw is not None else 0
        try:
            plan = transform.planned(height, width, draw)
        except Exception:  # noqa: BLE001 - raised again when the image is rendered alone
            if draw is not None:
                draw.count = before
            continue
        if deferred:
            data = jobs.data(number)
            results[number] = DeferredImage(data, plan, transform, header=read_header(data))
            continue
        turn(number)
        row = new_row(plan.rows, plan.columns, form)
        jobs.order(number, plan, shared, row)
        results[number], plans[number], ordered = row, plan, True
    if ordered:
        jobs.render()
        _render_refused(jobs, transform, plans, results)
    return results


def _render_refused(
    jobs: Jobs, transform: ImageTransform, plans: list[CropPlan | None], results: list[Any]
) -> None:
    """Render what the module refused by other decoders. An error becomes the result."""
    for number, plan in enumerate(plans):
        if plan is None or jobs.read_result(number)[0] & MADE:
            continue
        data = jobs.copy_data(number)
        results[number] = _render_by_fallback(data, transform, plan, results[number])


def _render_by_fallback(data: bytes, transform: ImageTransform, plan: CropPlan, row: Array) -> Any:
    # A separate function: the error's traceback must not reference the list that has the error.
    try:
        frame = read_frame(data)
        fill_by_fallback(data, frame, plan, transform.interpolation, transform._form, row)
        return row
    except (PenstockError, MemoryError) as error:
        return Failed(error)
    except Exception as error:  # noqa: BLE001 - each of Pillow's formats raises other types
        wrapped = unreadable(error)
        wrapped.__cause__ = error
        return Failed(wrapped)


def pack_crop(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], flip: float
) -> bytes:
    """Return the parameters with which the module draws a random crop."""
    logarithms = math.log(ratio[0]), math.log(ratio[1])
    return _CROP.pack(*scale, *logarithms, *ratio, flip, *size)


def _render_crops(
    transform: ImageTransform, jobs: Jobs, draws: Sequence[CounterRng], turn: Any
) -> list[Any]:
    """Render random crops of one size, drawn by the module, in one call."""
    crop = transform.crop_bytes or b""
    *_, rows, columns = _CROP.unpack(crop)
    form, shared = transform._form, transform._form_bytes
    deferred = transform.decode_on != "cpu"
    results: list[Any] = [None] * len(draws)
    for number, draw in enumerate(draws):
        jobs.set_rng(number, draw)
        if not deferred:
            turn(number)
            results[number] = row = new_row(rows, columns, form)
            jobs.set_output(number, shared, row)
    jobs.crop(crop)
    for number, draw in enumerate(draws):
        state = jobs.read_result(number)[0]
        if state < _KNOWN:  # could not be read (-1, which has every bit), or no JPEG
            results[number] = None
        elif state & MADE:
            (draw.count,) = _DRAWN.unpack_from(jobs.memory, number * _JOB_BYTES + _DRAWN_AT)
        elif deferred and state & _COMPLETE:
            draw.count, plan = jobs.read_plan(number)
            data = jobs.data(number)
            results[number] = DeferredImage(data, plan, transform, header=read_header(data))
        elif state & _REFUSED:
            draw.count, plan = jobs.read_plan(number)
            data_copy = jobs.copy_data(number)
            results[number] = _render_by_fallback(data_copy, transform, plan, results[number])
        else:
            results[number] = None
    return results
