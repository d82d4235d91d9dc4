"""Orders of an indexed data set."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import PipelineError, ShardWriter, StateError
from penstock.datasets.indexed_dataset import IndexedDataset
from penstock.datasets.samplers.chunked import (
    ChunkedSampler,
    ChunkOrder,
    DistributedChunkedSampler,
    ShardListSampler,
)

MAKERS: list[Callable[[Any], ChunkOrder]] = [
    lambda data: ChunkedSampler(data, chunksize=7, shufflefirst=True),
    lambda data: ChunkedSampler(data, chunksize=7, shuffle=False),
    lambda data: ChunkedSampler(data, chunksize=4, num_samples=(5, 31)),
    lambda data: DistributedChunkedSampler(data, chunksize=6, num_replicas=3, rank=1),
]


@pytest.mark.parametrize("make", MAKERS)
def test_every_epoch_has_every_sample_once_in_its_own_order(make: Any) -> None:
    sampler = make(range(50))
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == sorted(set(first))
    assert len(sampler) == len(first)
    assert (first == second) == (not sampler.shuffle)
    again = make(range(50))
    again.set_epoch(1)
    assert list(again) == second


@pytest.mark.parametrize("make", MAKERS)
@given(steps=st.integers(0, 70))
def test_a_state_goes_on_where_it_was_taken(make: Any, steps: int) -> None:
    sampler = make(range(50))

    def forever(sampler: ChunkOrder) -> Any:
        while True:
            yield from sampler

    running = forever(sampler)
    taken = list(islice(running, steps))
    assert len(taken) == steps
    state = sampler.state_dict()
    other = make(range(50))
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert list(islice(forever(other), 60)) == list(islice(running, 60))


def test_the_first_epoch_keeps_the_chunks_in_order_unless_told_otherwise() -> None:
    order = list(ChunkedSampler(range(40), chunksize=10))
    assert [number // 10 for number in order] == [n // 10 for n in range(40)]
    assert order != list(range(40))


def test_ranks_share_the_data() -> None:
    parts = [
        list(DistributedChunkedSampler(range(11), num_replicas=4, rank=rank)) for rank in range(4)
    ]
    assert sorted(chain(*parts)) == list(range(11))
    assert [len(part) for part in parts] == [3, 3, 3, 2]
    equal = [
        len(DistributedChunkedSampler(range(11), num_replicas=4, rank=rank, drop_last=True))
        for rank in range(4)
    ]
    assert equal == [2, 2, 2, 2]


def test_the_rank_comes_from_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sorted(DistributedChunkedSampler(range(6))) == [3, 4, 5]


def test_a_state_of_another_sampler_is_refused_with_the_difference() -> None:
    state = ChunkedSampler(range(50), seed=1).state_dict()
    with pytest.raises(StateError, match="seed was 1 when it was saved and is 2 now"):
        ChunkedSampler(range(50), seed=2).load_state_dict(state)
    with pytest.raises(StateError, match="chunks was"):
        ChunkedSampler(range(51), seed=1).load_state_dict(state)


def test_shards_stay_together(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/x-%03d.tar", maxcount=4) as sink:
        for number in range(18):
            sink.write({"__key__": str(number), "cls": number})
    dataset = IndexedDataset(f"{tmp_path}/")
    order = list(ShardListSampler(dataset, seed=3))
    shards = [number // 4 for number in order]
    assert sorted(order) == list(range(18))
    assert sum(a != b for a, b in pairwise(shards)) == 4
    assert shards != sorted(shards)


def test_arguments_that_cannot_work_are_told() -> None:
    with pytest.raises(PipelineError, match="chunksize=0"):
        ChunkedSampler(range(5), chunksize=0)
    with pytest.raises(PipelineError, match="num_samples must be within the 5 samples, not 6"):
        ChunkedSampler(range(5), num_samples=6)
    with pytest.raises(PipelineError, match="rank 2 of 2"):
        DistributedChunkedSampler(range(5), num_replicas=2, rank=2)
    with pytest.raises(PipelineError, match="IndexedDataset"):
        ShardListSampler(range(5))
