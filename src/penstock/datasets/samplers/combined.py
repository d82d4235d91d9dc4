"""Samplers made of samplers: batches from several data sets, and each rank's share of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from penstock.context import here
from penstock.datasets.samplers.base import PlannedOrder, torch_generator, torch_permutation
from penstock.datasets.samplers.planned_batch import PlannedBatchSampler
from penstock.errors import PipelineError

Numbers = np.ndarray[Any, np.dtype[Any]]


def planned(sampler: Any, epoch: int, at_most: int | None = None) -> Sequence[Any]:
    """All that a sampler gives in an epoch; one of ours is asked, any other is run."""
    if isinstance(sampler, PlannedOrder):
        return sampler.plan(epoch)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    return list(islice(sampler, at_most))


class ConcatDatasetBatchSampler(PlannedOrder):
    """Batches that take ``batch_sizes[k]`` samples from the k-th data set of a ``ConcatDataset``.

    ``samplers`` has one sampler for each. The epoch ends with the data set that is through first.
    All samplers go to the next epoch together, those that have epochs.
    What cannot be put together is a :class:`~penstock.errors.PipelineError`.

    >>> batches = ConcatDatasetBatchSampler([range(4), range(9)], [1, 2])
    >>> list(batches)
    [[0, 4, 5], [1, 6, 7], [2, 8, 9], [3, 10, 11]]
    """

    def __init__(self, samplers: Sequence[Any], batch_sizes: Sequence[int], epoch: int = 0) -> None:
        super().__init__(epoch)
        for name, value in (("samplers", samplers), ("batch_sizes", batch_sizes)):
            if not isinstance(value, (list, tuple)):
                raise PipelineError(f"{name} is a list, one for each data set, not {value!r}")
        if len(samplers) != len(batch_sizes) or not samplers:
            raise PipelineError(
                f"each data set needs a sampler and a size: there are {len(samplers)} samplers "
                f"and {len(batch_sizes)} batch_sizes"
            )
        if min(batch_sizes) < 0 or not any(batch_sizes):
            raise PipelineError(f"batch_sizes are numbers of samples, not {list(batch_sizes)}")
        self.samplers, self.batch_sizes = samplers, batch_sizes
        ends = np.cumsum([_samples_behind(sampler) for sampler in samplers]).tolist()
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
            taken = planned(sampler, epoch, count * size)[: count * size]
            parts.append(np.asarray(taken, np.int64).reshape(count, size) + offset)
        return _Rows(np.concatenate(parts, axis=1))

    def _identity(self) -> dict[str, Any]:
        told = [s._told() if isinstance(s, PlannedOrder) else len(s) for s in self.samplers]
        return {"batch_sizes": list(self.batch_sizes), "samplers": told}


class _Rows(Sequence[list[int]]):
    """The rows of an array, as lists."""

    def __init__(self, rows: Numbers) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        found = self.rows[place]
        return found.tolist() if found.ndim == 1 else _Rows(found)


def _samples_behind(sampler: Any) -> int:
    """How many samples the sampler chooses from; it may give fewer, or more."""
    for name in ("data_source", "weights", "lengths"):
        if hasattr(sampler, name):
            return len(getattr(sampler, name))
    return len(sampler)


class DistributedSamplerWrapper(PlannedOrder):
    """This rank's share of what any sampler gives, batches or samples.

    The arguments are those of torch's ``DistributedSampler``, and so is the result: every rank gets
    equally many, for which the first few are repeated at the end (``repeated`` says how many), or
    with ``drop_last=True`` the last few left out (``dropped``). Ranks and their number come from
    torch.distributed or the variables where they are not given. The wrapped sampler goes to the
    next epoch together with this one, and plans once per epoch.

    A state saved by any rank goes on with any number of ranks: what was not given yet is shared out
    again.

    No batches at all, and with ``drop_last`` more ranks than batches, is a
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
                "a PlannedBatchSampler gives each rank its share itself: use it without a wrapper, "
                "which would share out this rank's batches once more"
            )
        super().__init__(getattr(sampler, "epoch", 0))
        place = here()
        self.num_replicas = place.world_size if num_replicas is None else num_replicas
        self.rank = place.rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise PipelineError(f"rank {self.rank} of {self.num_replicas}: ranks count from 0")
        self.sampler, self.shuffle, self.seed = sampler, shuffle, int(seed)
        self.drop_last = drop_last
        self._before = 0  # items given by another number of ranks, in this epoch
        if not len(self):
            raise PipelineError(
                f"{len(sampler)} batches cannot be shared by {self.num_replicas} ranks"
                + (" with drop_last=True: none would get any" if len(sampler) else "")
            )

    def __len__(self) -> int:
        return self._share(len(self.sampler))

    @property
    def repeated(self) -> int:
        """How many come twice in an epoch, over all ranks."""
        return max(0, len(self) * self.num_replicas - len(self.sampler))

    @property
    def dropped(self) -> int:
        """How many are left out of an epoch."""
        return max(0, len(self.sampler) - len(self) * self.num_replicas)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self._before = 0
        super().set_epoch(epoch)
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self._before, self._kept = 0, None

    def _leave(self) -> None:
        super()._leave()
        self._before, self._kept = 0, None

    def _plan(self, epoch: int) -> Sequence[Any]:
        given = planned(self.sampler, epoch)
        order: Numbers = np.arange(len(given))
        if self.shuffle:
            order = torch_permutation(len(given), torch_generator(self.seed + epoch))
        rest = order[self._before :]
        total = self._share(len(rest)) * self.num_replicas
        return _Chosen(given, np.resize(rest, total)[self.rank :: self.num_replicas])

    def _share(self, count: int) -> int:
        """How many of so many each rank gets."""
        return count // self.num_replicas if self.drop_last else -(-count // self.num_replicas)

    def _identity(self) -> dict[str, Any]:
        inner = self.sampler
        return {
            "order": [self.shuffle, self.seed, self.drop_last],
            "sampler": inner._told() if isinstance(inner, PlannedOrder) else len(inner),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "before": self._before, "ranks": self.num_replicas}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._before, self._kept = int(state["before"]), None
        if state["ranks"] != self.num_replicas:
            given = self._before + int(state["position"]) * int(state["ranks"])
            self._before = min(given, len(self.sampler))
            self._position = self._resume = 0
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(self.epoch)


class _Chosen(Sequence[Any]):
    """Items of a sequence, by their places."""

    def __init__(self, items: Sequence[Any], places: Numbers) -> None:
        self.items, self.places = items, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return _Chosen(self.items, self.places[place])
        found = self.items[self.places.item(place)]
        return found.item() if isinstance(found, np.generic) else found
