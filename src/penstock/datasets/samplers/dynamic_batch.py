"""Batches of samples of similar length, from buckets: SpeechBrain's ``DynamicBatchSampler``.

SpeechBrain takes samples in random order, puts each into the bucket of its length, and makes a
batch of every full bucket. Here all samples of an epoch are processed at once: sorted by bucket
(stably, to keep their order), cut at every bucket's batch size, and the batches sorted by their
last sample. The batches are the same.
"""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, overload

import numpy as np

from penstock.batches.lengths import Floats, check_lengths
from penstock.batches.number_format import figure
from penstock.datasets.samplers.base import PlannedOrder, torch_generator, torch_permutation
from penstock.datasets.samplers.bucket_boundaries import make_lognormal_boundaries
from penstock.errors import PipelineError, SampleError, UnsupportedError

logger = logging.getLogger("penstock.datasets")

Numbers = np.ndarray[Any, np.dtype[Any]]


def duration(row: Any) -> Any:
    """Return the duration of a manifest's row: the default length."""
    return row["duration"]


class Batches(Sequence[list[int]]):
    """Batches of sample numbers, stored as one array and the start and end of each batch in it.

    >>> batches = Batches(np.array([7, 8, 9]), np.array([2, 0]), np.array([3, 2]))
    >>> list(batches), batches[1:][0]
    ([[9], [7, 8]], [7, 8])
    """

    def __init__(self, samples: Numbers, starts: Numbers, stops: Numbers) -> None:
        self.samples, self.starts, self.stops = samples, starts, stops

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice | Numbers) -> Batches: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (slice, np.ndarray)):
            return Batches(self.samples, self.starts[index], self.stops[index])
        return self.samples[self.starts[index] : self.stops[index]].tolist()

    def __iter__(self) -> Iterator[list[int]]:
        for start, stop in zip(self.starts.tolist(), self.stops.tolist()):
            yield self.samples[start:stop].tolist()


class DynamicBatchSampler(PlannedOrder):
    """Batches of samples of similar length, each at most ``max_batch_length`` long when padded.

    For the ``batch_sampler=`` of a loader. With the same arguments, seed and epoch the batches are
    those of SpeechBrain's class of this name. The epoch increases after each pass.

    Lengths are taken from ``lengths_list``, or from ``length_func``: a function of the manifest's
    raw row, or the name of a column. Buckets end at ``bucket_boundaries``, or at ``num_buckets``
    quantiles of a lognormal distribution that ends at ``max_batch_length``; these do not depend on
    the data, and about 200 is a good number (``penstock lengths`` compares them).
    ``batch_ordering`` is "random", or "ascending" or "descending" by the longest sample.
    ``max_batch_ex`` limits the samples of a batch, ``drop_last`` drops batches that are not full,
    and ``verbose`` logs each batch of epoch 0.

    A sample longer than ``max_batch_length`` is a batch alone; with ``over="skip"`` it is
    skipped, with ``over="error"`` it raises a :class:`~penstock.errors.SampleError`.
    ``over_budget`` holds their numbers. A length that is missing or not a positive number raises a
    SampleError, an invalid argument a :class:`~penstock.errors.PipelineError`.

    >>> sampler = DynamicBatchSampler(range(6), 10, bucket_boundaries=[2, 5, 10], shuffle=False,
    ...     lengths_list=[1, 5, 2, 4, 9, 12], batch_ordering="ascending")
    >>> list(sampler)
    [[0, 2], [1, 3], [4], [5]]
    >>> sampler.get_durations([1, 3]), sampler.over_budget.tolist(), sampler.epoch
    ([5.0, 4.0], [5], 1)
    """

    def __init__(
        self,
        dataset: Any,
        max_batch_length: float,
        num_buckets: int | None = None,
        length_func: Callable[[Any], Any] | str = duration,
        shuffle: bool = True,
        batch_ordering: Literal["random", "ascending", "descending"] = "random",
        max_batch_ex: int | None = None,
        bucket_boundaries: Sequence[float] = (),
        lengths_list: Any = None,
        seed: int = 42,
        epoch: int = 0,
        drop_last: bool = False,
        verbose: bool = False,
        *,
        over: Literal["alone", "skip", "error"] = "alone",
    ) -> None:
        super().__init__(epoch)
        _check_choice("batch_ordering", batch_ordering, ("random", "ascending", "descending"))
        _check_choice("over", over, ("alone", "skip", "error"))
        if not 0 < max_batch_length < float("inf"):
            raise PipelineError(f"max_batch_length must be above 0, not {max_batch_length!r}")
        if max_batch_ex is not None and max_batch_ex < 1:
            raise PipelineError(f"max_batch_ex must be at least 1 sample, not {max_batch_ex!r}")
        self.max_batch_length, self.max_batch_ex = max_batch_length, max_batch_ex
        self.shuffle, self.batch_ordering, self.seed = shuffle, batch_ordering, int(seed)
        self.drop_last, self.verbose = drop_last, verbose
        self.lengths = _collect_lengths(dataset, length_func, lengths_list)
        self.boundaries = _make_boundaries(bucket_boundaries, num_buckets, max_batch_length)
        fitting = (max_batch_length / self.boundaries).astype(np.int64)
        fitting = np.append(np.clip(fitting, 1, max_batch_ex), 1)
        self.sizes: Numbers = fitting
        self.over_budget = np.flatnonzero(self.lengths > max_batch_length)
        if over == "error" and len(self.over_budget):
            raise _make_length_error(self.over_budget, self.lengths, max_batch_length)
        self._skip = over == "skip" and len(self.over_budget) > 0
        buckets = np.searchsorted(self.boundaries, self.lengths)
        # 16 bits if they suffice: numpy then uses a radix sort, which takes linear time.
        self._buckets = buckets.astype(np.int16 if len(fitting) < 2**15 else np.int32)
        if epoch == 0:
            self._log_buckets()

    def __len__(self) -> int:
        counts = self._counts
        batches = counts // self.sizes if self.drop_last else -(-counts // self.sizes)
        return int(batches.sum())

    def get_durations(self, batch: Iterable[int]) -> list[float]:
        """Return the lengths of the samples of a batch."""
        return [self.lengths.item(number) for number in batch]

    @functools.cached_property
    def _counts(self) -> Numbers:
        """The number of samples in each bucket."""
        kept = self._buckets if not self._skip else np.delete(self._buckets, self.over_budget)
        return np.bincount(kept, minlength=len(self.sizes))

    def _plan(self, epoch: int) -> Batches:
        samples = self._samples(epoch)
        turns = np.argsort(self._buckets[samples], kind="stable")
        counts, sizes = self._counts, self.sizes
        batches = -(-counts // sizes)
        first = np.cumsum(batches) - batches
        number = np.arange(batches.sum()) - np.repeat(first, batches)
        begins = np.repeat(np.cumsum(counts) - counts, batches)
        starts = begins + number * np.repeat(sizes, batches)
        full = number < np.repeat(counts // sizes, batches)
        stops = np.minimum(starts + np.repeat(sizes, batches), begins + np.repeat(counts, batches))
        # Full batches in the order of their last sample, then the others, bucket by bucket.
        order = np.flatnonzero(full)
        order = order[np.argsort(turns[stops[order] - 1], kind="stable")]
        if not self.drop_last:
            order = np.append(order, np.flatnonzero(~full))
        plan = Batches(samples[turns], starts[order], stops[order])
        plan = plan[self._order_batches(plan, epoch)]
        if self.verbose and epoch == 0:
            self._log_batches(plan)
        return plan

    def _samples(self, epoch: int) -> Numbers:
        count = len(self.lengths)
        if self.shuffle:
            samples: Numbers = torch_permutation(count, torch_generator(self.seed + epoch))
        else:
            samples = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
        if self._skip:
            samples = samples[self.lengths[samples] <= self.max_batch_length]
        return samples

    def _order_batches(self, batches: Batches, epoch: int) -> Numbers:
        if self.batch_ordering == "random":
            order: Numbers = torch_permutation(len(batches), torch_generator(self.seed + epoch))
            return order
        longest = _find_longest(batches, self.lengths)
        sign = 1 if self.batch_ordering == "ascending" else -1
        return np.argsort(sign * longest, kind="stable")

    def order_identity(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "samples": len(self.lengths),
            "batches": len(self),
            "order": [self.shuffle, self.batch_ordering, self.drop_last],
            "lengths and buckets": self._digest,
        }

    @functools.cached_property
    def _digest(self) -> int:
        lengths = zlib.crc32(np.ascontiguousarray(self.lengths).data)
        return zlib.crc32(self.sizes.tobytes(), zlib.crc32(self.boundaries.tobytes(), lengths))

    def _log_buckets(self) -> None:
        if not logger.isEnabledFor(logging.DEBUG):
            return
        below = 0.0
        for bound, size, count in zip(self.boundaries, self.sizes, self._counts):
            logger.debug("lengths %.1f to %.1f: %d samples, %d a batch", below, bound, count, size)
            below = bound

    def _log_batches(self, batches: Batches) -> None:
        for number, batch in enumerate(batches):
            lengths = self.lengths[batch]
            padding = 1 - lengths.sum() / (len(batch) * lengths.max())
            logger.info(
                "batch %d: %d samples, length %.1f, %.2f %% padding",
                *(number, len(batch), lengths.sum(), 100 * padding),
            )


def _find_longest(batches: Batches, lengths: Floats) -> Floats:
    """Return the length of the longest sample of each batch."""
    if not len(batches):
        return np.zeros(0)
    bounds = np.stack([batches.starts, batches.stops], axis=1).ravel()
    # reduceat also computes the maximum between two batches; [::2] drops those.
    padded = np.append(lengths[batches.samples], 0.0)
    found: Floats = np.maximum.reduceat(padded, bounds)[::2]
    return found


def _collect_lengths(dataset: Any, length_func: Callable[[Any], Any] | str, given: Any) -> Floats:
    ids = getattr(dataset, "data_ids", None)
    if given is not None:
        if len(given) != len(dataset):
            raise PipelineError(
                f"lengths_list has {len(given)} lengths for {len(dataset)} samples: one for each"
            )
        return check_lengths(given, ids)
    column = "duration" if length_func is duration else length_func
    if isinstance(column, str):
        if hasattr(dataset, "column"):
            return check_lengths(dataset.column(column), ids)
        length_func = functools.partial(_read_entry, column)
    if not hasattr(dataset, "data") or ids is None:
        raise UnsupportedError(
            f"a length_func needs a data set with rows, such as DynamicItemDataset, and "
            f"{type(dataset).__name__} has none: give lengths_list, one length for each sample"
        )
    return check_lengths([_measure_row(length_func, dataset.data[name], name) for name in ids], ids)


def _read_entry(name: str, row: Any) -> Any:
    return row[name]


def _measure_row(length_func: Any, row: Any, name: Any) -> Any:
    try:
        return length_func(row)
    except KeyError as error:
        raise SampleError(
            f"the length of sample {name!r} is missing: its row has no {error}; give length_func "
            "the name of the entry that has it"
        ) from error


def _make_boundaries(given: Sequence[float], count: int | None, top: float) -> Floats:
    if len(given):
        found = check_lengths(given)
        if (np.diff(found) <= 0).any():
            raise PipelineError(f"bucket_boundaries must increase, not {list(given)}")
        return found
    if count is None or count < 1:
        raise UnsupportedError(
            f"give num_buckets of at least 1 (for example 200), or bucket_boundaries; num_buckets "
            f"is {count!r}"
        )
    return make_lognormal_boundaries(count, top)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UnsupportedError(f"{name} is one of {', '.join(choices)}, not {value!r}")


def _make_length_error(numbers: Numbers, lengths: Floats, budget: float) -> SampleError:
    first = int(numbers[0])
    return SampleError(
        f"no sample may be longer than max_batch_length={figure(budget)}: sample {first} has "
        f"{figure(lengths[first])} ({len(numbers)} of {len(lengths)} samples are longer); raise "
        "max_batch_length, or give over='alone' or over='skip'"
    )
