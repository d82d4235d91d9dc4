"""A picture whose decoding is left to the device: its bytes, and what is to become of it.

A transform with ``decode_on="cuda"`` makes these instead of arrays. The crop is drawn
all the same, from the same numbers: only the pixels are made elsewhere.
"""

from __future__ import annotations

from typing import Any

from penstock.transforms.plan import Plan


class Undecoded:
    """The bytes of a JPEG, the plan for it, and the transform that made the plan."""

    __slots__ = ("data", "plan", "transform")

    def __init__(self, data: bytes, plan: Plan, transform: Any) -> None:
        self.data, self.plan, self.transform = data, plan, transform

    def __repr__(self) -> str:
        return f"<{len(self.data):,} bytes for {self.transform!r}>"

    def decode(self) -> Any:
        """The array that the transform would have made, on this processor."""
        return self.transform.rendered(self.data, self.plan)
