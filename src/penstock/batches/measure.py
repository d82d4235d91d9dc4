"""How long a sample is, asked in one way and checked in one way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from penstock.errors import SampleError


def length_of(sample: Any, key: str | None, measure: Callable[[Any], Any] | None) -> Any:
    """``measure(sample[key])``, or one of the two alone."""
    if key is not None:
        try:
            sample = sample[key]
        except (KeyError, IndexError, TypeError):
            fields = sorted(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
            raise SampleError(f"the sample has no length: no field {key!r} in {fields}") from None
    if measure is None:
        return sample
    try:
        return measure(sample)
    except TypeError as error:
        raise SampleError(
            f"the sample has no length: {getattr(measure, '__name__', measure)} of "
            f"{'it' if key is None else repr(key)} says {error}"
        ) from error


def checked_length(length: Any, key: str | None) -> float:
    """The length as a plain number above 0; a SampleError for everything else.

    >>> checked_length(3.5, None)
    3.5
    >>> checked_length(float("nan"), "duration")
    Traceback (most recent call last):
    penstock.errors.SampleError: a length must be a number above 0, and 'duration' gives nan
    """
    try:
        number: Any = length.item() if hasattr(length, "item") else length
        right = isinstance(number, (int, float)) and number > 0 and math.isfinite(number)
    except (TypeError, ValueError, RuntimeError):
        right = False
    if not right or isinstance(number, bool):
        where = f"{key!r} gives" if key is not None else "this one has"
        raise SampleError(f"a length must be a number above 0, and {where} {length!r}")
    return number  # type: ignore[no-any-return]
