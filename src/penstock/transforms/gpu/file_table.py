"""The undecoded pictures of a batch as one table, with one number of columns for any batch.

Python has one object per picture where pictures are planned: in a worker process. To the trainer's
process they come as one piece of shared memory with all files, and one array that says where each
begins, what its header tells an engine, and its plan. What is made of them there is made by numpy
and in C, so that the trainer keeps the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from penstock.codecs.images import FAST_PIXELS, JPEG_PIXELS_PER_BYTE
from penstock.errors import PenstockError, SampleError
from penstock.transforms.jpeg_markers import Header
from penstock.memory.shared_blocks import HEAD, borrowed, lender
from penstock.transforms.jpeg_native import JOB, address_of
from penstock.transforms.any_image import Array
from penstock.transforms.crop_plan import Plan, resized
from penstock.transforms.deferred_image import Undecoded

if TYPE_CHECKING:
    from penstock.transforms.images import ImageTransform

PICTURE = np.dtype(
    [
        ("address", "i8"),
        ("bytes", "i8"),
        ("plan", "i8", len(Plan._fields)),
        ("height", "i8"),  # this and the rest of the header are 0 where an engine must not have it
        ("width", "i8"),
        ("chroma", "i8", 2),
        ("transform", "i8"),
    ]
)
_NO_HEADER = Header(0, 0, (0, 0))
_REDUCED = 4, 8, 16
"""From so many times smaller on, a decoder may reduce by 2, 4, 8: see ``jpegs.reduction``."""


class Files:
    """The pictures of a batch: a table with a row of numbers for each, and their files.

    Its items are :class:`Undecoded`, made when they are asked for.
    """

    __slots__ = ("data", "pixels", "table", "transforms")

    def __init__(
        self,
        table: Array,
        data: Sequence[bytes | memoryview] | Parts,
        transforms: list[ImageTransform],
        pixels: dict[int, Array],
    ) -> None:
        self.table, self.data, self.transforms, self.pixels = table, data, transforms, pixels

    @classmethod
    def of(cls, pictures: Sequence[Undecoded]) -> Files:
        """Pictures of this process, whose files stay where they are."""
        transforms = {id(one.transform): one.transform for one in pictures}
        number = {known: place for place, known in enumerate(transforms)}
        rows = [
            (
                address_of(one.data) if one.data else 0,
                len(one.data),
                one.plan or resized((0, 0, *one.size), one.size),
                *(one.header or _NO_HEADER),
                number[id(one.transform)],
            )
            for one in pictures
        ]
        pixels = {n: one.pixels for n, one in enumerate(pictures) if one.pixels is not None}
        data = [one.data for one in pictures]
        return cls(np.array(rows, PICTURE), data, list(transforms.values()), pixels)

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, place: int) -> Undecoded: ...

    @overload
    def __getitem__(self, place: slice) -> list[Undecoded]: ...

    def __getitem__(self, place: int | slice) -> Undecoded | list[Undecoded]:
        if isinstance(place, slice):
            return [self[one] for one in range(len(self))[place]]
        row = self.table[place]
        transform = self.transforms[row["transform"]]
        if (pixels := self.pixels.get(place % len(self))) is not None:
            return Undecoded(b"", None, transform, pixels)
        *plan, flip = row["plan"].tolist()
        height, width, chroma = (row[name].tolist() for name in ("height", "width", "chroma"))
        header = Header(height, width, (chroma[0], chroma[1])) if height else None
        return Undecoded(
            self.data[place], Plan._make((*plan, bool(flip))), transform, header=header
        )

    def __iter__(self) -> Iterator[Undecoded]:
        return (self[place] for place in range(len(self)))

    def decoded(self, place: int) -> Array:
        """A picture, made by this machine's processor; an error says which of the batch it was."""
        try:
            return self[place].decode()
        except PenstockError as error:
            error.place = place
            raise

    def __repr__(self) -> str:
        return f"<{len(self)} pictures of {self.table['bytes'].sum():,} bytes>"

    def __reduce__(self) -> Any:
        table = self.table.copy()
        ends = np.cumsum(table["bytes"])
        table["address"] = ends - table["bytes"]
        joined = lender().lend(int(ends[-1]))
        view = memoryview(joined.numpy())[HEAD:]
        for data, end in zip(self.data, ends.tolist()):
            view[end - len(data) : end] = data
        return _arrived, (joined, table, self.transforms, self.pixels)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what becomes of all; a SampleError where they differ."""
        sizes = self.table["plan"][:, 8:10]
        if (sizes != sizes[0]).any():
            raise SampleError(
                "all shapes must be equal in a batch, got "
                f"{sorted(set(map(tuple, sizes.tolist())))}: give the transform a size of "
                "(height, width)"
            )
        return int(sizes[0, 0]), int(sizes[0, 1])


class Parts:
    """The files of a table, which lie in one memory and keep it."""

    def __init__(self, memory: Any, table: Array) -> None:
        self._view, self._size = memoryview(memory), table["bytes"]
        self._begin = table["address"] - address_of(memory)

    def __iter__(self) -> Iterator[memoryview]:
        return (self[place] for place in range(len(self._size)))

    def __getitem__(self, place: int) -> memoryview:
        begin = int(self._begin[place])
        return self._view[begin : begin + int(self._size[place])]


def _arrived(
    joined: Any, table: Array, transforms: list[ImageTransform], pixels: dict[int, Array]
) -> Files:
    memory = borrowed(joined)
    table["address"] += address_of(memory)
    return Files(table, Parts(memory, table), transforms, pixels)


def sendable(batch: Any) -> Any:
    """The batch with its undecoded pictures as they travel best."""
    if isinstance(batch, list) and batch and all(isinstance(one, Undecoded) for one in batch):
        return Files.of(batch)
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        if any(isinstance(column, list) for column in batch):
            return type(batch)(sendable(column) for column in batch)
    if isinstance(batch, dict):
        return {name: sendable(column) for name, column in batch.items()}
    return batch


def orders(table: Array, transforms: list[ImageTransform], out: Array) -> Array:
    """Jobs for the native module: the pictures of a table, each made at an address."""
    jobs = np.zeros(len(table), JOB)
    jobs["data"], jobs["size"], jobs["file"] = table["address"], table["bytes"], -1
    jobs["most"] = np.minimum(FAST_PIXELS, JPEG_PIXELS_PER_BYTE * table["bytes"])
    jobs["out"], jobs["plan"] = out, table["plan"]
    height, width, out_height, out_width = table["plan"].T[2:6]
    shrinks = np.minimum(height / out_height, width / out_width)
    jobs["reduction"] = 1 << np.searchsorted(_REDUCED, shrinks, "right")
    forms = np.array([np.frombuffer(one._form_bytes, np.uint8) for one in transforms])
    jobs["form"] = forms[table["transform"]]
    return jobs
