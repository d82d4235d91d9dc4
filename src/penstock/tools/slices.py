"""``--slice A:B:C``: some of the items of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from penstock.errors import PipelineError

T = TypeVar("T")


class StreamSlice(NamedTuple):
    """Every ``step``-th item from number ``start`` to before ``stop`` (None: to the end)."""

    start: int = 0
    stop: int | None = None
    step: int = 1

    def __call__(self, items: Iterable[T]) -> Iterator[T]:
        """Iterate over the items chosen."""
        return itertools.islice(items, self.start, self.stop, self.step)


def parse_slice(text: str) -> StreamSlice:
    """Read ``START:STOP:STEP`` as Python does, without negative numbers; ``N`` is item N alone.

    >>> list(parse_slice("1:10:3")(range(20))), list(parse_slice("4")(range(20)))
    ([1, 4, 7], [4])
    >>> parse_slice("-3:")
    Traceback (most recent call last):
    penstock.errors.PipelineError: a slice is START:STOP:STEP with numbers of at least 0 ...
    """
    parts = [part.strip() for part in text.split(":")]
    if all(part == "" or (part.isdigit() and part.isascii()) for part in parts):
        numbers = [int(part) if part else None for part in parts]
        if len(parts) == 1 and numbers[0] is not None:
            return StreamSlice(numbers[0], numbers[0] + 1)
        if len(parts) in (2, 3):
            step = numbers[2] if len(parts) == 3 else None
            if step != 0:
                return StreamSlice(numbers[0] or 0, numbers[1], step or 1)
    raise PipelineError(
        "a slice is START:STOP:STEP with numbers of at least 0 and a step of at least 1, or one "
        f"number, not {text!r}"
    )
