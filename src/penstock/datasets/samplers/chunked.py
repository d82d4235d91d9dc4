"""Orders to read an indexed data set in, for the ``sampler=`` of torch's ``DataLoader``.

All three read the data chunk by chunk, so that consecutive reads are close together: the chunks in
random order, and the samples of each chunk in random order. Epochs and states are those of
:mod:`penstock.datasets.samplers.base`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence, Sized
from typing import Any

from penstock.context import Context, current_context
from penstock.datasets.samplers.base import EpochOrder
from penstock.errors import PipelineError

Chunk = tuple[int, int]


class ChunkOrder(EpochOrder):
    """Chunks in random order, and samples in random order inside each; the base class.

    ``shufflefirst=False`` keeps the chunks of epoch 0 in order: the first pass fills caches,
    which is fastest in order.

    >>> order = ChunkOrder([(0, 3), (3, 5)], seed=1, shufflefirst=True)
    >>> sorted(order) == [0, 1, 2, 3, 4], order.epoch
    (True, 1)
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        super().__init__()
        self.chunks = list(chunks)
        self.seed, self.shuffle, self.shufflefirst = seed, shuffle, shufflefirst

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.chunks)

    def _pass(self, begin: int) -> Iterator[int]:
        order = self._order_chunks()
        sizes = [self.chunks[number][1] - self.chunks[number][0] for number in order]
        ends = list(itertools.accumulate(sizes))
        first = bisect.bisect_right(ends, begin)
        skip = begin - (ends[first - 1] if first else 0)
        for number in order[first:]:
            yield from self._order_chunk(number)[skip:]
            skip = 0

    def _order_chunks(self) -> list[int]:
        order = list(range(len(self.chunks)))
        if self.shuffle and (self.epoch > 0 or self.shufflefirst):
            Context(self.seed, self.epoch).rng("chunks").shuffle(order)
        return order

    def _order_chunk(self, number: int) -> Sequence[int]:
        start, stop = self.chunks[number]
        if not self.shuffle:
            return range(start, stop)
        samples = list(range(start, stop))
        Context(self.seed, self.epoch).rng("chunk", number).shuffle(samples)
        return samples

    def order_identity(self) -> dict[str, Any]:
        span = [self.chunks[0][0], self.chunks[-1][1]] if self.chunks else []
        return {
            "seed": self.seed,
            "shuffle": [self.shuffle, self.shufflefirst],
            "chunks": [len(self.chunks), *span],
            "samples": sum(stop - start for start, stop in self.chunks),
        }


class ShardListSampler(ChunkOrder):
    """Reads shard by shard: the shards in random order, the samples of each in random order.

    >>> import os, tempfile, penstock
    >>> from penstock.datasets.indexed_dataset import IndexedDataset
    >>> folder = tempfile.mkdtemp()
    >>> with penstock.ShardWriter(os.path.join(folder, "x-%03d.tar"), maxcount=2) as sink:
    ...     for i in range(6):
    ...         size = sink.write({"__key__": f"s{i}", "cls": i})
    >>> order = list(ShardListSampler(IndexedDataset(folder + "/")))
    >>> sorted(order), {order[0] // 2 == order[1] // 2, order[2] // 2 == order[3] // 2}
    ([0, 1, 2, 3, 4, 5], {True})
    """

    def __init__(self, dataset: Any, *, seed: int = 0, shuffle: bool = True) -> None:
        if not hasattr(dataset, "runs"):
            raise PipelineError(f"this sampler takes an IndexedDataset, not {dataset!r}")
        super().__init__(dataset.runs(), seed=seed, shuffle=shuffle, shufflefirst=True)


ShardedSampler = ShardListSampler


class ChunkedSampler(ChunkOrder):
    """Reads chunks of ``chunksize`` samples, among the first ``num_samples`` or within (lo, hi).

    ``dslength_per_replica``, if set, is returned by ``len`` instead of the true number.

    >>> sorted(ChunkedSampler(range(10), num_samples=(2, 6), chunksize=3))
    [2, 3, 4, 5]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        dslength_per_replica: int = -1,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        if num_samples is None:
            num_samples = len(dataset)
        low, high = (0, num_samples) if isinstance(num_samples, int) else num_samples
        if not 0 <= low <= high <= len(dataset):
            raise PipelineError(
                f"num_samples must be within the {len(dataset)} samples, not {num_samples!r}"
            )
        if chunksize < 1:
            raise PipelineError(f"a chunk holds at least one sample, not chunksize={chunksize!r}")
        chunks = [(start, min(start + chunksize, high)) for start in range(low, high, chunksize)]
        super().__init__(chunks, seed=seed, shuffle=shuffle, shufflefirst=shufflefirst)
        self.dslength_per_replica = dslength_per_replica

    def __len__(self) -> int:
        return self.dslength_per_replica if self.dslength_per_replica > 0 else super().__len__()


class DistributedChunkedSampler(ChunkedSampler):
    """A :class:`ChunkedSampler` over this rank's contiguous part of the data.

    The default rank and number of ranks come from torch.distributed or the environment. If the
    samples do not divide evenly, the last rank has fewer; with ``drop_last=True`` every rank has
    the same number, and a few samples at the end are dropped.

    >>> [len(DistributedChunkedSampler(range(10), num_replicas=3, rank=r)) for r in range(3)]
    [4, 4, 2]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        shufflefirst: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        chunksize: int = 1_000_000,
    ) -> None:
        context = current_context()
        world = context.world_size if num_replicas is None else num_replicas
        rank = context.rank if rank is None else rank
        if not 0 <= rank < world:
            raise PipelineError(f"rank {rank} of {world}: ranks go from 0 to {world - 1}")
        count = len(dataset)
        share = count // world if drop_last else -(-count // world)
        part = (min(share * rank, count), min(share * (rank + 1), count))
        super().__init__(
            dataset,
            num_samples=part,
            chunksize=chunksize,
            seed=seed,
            shuffle=shuffle,
            shufflefirst=shufflefirst,
        )
