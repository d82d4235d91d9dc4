"""Collects the lengths of the samples in batches, from samplers, plans and loaders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from penstock.batches.lengths import Floats, check_lengths
from penstock.batches.planning.batch_plan import BatchPlan
from penstock.errors import PipelineError

Numbers = np.ndarray[Any, np.dtype[Any]]
LENGTH_NAMES = ("lengths", "length", "lens")
"""Keys or attributes of a batch that may hold its lengths."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchLengths:
    """The lengths of the samples of all batches, and the sizes of the batches."""

    lengths: Floats
    """The length of each sample, batch after batch."""
    sizes: Numbers
    """The number of samples in each batch."""
    padded: Floats
    """The length that each batch is padded to."""
    numbers: Numbers | None
    """The number of each sample in the data set, if known."""

    @property
    def batch(self) -> Numbers:
        """The number of each sample's batch."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


def collect_lengths(batches: Iterable[Any], lengths: Any = None) -> BatchLengths:
    """Return the lengths in batches of sample numbers, or in batches that hold their lengths.

    ``lengths`` is a number per sample, or a function that returns the lengths of a batch. A batch
    without samples is left out. If a batch has no lengths, a
    :class:`~penstock.errors.PipelineError` is raised.

    >>> found = collect_lengths([[0, 2], [1]], lengths=[5, 1, 4])
    >>> found.lengths.tolist(), found.sizes.tolist(), found.padded.tolist()
    ([5.0, 4.0, 1.0], [2, 1], [5.0, 1.0])
    """
    if lengths is None or callable(lengths):
        measure = lengths if callable(lengths) else lengths_in
        return _measure_batches(batches, measure)
    rows = [rows for rows in map(_row_numbers, batches) if len(rows)]
    numbers = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    known = check_lengths(lengths)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(known):
        raise PipelineError(
            f"a batch has sample {int(numbers.max())}, and there are lengths of {len(known)} "
            "samples: pass the lengths of all samples, in the order of the data"
        )
    sizes = np.array([len(row) for row in rows], np.int64)
    padded = _longest(known[numbers], sizes)
    if isinstance(batches, BatchPlan):
        padded = batches.lengths[:, 0]  # rounded up, if the plan has ``shapes``
    return BatchLengths(known[numbers], sizes, padded, numbers)


def _row_numbers(batch: Any) -> Numbers:
    try:
        return np.asarray(batch, np.int64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise PipelineError(
            f"lengths of all samples need batches of sample numbers, not batches of "
            f"{type(batch).__name__}; pass lengths=a function of the batch"
        ) from error


def _measure_batches(batches: Iterable[Any], measure: Callable[[Any], Any]) -> BatchLengths:
    found, padded, rows = [], [], []
    for batch in batches:
        result = measure(batch)
        inside, top = result if isinstance(result, tuple) else (result, None)
        inside = check_lengths(inside)
        if len(inside):
            found.append(inside)
            padded.append(float(inside.max()) if top is None else float(top))
            rows.append(batch)
    sizes = np.array([len(inside) for inside in found], np.int64)
    numbers = None
    if rows and all(isinstance(number, (int, np.integer)) for number in _first(rows[0])):
        numbers = np.concatenate([_row_numbers(batch) for batch in rows])
    flat = np.concatenate(found) if found else np.zeros(0)
    return BatchLengths(flat, sizes, np.array(padded), numbers)


def _first(batch: Any) -> list[Any]:
    return list(batch) if isinstance(batch, (list, tuple, np.ndarray)) else [None]


def lengths_in(batch: Any) -> tuple[Any, float | None]:
    """Return the lengths of a batch's samples, and the length that it is padded to, or None.

    Searched in turn: padded data anywhere in the batch (``data`` with relative ``lengths``, as in
    ``PaddedData``); an entry or attribute named ``lengths``.

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
        f"a batch of type {type(batch).__name__} has no lengths of its samples: pass lengths=the "
        "lengths of all samples, or a function that returns those of a batch"
    )


def _values(batch: Any) -> Iterable[Any]:
    """Return the values in a batch, or the batch itself if it holds only one."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    if hasattr(batch, "lengths"):
        return [batch]
    # Iterating a PaddedBatch yields its values.
    return list(batch) if hasattr(batch, "at_position") or isinstance(batch, (list, tuple)) else []


def _longest(lengths: Floats, sizes: Numbers) -> Floats:
    if not len(sizes):
        return np.zeros(0)
    found: Floats = np.maximum.reduceat(lengths, np.cumsum(sizes) - sizes)
    return found
