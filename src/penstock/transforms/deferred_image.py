"""An image that the device will decode: its bytes and its crop plan.

A transform with ``decode_on="cuda"`` returns these instead of arrays. The crop is drawn from the
same random numbers as on the CPU; only the decoding is deferred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.transforms.any_image import Array, Planner
from penstock.transforms.crop_plan import CropPlan
from penstock.transforms.jpeg_fallback import read_frame
from penstock.transforms.jpeg_markers import Header, read_header

if TYPE_CHECKING:
    from penstock.transforms.images import ImageTransform

GREY_AND_COLOUR = (1, 3)


class DeferredImage:
    """The bytes of a JPEG, the plan for it, and the transform that made the plan.

    An image that a GPU cannot decode, such as a PNG or a CMYK JPEG, already has its ``pixels``; so
    has a truncated file, because its error must be raised in a stage with a handler. ``header`` is
    None if JPEG engines must not decode it; it is read here to save the trainer's process work.
    """

    __slots__ = ("data", "header", "pixels", "plan", "transform")

    def __init__(
        self,
        data: bytes | memoryview,
        plan: CropPlan | None,
        transform: ImageTransform,
        pixels: Array | None = None,
        header: Header | None = None,
    ) -> None:
        self.data, self.plan, self.transform, self.pixels = data, plan, transform, pixels
        self.header = header

    @classmethod
    def of(cls, value: Any, plan_for: Planner, transform: ImageTransform) -> DeferredImage:
        """Return the deferred image of any value, decoding it now only if that is necessary."""
        if isinstance(value, bytes) and value[:2] == b"\xff\xd8":
            frame = read_frame(value)
            if frame is not None and frame.complete and frame.colours in GREY_AND_COLOUR:
                plan = plan_for(frame.height, frame.width)
                return cls(value, plan, transform, header=read_header(value))
        return cls(b"", None, transform, transform.rendered(value, plan_for))

    def __reduce__(self) -> Any:
        return DeferredImage, (
            bytes(self.data),
            self.plan,
            self.transform,
            self.pixels,
            self.header,
        )

    def __repr__(self) -> str:
        return f"<{len(self.data):,} bytes for {self.transform!r}>"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the decoded image."""
        if self.plan is not None:
            return self.plan.rows, self.plan.columns
        height, width = self.decode().shape[1:]
        return height, width

    @property
    def nbytes(self) -> int:
        """The memory that it holds, in bytes."""
        return len(self.data) if self.pixels is None else int(self.pixels.nbytes)

    def decode(self) -> Array:
        """Decode on the CPU and return the array that the transform would have returned."""
        plan = self.plan
        if self.pixels is not None or plan is None:
            return self.pixels  # type: ignore[return-value]
        return self.transform.rendered(self.data, lambda height, width: plan)
