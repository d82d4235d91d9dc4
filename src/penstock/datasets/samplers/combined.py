"""Samplers made from other samplers: batches from several data sets, and each rank's share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from penstock.context import current_context
from penstock.datasets.samplers.base import PlannedOrder, torch_generator, torch_permutation
from penstock.datasets.samplers.planned_batch import PlannedBatchSampler
from penstock.errors import PipelineError
from penstock.stages.run import as_count

Numbers = np.ndarray[Any, np.dtype[Any]]


def list_epoch(sampler: Any, epoch: int, at_most: int | None = None) -> Sequence[Any]:
    """Return all items of a sampler in an epoch; a sampler without a plan is iterated."""
    if isinstance(sampler, PlannedOrder):
        return sampler.plan(epoch)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    return list(islice(sampler, at_most))


class ConcatDatasetBatchSampler(PlannedOrder):
    """Batches of ``batch_sizes[k]`` samples from each data set k of a ``ConcatDataset``.

    ``samplers`` has one sampler for each. The epoch ends with the data set that ends first.
    All samplers that have epochs advance to the next one together.
    Arguments that do not match raise a :class:`~penstock.errors.PipelineError`.

    >>> batches = ConcatDatasetBatchSampler([range(4), range(9)], [1, 2])
    >>> list(batches)
    [[0, 4, 5], [1, 6, 7], [2, 8, 9], [3, 10, 11]]
    """

    def __init__(self, samplers: Sequence[Any], batch_sizes: Sequence[int], epoch: int = 0) -> None:
        super().__init__(epoch)
        for name, value in (("samplers", samplers), ("batch_sizes", batch_sizes)):
            if not isinstance(value, (list, tuple)):
                raise PipelineError(f"{name} must be a list, one for each data set, not {value!r}")
        if len(samplers) != len(batch_sizes) or not samplers:
            raise PipelineError(
                f"each data set needs a sampler and a size: there are {len(samplers)} samplers "
                f"and {len(batch_sizes)} batch_sizes"
            )
        if min(batch_sizes) < 0 or not any(batch_sizes):
            raise PipelineError(f"batch_sizes are numbers of samples, not {list(batch_sizes)}")
        self.samplers, self.batch_sizes = samplers, batch_sizes
        ends = np.cumsum([_count_samples(sampler) for sampler in samplers]).tolist()
        self.offsets = [0, *ends[:-1]]

    def __len__(self) -> int:
        sizes = zip(self.samplers, self.batch_sizes)
        return min(len(sampler) // size for sampler, size in sizes if size)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        for sampler in self.samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def _plan(self, epoch: int) -> Sequence[list[int]]:
        count = len(self)
        parts = []
        for sampler, size, offset in zip(self.samplers, self.batch_sizes, self.offsets):
            taken = list_epoch(sampler, epoch, count * size)[: count * size]
            parts.append(np.asarray(taken, np.int64).reshape(count, size) + offset)
        return _ArrayRows(np.concatenate(parts, axis=1))

    def order_identity(self) -> dict[str, Any]:
        inner = [s._describe() if isinstance(s, PlannedOrder) else len(s) for s in self.samplers]
        return {"batch_sizes": list(self.batch_sizes), "samplers": inner}


class _ArrayRows(Sequence[list[int]]):
    """The rows of an array, as lists."""

    def __init__(self, rows: Numbers) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        found = self.rows[index]
        return found.tolist() if found.ndim == 1 else _ArrayRows(found)


def _count_samples(sampler: Any) -> int:
    """Return the number of samples that a sampler chooses from; it may yield fewer, or more."""
    for name in ("data_source", "weights", "lengths"):
        if hasattr(sampler, name):
            return len(getattr(sampler, name))
    return len(sampler)


class DistributedSamplerWrapper(PlannedOrder):
    """This rank's share of the batches or samples of any sampler.

    Arguments and result are those of torch's ``DistributedSampler``: every rank gets the same
    number, for which the first few items are repeated at the end (``repeated`` of them), or with
    ``drop_last=True`` the last few are dropped (``dropped``). The default rank and number of ranks
    come from torch.distributed or the environment. The wrapped sampler advances to the next epoch
    together with this one, and plans once per epoch.

    A state saved by any rank can be resumed on any number of ranks: the remaining items are
    distributed again.

    An empty sampler, or with ``drop_last`` more ranks than batches, raises a
    :class:`~penstock.errors.PipelineError`: some rank would wait forever.

    >>> shares = [DistributedSamplerWrapper(range(5), 2, rank, shuffle=False) for rank in (0, 1)]
    >>> [list(share) for share in shares], shares[0].repeated
    ([[0, 2, 4], [1, 3, 0]], 1)
    """

    def __init__(
        self,
        sampler: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if isinstance(sampler, PlannedBatchSampler):
            raise PipelineError(
                "a PlannedBatchSampler already splits its batches between ranks: use it without a "
                "wrapper, which would split them again"
            )
        super().__init__(getattr(sampler, "epoch", 0))
        context = current_context()
        self.num_replicas = context.world_size if num_replicas is None else num_replicas
        self.rank = context.rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise PipelineError(f"rank {self.rank} of {self.num_replicas}: ranks count from 0")
        self.sampler, self.shuffle, self.seed = sampler, shuffle, int(seed)
        self.drop_last = drop_last
        self._before = 0  # items yielded in this epoch by a different number of ranks
        if not len(self):
            raise PipelineError(
                f"{len(sampler)} batches cannot be split between {self.num_replicas} ranks"
                + (" with drop_last=True: no rank would get any" if len(sampler) else "")
            )

    def __len__(self) -> int:
        return self._share(len(self.sampler))

    @property
    def repeated(self) -> int:
        """Number of items that are repeated in an epoch, over all ranks."""
        return max(0, len(self) * self.num_replicas - len(self.sampler))

    @property
    def dropped(self) -> int:
        """Number of items that are dropped in an epoch, over all ranks."""
        return max(0, len(self.sampler) - len(self) * self.num_replicas)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self._before = 0
        super().set_epoch(epoch)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def _items(self) -> Iterator[Any]:
        yield from super()._items()
        self._before, self._cached_plan = 0, None

    def _skip_to_next_epoch(self) -> None:
        super()._skip_to_next_epoch()
        self._before, self._cached_plan = 0, None

    def _plan(self, epoch: int) -> Sequence[Any]:
        given = list_epoch(self.sampler, epoch)
        order: Numbers = np.arange(len(given))
        if self.shuffle:
            order = torch_permutation(len(given), torch_generator(self.seed + epoch))
        rest = order[self._before :]
        total = self._share(len(rest)) * self.num_replicas
        return _SelectedItems(given, np.resize(rest, total)[self.rank :: self.num_replicas])

    def _share(self, count: int) -> int:
        """Return the number of items per rank, given their total number."""
        return count // self.num_replicas if self.drop_last else -(-count // self.num_replicas)

    def order_identity(self) -> dict[str, Any]:
        inner = self.sampler
        return {
            "order": [self.shuffle, self.seed, self.drop_last],
            "sampler": inner._describe() if isinstance(inner, PlannedOrder) else len(inner),
        }

    def _at(self) -> dict[str, Any]:
        return {**super()._at(), "before": self._before, "ranks": self.num_replicas}

    def _move_to(self, state: dict[str, Any]) -> None:
        before, ranks = as_count(state["before"]), as_count(state["ranks"])
        super()._move_to(state)
        self._before, self._cached_plan = before, None
        if ranks != self.num_replicas:
            given = before + self._position * ranks
            self._before = min(given, len(self.sampler))
            self._position = self._resume = 0
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)


class _SelectedItems(Sequence[Any]):
    """Items of a sequence, selected by their indices."""

    def __init__(self, items: Sequence[Any], indices: Numbers) -> None:
        self.items, self.indices = items, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _SelectedItems(self.items, self.indices[index])
        found = self.items[self.indices.item(index)]
        return found.item() if isinstance(found, np.generic) else found
