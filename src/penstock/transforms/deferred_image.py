"""A picture whose decoding is left to the device: its bytes, and what is to become of it.

A transform with ``decode_on="cuda"`` makes these instead of arrays. The crop is drawn
all the same, from the same numbers: only the pixels are made elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.transforms.jpeg_markers import Header, read_header
from penstock.transforms.jpeg_fallback import read_frame
from penstock.transforms.any_image import Array, Planner
from penstock.transforms.crop_plan import Plan

if TYPE_CHECKING:
    from penstock.transforms.images import ImageTransform

GREY_AND_COLOUR = (1, 3)


class Undecoded:
    """The bytes of a JPEG, the plan for it, and the transform that made the plan.

    What a GPU cannot decode, such as a PNG or a JPEG for print, has its ``pixels`` already; so has
    a file without its end, since its error must come where a handler is. What only some GPUs
    can has no ``header``: that is read here, so that the trainer's process need not.
    """

    __slots__ = ("data", "header", "pixels", "plan", "transform")

    def __init__(
        self,
        data: bytes | memoryview,
        plan: Plan | None,
        transform: ImageTransform,
        pixels: Array | None = None,
        header: Header | None = None,
    ) -> None:
        self.data, self.plan, self.transform, self.pixels = data, plan, transform, pixels
        self.header = header

    @classmethod
    def of(cls, value: Any, plan_for: Planner, transform: ImageTransform) -> Undecoded:
        """A picture of any kind, as far as it must be made now."""
        if isinstance(value, bytes) and value[:2] == b"\xff\xd8":
            frame = read_frame(value)
            if frame is not None and frame.complete and frame.colours in GREY_AND_COLOUR:
                plan = plan_for(frame.height, frame.width)
                return cls(value, plan, transform, header=read_header(value))
        return cls(b"", None, transform, transform.rendered(value, plan_for))

    def __reduce__(self) -> Any:
        return Undecoded, (bytes(self.data), self.plan, self.transform, self.pixels, self.header)

    def __repr__(self) -> str:
        return f"<{len(self.data):,} bytes for {self.transform!r}>"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what becomes of it."""
        if self.plan is not None:
            return self.plan.rows, self.plan.columns
        height, width = self.decode().shape[1:]
        return height, width

    @property
    def nbytes(self) -> int:
        """The memory it holds."""
        return len(self.data) if self.pixels is None else int(self.pixels.nbytes)

    def decode(self) -> Array:
        """The array that the transform would have made, by this machine's processor."""
        plan = self.plan
        if self.pixels is not None or plan is None:
            return self.pixels  # type: ignore[return-value]
        return self.transform.rendered(self.data, lambda height, width: plan)
