"""Choosing a batch from a buffer sorted by length: a window around one sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import PipelineError


def padding_ratio(lengths: Sequence[float]) -> float:
    """How much of a batch padded to its longest sample is padding.

    >>> padding_ratio([1, 3])
    0.33333333333333337
    """
    return 1.0 - sum(lengths) / total_length_with_padding(lengths)


def total_length_with_padding(lengths: Sequence[float]) -> float:
    """The size of a batch padded to its longest sample.

    >>> total_length_with_padding([1, 3])
    6
    """
    return len(lengths) * max(lengths)


def indices_around_random_pivot(
    databuffer: Sequence[Any],
    target_batch_numel: float,
    max_batch_size: int | None = None,
    max_batch_numel: float | None = None,
    max_padding_ratio: float | None = 0.2,
    randint_generator: Callable[[int, int], int] = random.randint,
) -> list[int]:
    """Indices of a batch around a random item of a buffer sorted by ``.length``.

    From the pivot the window grows to the left or to the right, wherever that costs less padding,
    as long as the padded batch is smaller than ``target_batch_numel``, has fewer than
    ``max_batch_size`` samples, and would neither grow above ``max_batch_numel`` nor be more than
    ``max_padding_ratio`` padding. A pivot above the maximum comes alone.

    >>> from penstock.batches.bucketing.length_buffer import LengthItem
    >>> buffer = [LengthItem(length, None, None) for length in (1, 4, 5, 9)]
    >>> indices_around_random_pivot(buffer, 10, randint_generator=lambda low, high: 2)
    [1, 2]
    """
    lengths = [item.length for item in databuffer]
    pivot = randint_generator(0, len(lengths) - 1)
    begin, end = window(
        lengths, pivot, target_batch_numel, max_batch_size, max_batch_numel, max_padding_ratio
    )
    return list(range(begin, end))


def window(
    lengths: list[float],
    pivot: int,
    target: float,
    max_size: int | None = None,
    max_numel: float | None = None,
    max_padding: float | None = 0.2,
) -> tuple[int, int]:
    """The window that grows around a pivot, as its first place and the one behind its last."""
    begin, end, count = pivot, pivot + 1, len(lengths)
    most = count if max_size is None else min(max_size, count)
    room = float("inf") if max_numel is None else max_numel
    share = 1.0 if max_padding is None else max_padding
    longest = total = lengths[pivot]
    size = 1
    while size < most and size * longest < target:
        size += 1
        left = right = 2.0  # a ratio that no window has
        if begin and size * longest <= room:
            left = 1.0 - (total + lengths[begin - 1]) / (size * longest)
        if end < count and size * lengths[end] <= room:
            right = 1.0 - (total + lengths[end]) / (size * lengths[end])
        if left <= right and left <= share:
            begin -= 1
            total += lengths[begin]
        elif right < left and right <= share:
            longest = lengths[end]
            total += longest
            end += 1
        else:
            break
    return begin, end


LIMITS = {
    "target_batch_numel": "target",
    "max_batch_size": "max_size",
    "max_batch_numel": "max_numel",
    "max_padding_ratio": "max_padding",
}


def limits_of(name: str, sampler_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of :func:`window` in ``sampler_kwargs``, checked."""
    wrong = set(sampler_kwargs) - set(LIMITS) - {"randint_generator"}
    if wrong:
        raise PipelineError(
            f"{name}: sampler_kwargs has {sorted(wrong)}, which indices_around_random_pivot does "
            f"not take: it takes {sorted(LIMITS)}"
        )
    if "target_batch_numel" not in sampler_kwargs:
        raise PipelineError(
            f"{name}: how large should a batch be? Give "
            "sampler_kwargs={'target_batch_numel': …}, in the units of the lengths, with padding"
        )
    limits = {LIMITS[key]: sampler_kwargs[key] for key in LIMITS if key in sampler_kwargs}
    for key in ("target", "max_size", "max_numel"):
        if limits.get(key) is not None and not limits[key] > 0:
            raise PipelineError(f"{name}: the limits of a batch must be above 0, not {limits[key]}")
    return limits
