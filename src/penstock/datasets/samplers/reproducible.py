"""The random orders of torch's samplers, as functions of the seed and the epoch.

SpeechBrain's names, arguments and orders. Each sampler has a separate generator: an order neither
depends on the global generators nor changes them.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np

from penstock.batches.padding.pad import torch_module
from penstock.datasets.samplers.base import PlannedOrder, torch_generator, torch_permutation
from penstock.errors import PipelineError

Numbers = np.ndarray[Any, np.dtype[Any]]

BLOCK = 65_536
"""Numbers converted to Python integers at a time."""
MOST_WEIGHTS = 2**24
"""Maximum number of weights of torch.multinomial."""


class RandomOrder(PlannedOrder):
    """Sample numbers in an order that is drawn with seed + epoch; the base class."""

    def __init__(self, samples: int, num_samples: int, seed: int, epoch: int) -> None:
        super().__init__(epoch)
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise PipelineError(f"num_samples must be at least 1, not {num_samples!r}")
        self.samples, self.num_samples, self.seed = samples, num_samples, int(seed)

    def __len__(self) -> int:
        return self.num_samples

    def _pass(self, begin: int) -> Iterator[int]:
        order = self.plan()
        for start in range(begin, len(order), BLOCK):
            yield from order[start : start + BLOCK].tolist()  # type: ignore[attr-defined]

    def order_identity(self) -> dict[str, Any]:
        return {"seed": self.seed, "samples": self.samples, "num_samples": self.num_samples}


class ReproducibleRandomSampler(RandomOrder):
    """torch's ``RandomSampler`` with an order that depends only on ``seed`` + ``epoch``.

    ``replacement`` and ``num_samples`` are torch's. Each pass is a new epoch, also without
    ``set_epoch``. An empty data source raises a :class:`~penstock.errors.PipelineError`.

    >>> sampler = ReproducibleRandomSampler("abcde")
    >>> list(sampler), list(sampler)
    ([2, 4, 1, 0, 3], [2, 4, 1, 3, 0])
    """

    def __init__(
        self,
        data_source: Sized,
        seed: int = 563375142,
        epoch: int = 0,
        *,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: None = None,
    ) -> None:
        _refuse_generator(generator)
        if not len(data_source):
            raise PipelineError("there is nothing to order: the data source is empty")
        count = len(data_source) if num_samples is None else num_samples
        super().__init__(len(data_source), count, seed, epoch)
        self.data_source, self.replacement = data_source, replacement

    def _plan(self, epoch: int) -> Any:
        generator = torch_generator(self.seed + epoch)
        if self.replacement:
            import torch

            size = (self.num_samples,)
            return torch.randint(self.samples, size, dtype=torch.int64, generator=generator).numpy()
        rounds = -(-self.num_samples // self.samples)
        orders = [torch_permutation(self.samples, generator) for _ in range(rounds)]
        order = orders[0] if rounds == 1 else np.concatenate(orders)
        return order[: self.num_samples]

    def order_identity(self) -> dict[str, Any]:
        return {**super().order_identity(), "replacement": self.replacement}


class ReproducibleWeightedRandomSampler(RandomOrder):
    """torch's ``WeightedRandomSampler`` with draws that depend only on ``seed`` + ``epoch``.

    ``weights`` has a non-negative number for each sample; they need not sum to one. Each pass is a
    new epoch. Invalid weights raise a :class:`~penstock.errors.PipelineError`.

    >>> sampler = ReproducibleWeightedRandomSampler([0.1, 0.9, 0, 3], 5, replacement=True)
    >>> list(sampler), list(sampler)
    ([3, 1, 3, 3, 3], [3, 3, 3, 3, 3])
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool,
        seed: int = 129491412,
        epoch: int = 0,
        *,
        generator: None = None,
    ) -> None:
        _refuse_generator(generator)
        found: Numbers = np.array(weights, np.float64)
        _check_weights(found)
        self.weights = torch_module().from_numpy(found)  # a tensor, as torch's sampler has
        super().__init__(len(found), num_samples, seed, epoch)
        drawable = int(np.count_nonzero(found))
        if not replacement and num_samples > drawable:
            raise PipelineError(
                f"{num_samples} different samples cannot be drawn from {drawable} with a weight "
                "above 0: give replacement=True or a smaller num_samples"
            )
        self.replacement = replacement

    def _plan(self, epoch: int) -> Any:
        generator = torch_generator(self.seed + epoch)
        import torch

        drawn = torch.multinomial(
            self.weights, self.num_samples, self.replacement, generator=generator
        )
        return drawn.numpy()

    def order_identity(self) -> dict[str, Any]:
        digest = zlib.crc32(np.ascontiguousarray(self.weights).data)
        return {**super().order_identity(), "replacement": self.replacement, "weights": digest}


class BalancingDataSampler(ReproducibleWeightedRandomSampler):
    """Draws samples so that every value of ``key`` is about equally frequent.

    A sample's weight is one over the number of samples with its value. The values come from the
    data set's column of that name if it has one, and otherwise from reading every sample.

    >>> class Rows:
    ...     def column(self, name): return np.array(["A", "A", "B"])
    ...     def __len__(self): return 3
    >>> sampler = BalancingDataSampler(Rows(), "category", num_samples=10)
    >>> sampler.weights.tolist(), list(sampler)
    ([0.5, 0.5, 1.0], [2, 2, 1, 2, 2, 0, 1, 1, 1, 2])
    """

    def __init__(
        self,
        dataset: Any,
        key: str,
        num_samples: int | None = None,
        replacement: bool = True,
        seed: int = 563375142,
        epoch: int = 0,
        *,
        generator: None = None,
    ) -> None:
        self.dataset, self.key = dataset, key
        counts = _count_classes(_collect_values(dataset, key))
        # 32 bits as in SpeechBrain, so that the draws are the same.
        weights = np.float32(1) / counts.astype(np.float32)
        super().__init__(
            weights, num_samples or len(dataset), replacement, seed, epoch, generator=generator
        )


def _collect_values(dataset: Any, key: str) -> Any:
    if hasattr(dataset, "column"):
        return dataset.column(key)
    if hasattr(dataset, "output_keys_as"):
        with dataset.output_keys_as([key]):
            return [sample[key] for sample in dataset]
    return [sample[key] for sample in (dataset[number] for number in range(len(dataset)))]


def _count_classes(values: Any) -> Numbers:
    """Return for each sample the number of samples with the same value."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        _, classes, counts = np.unique(values, return_inverse=True, return_counts=True)
        return counts[classes]
    counted = Counter(values)
    return np.array([counted[value] for value in values], np.int64)


def _check_weights(weights: Numbers) -> None:
    if weights.ndim != 1 or not len(weights):
        raise PipelineError(f"weights are one number per sample, not an array of {weights.shape}")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        number = int(np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[0])
        raise PipelineError(
            f"weights must be finite and not negative: sample {number} has {weights[number]}"
        )
    if not weights.any():
        raise PipelineError("all weights are 0: nothing can be drawn")
    if len(weights) > MOST_WEIGHTS:
        raise PipelineError(
            f"torch draws from at most {MOST_WEIGHTS:,} weights, and there are {len(weights):,}"
        )


def _refuse_generator(generator: Any) -> None:
    if generator is not None:
        raise PipelineError("the sampler has its own generator: give seed= instead")
