from __future__ import annotations

import os
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as wds
from penstock.errors import PipelineError


def at(rank=0, world_size=1, worker=0, num_workers=1):
    """As if this process were that worker of that rank."""
    place = {"RANK": rank, "WORLD_SIZE": world_size, "WORKER": worker, "NUM_WORKERS": num_workers}
    return mock.patch.dict(os.environ, {name: str(value) for name, value in place.items()})


def test_the_splits_work_called_uncalled_and_on_an_iterable():
    with at(1, 3, 0, 2):
        for split in (wds.split_by_node, wds.split_by_node()):
            assert list(wds.DataPipeline(range(10), split)) == [1, 4, 7]
        assert list(wds.split_by_node(range(10))) == [1, 4, 7]
        assert list(wds.split_by_node(range(10), group=None)) == [1, 4, 7]
        assert list(wds.split_by_worker(range(5))) == [0, 2, 4]


def test_without_ranks_and_workers_all_is_ours():
    pipeline = wds.DataPipeline(range(4), wds.split_by_node, wds.split_by_worker)
    assert list(pipeline) == [0, 1, 2, 3]


def test_several_ranks_ask_for_a_decision():
    assert list(wds.single_node_only(range(3))) == [0, 1, 2]
    with at(0, 2), pytest.raises(PipelineError, match=r"2 ranks.*explicit nodesplitter"):
        list(wds.DataPipeline(range(3), wds.single_node_only))


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(0, 40),
    ranks=st.integers(1, 6),
    workers=st.integers(1, 5),
    bufsize=st.integers(0, 50),
    epoch=st.integers(0, 3),
)
def test_any_split_covers_every_item_exactly_once(count, ranks, workers, bufsize, epoch):
    found = []
    for rank in range(ranks):
        for worker in range(workers):
            pipeline = wds.DataPipeline(
                range(count), wds.shuffle(bufsize), wds.split_by_node, wds.split_by_worker
            )
            pipeline.set_epoch(epoch)
            with at(rank, ranks, worker, workers):
                found += list(pipeline)
    assert sorted(found) == list(range(count))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([None, 3, 100]), st.booleans())
def test_any_split_of_shards_covers_every_sample_exactly_once(
    made_shards, ranks, workers, shardshuffle, nodes_first
):
    found = []
    for rank in range(ranks):
        for worker in range(workers):
            splits = [wds.split_by_node, wds.split_by_worker]
            dataset = wds.WebDataset(
                made_shards,
                shardshuffle=shardshuffle,
                nodesplitter=splits[not nodes_first],
                workersplitter=splits[nodes_first],
                empty_check=False,
            ).shuffle(7)
            with at(rank, ranks, worker, workers):
                found += [int(sample["cls"]) for sample in dataset]
    assert sorted(found) == list(range(21))


@pytest.fixture(scope="module")
def made_shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    for number in range(7):
        with wds.TarWriter(str(folder / f"{number}.tar")) as sink:
            for n in range(3):
                sink.write({"__key__": f"{number}-{n}", "cls": 3 * number + n})
    return [str(folder / f"{number}.tar") for number in range(7)]
