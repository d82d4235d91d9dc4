"""Lengths of samples, checked: what cannot be a length is told before a batch is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import SampleError

Floats = np.ndarray[Any, np.dtype[np.float64]]


def checked_lengths(lengths: Any, names: Sequence[Any] | None = None) -> Floats:
    """The lengths as numbers, one per sample, all of them finite and above 0.

    ``names`` are the samples' ids or keys, for the message. A missing length (None, NaN), and one
    that is infinite, zero, negative or no number, is a :class:`~penstock.errors.SampleError` that
    says which sample has it and how many there are.

    >>> checked_lengths([2, 0.5]).tolist()
    [2.0, 0.5]
    >>> checked_lengths([2, None, -1], ["a", "b", "c"])
    Traceback (most recent call last):
    ...
    penstock.errors.SampleError: a length must be a finite number above 0: sample 1 ('b') has \
nan (2 of 3 samples have such a length); mend the lengths or leave the samples out
    """
    try:
        found = np.asarray(lengths, np.float64)
    except (TypeError, ValueError) as error:
        raise _not_numbers(lengths, names) from error
    if found.ndim != 1:
        raise SampleError(f"lengths are one number per sample, not an array of {found.shape}")
    good = np.isfinite(found) & (found > 0)
    if not good.all():
        bad = np.flatnonzero(~good)
        raise _bad(int(bad[0]), float(found[bad[0]]), names, len(bad), len(found))
    return found


def _bad(
    place: int, value: Any, names: Sequence[Any] | None, bad: int, samples: int
) -> SampleError:
    name = "" if names is None else f" ({names[place]!r})"
    return SampleError(
        f"a length must be a finite number above 0: sample {place}{name} has {value!r} "
        f"({bad} of {samples} samples have such a length); mend the lengths or leave the "
        "samples out"
    )


def _not_numbers(lengths: Any, names: Sequence[Any] | None) -> SampleError:
    """The first value that is no number."""
    for place, value in enumerate(lengths):
        try:
            float(value if value is not None else "nan")
        except (TypeError, ValueError):
            return _bad(place, value, names, 1, len(lengths))
    return SampleError("lengths are one number per sample")
