"""Chooses a batch from a buffer sorted by length: a window around one sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import PipelineError


def padding_ratio(lengths: Sequence[float]) -> float:
    """Return the share of padding in a batch that is padded to its longest sample.

    >>> padding_ratio([1, 3])
    0.33333333333333337
    """
    return 1.0 - sum(lengths) / total_length_with_padding(lengths)


def total_length_with_padding(lengths: Sequence[float]) -> float:
    """Return the size of a batch that is padded to its longest sample.

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
    """Return the indices of a batch around a random item of a buffer sorted by ``.length``.

    From the pivot the window grows to the side that adds less padding, as long as the padded batch
    is smaller than ``target_batch_numel``, has fewer than ``max_batch_size`` samples, and would
    neither exceed ``max_batch_numel`` nor contain more than a share of ``max_padding_ratio``
    padding. A pivot above the maximum is a batch alone.

    >>> from penstock.batches.bucketing.length_buffer import LengthItem
    >>> buffer = [LengthItem(length, None, None) for length in (1, 4, 5, 9)]
    >>> indices_around_random_pivot(buffer, 10, randint_generator=lambda low, high: 2)
    [1, 2]
    """
    lengths = [item.length for item in databuffer]
    pivot = randint_generator(0, len(lengths) - 1)
    begin, end = grow_window(
        lengths, pivot, target_batch_numel, max_batch_size, max_batch_numel, max_padding_ratio
    )
    return list(range(begin, end))


def grow_window(
    lengths: list[float],
    pivot: int,
    target: float,
    max_size: int | None = None,
    max_numel: float | None = None,
    max_padding: float | None = 0.2,
) -> tuple[int, int]:
    """Grow a window around a pivot; return its first index and the one after its last."""
    begin, end, count = pivot, pivot + 1, len(lengths)
    most = count if max_size is None else min(max_size, count)
    limit = float("inf") if max_numel is None else max_numel
    share = 1.0 if max_padding is None else max_padding
    longest = total = lengths[pivot]
    size = 1
    while size < most and size * longest < target:
        size += 1
        left = right = 2.0  # no window has this ratio
        if begin and size * longest <= limit:
            left = 1.0 - (total + lengths[begin - 1]) / (size * longest)
        if end < count and size * lengths[end] <= limit:
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


def check_limits(name: str, sampler_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Check ``sampler_kwargs`` and return them as arguments of :func:`grow_window`."""
    wrong = set(sampler_kwargs) - set(LIMITS) - {"randint_generator"}
    if wrong:
        raise PipelineError(
            f"{name}: sampler_kwargs has {sorted(wrong)}, but indices_around_random_pivot takes "
            f"{sorted(LIMITS)}"
        )
    if "target_batch_numel" not in sampler_kwargs:
        raise PipelineError(
            f"{name}: the size of a batch is missing: pass "
            "sampler_kwargs={'target_batch_numel': …}, in the units of the lengths, with padding"
        )
    limits = {LIMITS[key]: sampler_kwargs[key] for key in LIMITS if key in sampler_kwargs}
    for key in ("target", "max_size", "max_numel"):
        if limits.get(key) is not None and not limits[key] > 0:
            raise PipelineError(f"{name}: the limits of a batch must be above 0, not {limits[key]}")
    return limits
