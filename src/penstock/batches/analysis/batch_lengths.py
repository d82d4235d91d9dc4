"""The lengths that are in batches, from whatever gives batches: samplers, plans and loaders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from penstock.batches.lengths import Floats, checked_lengths
from penstock.batches.planning.batch_plan import BatchPlan
from penstock.errors import PipelineError

Numbers = np.ndarray[Any, np.dtype[Any]]
LENGTH_NAMES = ("lengths", "length", "lens")
"""Where a batch that is a mapping, or has attributes, may have its lengths."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gathered:
    """The samples of all batches in a row, and how many and how long each batch is."""

    lengths: Floats
    """Of each sample, batch after batch."""
    sizes: Numbers
    """Samples in each batch."""
    padded: Floats
    """The length that each batch is padded to."""
    numbers: Numbers | None
    """Which sample each is, where that is known."""

    @property
    def batch(self) -> Numbers:
        """The number of each sample's batch."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


def gathered(batches: Iterable[Any], lengths: Any = None) -> Gathered:
    """What is in batches of sample numbers, or in batches that know their lengths.

    ``lengths`` is a number per sample, or a function that gives those of a batch. A batch without
    samples is left out. Where no lengths are to be found, that is a
    :class:`~penstock.errors.PipelineError`.

    >>> found = gathered([[0, 2], [1]], lengths=[5, 1, 4])
    >>> found.lengths.tolist(), found.sizes.tolist(), found.padded.tolist()
    ([5.0, 4.0, 1.0], [2, 1], [5.0, 1.0])
    """
    if lengths is None or callable(lengths):
        measure = lengths if callable(lengths) else lengths_in
        return _of_contents(batches, measure)
    rows = [rows for rows in map(_row_numbers, batches) if len(rows)]
    numbers = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    known = checked_lengths(lengths)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(known):
        raise PipelineError(
            f"a batch has sample {int(numbers.max())}, and there are lengths of {len(known)} "
            "samples: give the lengths of all samples, in the data's order"
        )
    sizes = np.array([len(row) for row in rows], np.int64)
    padded = _longest(known[numbers], sizes)
    if isinstance(batches, BatchPlan):
        padded = batches.lengths[:, 0]  # rounded up, where few shapes were asked for
    return Gathered(known[numbers], sizes, padded, numbers)


def _row_numbers(batch: Any) -> Numbers:
    try:
        return np.asarray(batch, np.int64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"lengths of all samples go with batches of sample numbers, not with batches of "
            f"{type(batch).__name__}; give lengths=a function of the batch"
        ) from error


def _of_contents(batches: Iterable[Any], measure: Callable[[Any], Any]) -> Gathered:
    found, padded, rows = [], [], []
    for batch in batches:
        told = measure(batch)
        inside, top = told if isinstance(told, tuple) else (told, None)
        inside = checked_lengths(inside)
        if len(inside):
            found.append(inside)
            padded.append(float(inside.max()) if top is None else float(top))
            rows.append(batch)
    sizes = np.array([len(inside) for inside in found], np.int64)
    numbers = None
    if rows and all(isinstance(number, (int, np.integer)) for number in _first(rows[0])):
        numbers = np.concatenate([_row_numbers(batch) for batch in rows])
    flat = np.concatenate(found) if found else np.zeros(0)
    return Gathered(flat, sizes, np.array(padded), numbers)


def _first(batch: Any) -> list[Any]:
    return list(batch) if isinstance(batch, (list, tuple, np.ndarray)) else [None]


def lengths_in(batch: Any) -> tuple[Any, float | None]:
    """The lengths of a batch's samples, and the length that it is padded to where it shows.

    Looked for in turn: padded data (``data`` beside ``lengths`` relative to the longest, as
    ``PaddedData`` has them) anywhere in the batch; an entry or attribute named ``lengths``.

    >>> lengths_in({"lengths": [3, 2], "tokens": None})
    ([3, 2], None)
    """
    for value in _values(batch):
        if hasattr(value, "data") and hasattr(value, "lengths") and np.ndim(value.data) > 1:
            top = int(value.data.shape[1])
            relative = np.asarray(value.lengths, np.float64)
            return np.rint(relative * top), top
    for name in LENGTH_NAMES:
        if isinstance(batch, Mapping) and name in batch:
            return batch[name], None
        if hasattr(batch, name):
            return getattr(batch, name), None
    raise PipelineError(
        f"a batch of type {type(batch).__name__} does not say how long its samples are: give "
        "lengths=the lengths of all samples, or a function that gives those of a batch"
    )


def _values(batch: Any) -> Iterable[Any]:
    """What is in a batch; of the kinds of batch that hold several things, each of them."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    if hasattr(batch, "lengths"):
        return [batch]
    # A PaddedBatch gives its values when it is iterated.
    return list(batch) if hasattr(batch, "at_position") or isinstance(batch, (list, tuple)) else []


def _longest(lengths: Floats, sizes: Numbers) -> Floats:
    if not len(sizes):
        return np.zeros(0)
    found: Floats = np.maximum.reduceat(lengths, np.cumsum(sizes) - sizes)
    return found
