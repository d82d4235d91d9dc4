"""The undecoded pictures of a batch as one numpy table.

A worker process has one Python object per picture. It sends them to the trainer's process as one
block of shared memory with all files, and one array with the address, header and crop plan of
each. The trainer's process handles that table by numpy and C only, so that it rarely holds the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from penstock.codecs.images import FAST_PIXELS, JPEG_PIXELS_PER_BYTE
from penstock.errors import PenstockError, SampleError
from penstock.memory.shared_blocks import HEAD, current_pool, view_block
from penstock.transforms.any_image import Array
from penstock.transforms.crop_plan import CropPlan, plan_resize
from penstock.transforms.deferred_image import DeferredImage
from penstock.transforms.jpeg_markers import Header
from penstock.transforms.jpeg_native import JOB, address_of

if TYPE_CHECKING:
    from penstock.transforms.images import ImageTransform

PICTURE = np.dtype(
    [
        ("address", "i8"),
        ("bytes", "i8"),
        ("plan", "i8", len(CropPlan._fields)),
        ("height", "i8"),  # it and the other header fields are 0 if no engine may decode the file
        ("width", "i8"),
        ("chroma", "i8", 2),
        ("transform", "i8"),
    ]
)
_NO_HEADER = Header(0, 0, (0, 0))
_REDUCED = 4, 8, 16
"""Downscaling factors from which a decoder may reduce by 2, 4, 8: see ``jpeg_fallback``."""


class FileTable:
    """The pictures of a batch: a table with a row of numbers for each, and their files.

    Its items are :class:`DeferredImage`, created on access.
    """

    __slots__ = ("data", "pixels", "table", "transforms")

    def __init__(
        self,
        table: Array,
        data: Sequence[bytes | memoryview] | FileParts,
        transforms: list[ImageTransform],
        pixels: dict[int, Array],
    ) -> None:
        self.table, self.data, self.transforms, self.pixels = table, data, transforms, pixels

    @classmethod
    def of(cls, pictures: Sequence[DeferredImage]) -> FileTable:
        """Return the table of pictures of this process, without copying their files."""
        transforms = {id(one.transform): one.transform for one in pictures}
        number = {known: index for index, known in enumerate(transforms)}
        rows = [
            (
                address_of(one.data) if one.data else 0,
                len(one.data),
                one.plan or plan_resize((0, 0, *one.size), one.size),
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
    def __getitem__(self, index: int) -> DeferredImage: ...

    @overload
    def __getitem__(self, index: slice) -> list[DeferredImage]: ...

    def __getitem__(self, index: int | slice) -> DeferredImage | list[DeferredImage]:
        if isinstance(index, slice):
            return [self[one] for one in range(len(self))[index]]
        row = self.table[index]
        transform = self.transforms[row["transform"]]
        if (pixels := self.pixels.get(index % len(self))) is not None:
            return DeferredImage(b"", None, transform, pixels)
        *plan, flip = row["plan"].tolist()
        height, width, chroma = (row[name].tolist() for name in ("height", "width", "chroma"))
        header = Header(height, width, (chroma[0], chroma[1])) if height else None
        return DeferredImage(
            self.data[index], CropPlan._make((*plan, bool(flip))), transform, header=header
        )

    def __iter__(self) -> Iterator[DeferredImage]:
        return (self[index] for index in range(len(self)))

    def decode(self, index: int) -> Array:
        """Decode a picture on the CPU. An error carries the picture's index in the batch."""
        try:
            return self[index].decode()
        except PenstockError as error:
            error.place = index
            raise

    def __repr__(self) -> str:
        return f"<{len(self)} pictures of {self.table['bytes'].sum():,} bytes>"

    def __reduce__(self) -> Any:
        table = self.table.copy()
        ends = np.cumsum(table["bytes"])
        table["address"] = ends - table["bytes"]
        joined = current_pool().lend(int(ends[-1]))
        view = memoryview(joined.numpy())[HEAD:]
        for data, end in zip(self.data, ends.tolist()):
            view[end - len(data) : end] = data
        return _receive, (joined, table, self.transforms, self.pixels)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the decoded pictures. Raise SampleError if they differ."""
        sizes = self.table["plan"][:, 8:10]
        if (sizes != sizes[0]).any():
            raise SampleError(
                "all shapes must be equal in a batch, got "
                f"{sorted(set(map(tuple, sizes.tolist())))}: give the transform a size of "
                "(height, width)"
            )
        return int(sizes[0, 0]), int(sizes[0, 1])


class FileParts:
    """The files of a table, in one block of memory, which they keep alive."""

    def __init__(self, memory: Any, table: Array) -> None:
        self._view, self._size = memoryview(memory), table["bytes"]
        self._begin = table["address"] - address_of(memory)

    def __iter__(self) -> Iterator[memoryview]:
        return (self[index] for index in range(len(self._size)))

    def __getitem__(self, index: int) -> memoryview:
        begin = int(self._begin[index])
        return self._view[begin : begin + int(self._size[index])]


def _receive(
    joined: Any, table: Array, transforms: list[ImageTransform], pixels: dict[int, Array]
) -> FileTable:
    memory = view_block(joined)
    table["address"] += address_of(memory)
    return FileTable(table, FileParts(memory, table), transforms, pixels)


def sendable(batch: Any) -> Any:
    """Return the batch with lists of undecoded pictures replaced by a :class:`FileTable`."""
    if isinstance(batch, list) and batch and all(isinstance(one, DeferredImage) for one in batch):
        return FileTable.of(batch)
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        if any(isinstance(column, list) for column in batch):
            return type(batch)(sendable(column) for column in batch)
    if isinstance(batch, dict):
        return {name: sendable(column) for name, column in batch.items()}
    return batch


def make_native_jobs(table: Array, transforms: list[ImageTransform], out: Array) -> Array:
    """Return the native module's jobs for a table: each picture is written to an address."""
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
