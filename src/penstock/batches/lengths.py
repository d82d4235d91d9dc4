"""Lengths of samples: how they are measured, and the one rule for what counts as a length.

A length is a finite number above 0. :func:`check_length` applies the rule to one sample of a
stream, :func:`check_lengths` to those of a whole data set, and :func:`are_lengths` marks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import SampleError

if TYPE_CHECKING:
    import numpy as np

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
RULE = "a length must be a finite number above 0"
CONTAINERS = (tuple, list, dict, bytes, bytearray, memoryview)
"""Types whose ``len`` may be something other than the length of a sample."""
FEW = 8
"""Longer tuples and lists are sequences of tokens, which are not searched for arrays."""


def measure_sample(sample: Any, key: str | None, measure: Callable[[Any], Any] | None) -> Any:
    """Return ``measure(sample[key])``; a ``key`` or ``measure`` of None is left out."""
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
            f"{'it' if key is None else repr(key)} raised: {error}"
        ) from error


def plain_length(value: Any) -> int:
    """Return ``len(value)``, or the length of the array in a pair such as (sound, rate).

    So decoded audio is as long as its sound: a tensor is (channels, time), an array (time) or
    (time, channels). Undecoded bytes, dicts, and several arrays in one value have no obvious
    length and raise a :class:`~penstock.errors.SampleError`.

    >>> import numpy as np
    >>> plain_length((np.zeros(16000), 8000)), plain_length([5, 3, 9])
    (16000, 3)
    """
    if not isinstance(value, CONTAINERS):
        return len(value)
    what = type(value).__name__
    if isinstance(value, (tuple, list)):
        arrays = [one for one in value if getattr(one, "ndim", 0)] if len(value) <= FEW else []
        if not arrays or (isinstance(value, list) and len(arrays) == len(value)):
            return len(value)
        if len(arrays) == 1:
            array = arrays[0]
            return int(array.shape[-1] if hasattr(array, "detach") else array.shape[0])
        what += f" with {len(arrays)} arrays"
    raise SampleError(
        f"a value of type {what} has no obvious length: name a decoded field with len_key, or "
        "measure it with a function, such as len_fn=lambda value: len(value) for a number of bytes"
    )


def check_length(length: Any, key: str | None) -> float:
    """Return one length as a plain number; raise a SampleError if it is not a length.

    >>> check_length(3.5, None)
    3.5
    >>> check_length(float("nan"), "duration")
    Traceback (most recent call last):
    ...
    penstock.errors.SampleError: a length must be a finite number above 0: the length of \
'duration' is nan
    """
    try:
        number: Any = length.item() if hasattr(length, "item") else length
        right = isinstance(number, (int, float)) and number > 0 and math.isfinite(number)
    except (TypeError, ValueError, RuntimeError):
        right = False
    if not right or isinstance(number, bool):
        what = "the sample" if key is None else repr(key)
        raise SampleError(f"{RULE}: the length of {what} is {length!r}")
    return number  # type: ignore[no-any-return]


def are_lengths(values: Any) -> Any:
    """Return an array that is True where a number is finite and above 0."""
    import numpy as np

    return np.isfinite(values) & (values > 0)


def check_lengths(lengths: Any, names: Sequence[Any] | None = None) -> Floats:
    """Return lengths as an array of floats, one per sample; raise if one is not a length.

    ``names`` are the samples' ids or keys, for the message. A missing length (None, NaN), and one
    that is infinite, zero, negative or not a number, raises a
    :class:`~penstock.errors.SampleError` that names the first such sample and their number.

    >>> check_lengths([2, 0.5]).tolist()
    [2.0, 0.5]
    >>> check_lengths([2, None, -1], ["a", "b", "c"])
    Traceback (most recent call last):
    ...
    penstock.errors.SampleError: a length must be a finite number above 0: sample 1 ('b') has \
nan (2 of 3 samples have such a length); correct the lengths or leave the samples out
    """
    import numpy as np

    try:
        found: Floats = np.asarray(lengths, np.float64)
    except (TypeError, ValueError) as error:
        raise _not_numbers(lengths, names) from error
    if found.ndim != 1:
        raise SampleError(f"lengths are one number per sample, not an array of {found.shape}")
    bad = np.flatnonzero(~are_lengths(found))
    if len(bad):
        raise _bad_length(int(bad[0]), float(found[bad[0]]), names, len(bad), len(found))
    return found


def _bad_length(
    index: int, value: Any, names: Sequence[Any] | None, bad: int, samples: int
) -> SampleError:
    name = "" if names is None else f" ({names[index]!r})"
    return SampleError(
        f"{RULE}: sample {index}{name} has {value!r} ({bad} of {samples} samples have such a "
        "length); correct the lengths or leave the samples out"
    )


def _not_numbers(lengths: Any, names: Sequence[Any] | None) -> SampleError:
    """Return the error about the first value that is not a number."""
    for index, value in enumerate(lengths):
        try:
            float(value if value is not None else "nan")
        except (TypeError, ValueError):
            return _bad_length(index, value, names, 1, len(lengths))
    return SampleError("lengths are one number per sample")
