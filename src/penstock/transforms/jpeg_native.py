"""Many pictures in two calls of the native module: look at all, plan all, then make all.

Between the two calls the plans are drawn here, one after another, as each picture's own
random numbers say. Whatever is out of the ordinary (not a JPEG, damaged, refused by the module) is
done again by itself from where its random numbers stood, so that results and errors are those of
pictures that come one by one.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.images import FAST_PIXELS, JPEG_PIXELS_PER_BYTE
from penstock.context import Draws
from penstock.errors import PenstockError
from penstock.handlers import Failed
from penstock.transforms.native import Many
from penstock.shards.lazy_bytes import Later
from penstock.transforms.jpeg_markers import read_header
from penstock.transforms.jpeg_fallback import read_frame, reduction
from penstock.transforms.any_image import Array, fill_by_wheels, unreadable
from penstock.transforms.crop_plan import Plan
from penstock.memory.scratch import room
from penstock.transforms.deferred_image import Undecoded
from penstock.transforms.pixel_format import Form, new_row

if TYPE_CHECKING:
    from penstock.transforms.images import ImageTransform

# The layout of a job in picture.c: what is to be read, what was found, what is to be made.
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
    + [("plan", "i4", len(Plan._fields)), ("reduction", "i4"), ("form", "u1", _FORM.size)]
)
"""The same as numpy sees it, for jobs that are ordered all at once."""


class Jobs:
    """Pictures on their way through the module; values are bytes or to be read from files."""

    def __init__(self, native: Many, values: Sequence[bytes | Later], keep: bool) -> None:
        self.native, self.values = native, values
        self.memory = bytearray(_JOB_BYTES * len(values))
        self.address = address_of(self.memory)
        size = sum(v.size for v in values if type(v) is Later)
        self.read_into = np.empty(size, np.uint8) if keep else room("files", size)
        self.places = list[int]()
        self.elsewhere = list[tuple[Array, Array]]()
        begin = 0
        base = address_of(self.read_into) if len(self.read_into) else 0
        for number, value in enumerate(values):
            self.places.append(begin)
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
        """Read files and headers."""
        self.native.look(self.address, len(self.values))

    def crop(self, crop: bytes) -> None:
        """Read, look, draw a crop of each and make those that have a row."""
        self.native.crops(self.address, len(self.values), crop)
        self._copy()

    def found(self, number: int) -> tuple[int, int, int, int, int]:
        """State, (unused), colours, height and width."""
        return _FOUND.unpack_from(self.memory, number * _JOB_BYTES + _STATE_AT)

    def data(self, number: int) -> memoryview:
        """The bytes of a picture, which stand here only as long as this does."""
        value = self.values[number]
        if type(value) is Later:
            place = self.places[number]
            return self.read_into.data[place : place + value.size]
        return memoryview(value)  # type: ignore[arg-type]

    def whole(self, number: int) -> bytes:
        """The bytes of a picture, one's own."""
        value = self.values[number]
        return value if isinstance(value, bytes) else bytes(self.data(number))

    def order(self, number: int, plan: Plan, form: bytes, row: Array) -> None:
        """Have the plan of a picture carried out into the row."""
        at = number * _JOB_BYTES
        self.into(number, form, row)
        _PLAN.pack_into(self.memory, at + _PLAN_AT, *plan, reduction(plan))

    def into(self, number: int, form: bytes, row: Array) -> None:
        """Have a picture made in that form in the row."""
        at = number * _JOB_BYTES
        into = row
        if not row.flags.c_contiguous:
            into = np.empty(row.shape, row.dtype)
            self.elsewhere.append((row, into))
        _OUT.pack_into(self.memory, at + _OUT_AT, address_of(into))
        self.memory[at + _FORM_AT : at + _JOB_BYTES] = form

    def draws_from(self, number: int, draws: Draws) -> None:
        """The random numbers of a picture."""
        _KEY.pack_into(self.memory, number * _JOB_BYTES + _KEY_AT, draws.key, draws.count)

    def drawn(self, number: int) -> tuple[int, Plan]:
        """How many random numbers were drawn, and the plan."""
        at = number * _JOB_BYTES
        numbers = _PLAN.unpack_from(self.memory, at + _PLAN_AT)
        (count,) = _DRAWN.unpack_from(self.memory, at + _DRAWN_AT)
        return count, Plan._make((*numbers[:10], bool(numbers[10])))

    def make(self) -> None:
        """Carry all orders out."""
        self.native.jpegs(self.address, len(self.values))
        self._copy()

    def _copy(self) -> None:
        for row, made in self.elsewhere:
            row[...] = made


def form_bytes(form: Form, filter: str) -> bytes:
    """The part of an order that all pictures of a transform share."""
    kinds = filter == "bicubic", form.layout == "CHW", form.dtype == "float32"
    return _FORM.pack(*kinds, *form.factor, *form.offset)


def address_of(value: Any) -> int:
    """Where the bytes of a buffer stand."""
    if type(value) is np.ndarray:
        place: int = value.__array_interface__["data"][0]
        return place
    if type(value) is bytearray:
        return ctypes.addressof(ctypes.c_char.from_buffer(value))
    found: int = np.frombuffer(value, np.uint8).__array_interface__["data"][0]
    return found


def pictures_together(
    transform: ImageTransform,
    native: Many,
    values: Sequence[bytes | Later],
    draws: Sequence[Draws | None],
    turn: Any,
) -> list[Any]:
    """Rows, or pictures for the device to decode; None where one has to come by itself."""
    elsewhere = transform.decode_on != "cpu"
    jobs = Jobs(native, values, keep=elsewhere)
    if transform.crop_bytes is not None and all(type(draw) is Draws for draw in draws):
        return _crops(transform, jobs, draws, turn)  # type: ignore[arg-type]
    jobs.look()
    results: list[Any] = [None] * len(values)
    plans: list[Plan | None] = [None] * len(values)
    form, shared = transform._form, transform._form_bytes
    ordered = False
    for number, draw in enumerate(draws):
        state, _, _, height, width = jobs.found(number)
        if state < _KNOWN or not state & _COMPLETE:
            continue
        before = draw.count if draw is not None else 0
        try:
            plan = transform.planned(height, width, draw)
        except Exception:  # noqa: BLE001 - alone it is raised again
            if draw is not None:
                draw.count = before
            continue
        if elsewhere:
            data = jobs.data(number)
            results[number] = Undecoded(data, plan, transform, header=read_header(data))
            continue
        turn(number)
        row = new_row(plan.rows, plan.columns, form)
        jobs.order(number, plan, shared, row)
        results[number], plans[number], ordered = row, plan, True
    if ordered:
        jobs.make()
        _check(jobs, transform, plans, results)
    return results


def _check(
    jobs: Jobs, transform: ImageTransform, plans: list[Plan | None], results: list[Any]
) -> None:
    """What the module would not do, by other decoders; what they raise stands for the result."""
    for number, plan in enumerate(plans):
        if plan is None or jobs.found(number)[0] & MADE:
            continue
        results[number] = _by_wheels(jobs.whole(number), transform, plan, results[number])


def _by_wheels(data: bytes, transform: ImageTransform, plan: Plan, row: Array) -> Any:
    # In a call of its own: the error's traceback must not hold what holds the error.
    try:
        frame = read_frame(data)
        fill_by_wheels(data, frame, plan, transform.interpolation, transform._form, row)
        return row
    except PenstockError as error:
        return Failed(error)
    except Exception as error:  # noqa: BLE001 - each format of Pillow's has errors of its own
        wrapped = unreadable(error)
        wrapped.__cause__ = error
        return Failed(wrapped)


def crop_bytes(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float], flip: float
) -> bytes:
    """The parameters of a random crop, for the module to draw it."""
    logarithms = math.log(ratio[0]), math.log(ratio[1])
    return _CROP.pack(*scale, *logarithms, *ratio, flip, *size)


def _crops(transform: ImageTransform, jobs: Jobs, draws: Sequence[Draws], turn: Any) -> list[Any]:
    """Crops at random of one size, drawn by the module itself: one call for everything."""
    crop = transform.crop_bytes or b""
    *_, rows, columns = _CROP.unpack(crop)
    form, shared = transform._form, transform._form_bytes
    elsewhere = transform.decode_on != "cpu"
    results: list[Any] = [None] * len(draws)
    for number, draw in enumerate(draws):
        jobs.draws_from(number, draw)
        if not elsewhere:
            turn(number)
            results[number] = row = new_row(rows, columns, form)
            jobs.into(number, shared, row)
    jobs.crop(crop)
    for number, draw in enumerate(draws):
        state = jobs.found(number)[0]
        if state < _KNOWN:  # could not be read (-1, which has every bit), or no JPEG
            results[number] = None
        elif state & MADE:
            (draw.count,) = _DRAWN.unpack_from(jobs.memory, number * _JOB_BYTES + _DRAWN_AT)
        elif elsewhere and state & _COMPLETE:
            draw.count, plan = jobs.drawn(number)
            data = jobs.data(number)
            results[number] = Undecoded(data, plan, transform, header=read_header(data))
        elif state & _REFUSED:
            draw.count, plan = jobs.drawn(number)
            results[number] = _by_wheels(jobs.whole(number), transform, plan, results[number])
        else:
            results[number] = None
    return results
