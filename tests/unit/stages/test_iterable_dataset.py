"""Sources are torch's ``IterableDataset`` s, once torch is loaded."""

from __future__ import annotations

import copy
import pickle

import pytest
from penstock.shardlists import PytorchShardList, ShardList

import penstock as wds

data = pytest.importorskip("torch.utils.data")

URLS = [f"{n}.tar" for n in range(8)]
SOURCES = [
    wds.RandomMix([[1, 2], [3, 4]], longest=True, seed=1),
    wds.RoundRobin([[1, 2], [3, 4]]),
    wds.MockDataset({"cls": 1}, 3),
    wds.SimpleShardList(URLS),
    wds.ResampledShards(URLS, nshards=5),
    PytorchShardList(URLS),
    ShardList(URLS),
    wds.DataPipeline(wds.SimpleShardList(URLS)),
]


def kind(source):
    return type(source).__name__


@pytest.mark.parametrize("source", SOURCES, ids=kind)
def test_source_is_an_iterable_dataset_that_a_dataloader_takes(source):
    assert isinstance(source, data.IterableDataset)
    assert isinstance(source, data.Dataset)
    assert isinstance(source, type(source))
    assert len(list(data.DataLoader(source, batch_size=None))) == len(list(source))


@pytest.mark.parametrize("source", SOURCES, ids=kind)
def test_source_survives_pickle_and_copy(source):
    for again in (pickle.loads(pickle.dumps(source)), copy.copy(source), copy.deepcopy(source)):
        assert type(again) is type(source)
        assert repr(again) == repr(source)
        assert list(again) is not None


def test_mix_of_pipelines_reads_every_sample_once_with_forked_workers(shards):
    sets = [
        wds.DataPipeline(wds.SimpleShardList([url]), wds.split_by_worker, wds.tarfile_to_samples())
        for url in shards(2, 4)
    ]
    mix = wds.RandomMix(sets, longest=True)
    loader = data.DataLoader(mix, batch_size=None, num_workers=2)
    keys = [sample["__key__"] for sample in loader]
    assert sorted(keys) == [f"s{n:04d}" for n in range(8)]


def test_source_has_another_order_each_epoch_in_workers_that_are_forked_anew():
    loader = data.DataLoader(wds.ResampledShards(URLS, nshards=20), batch_size=None, num_workers=1)
    first, second = ([shard["url"] for shard in loader] for _ in range(2))
    assert first != second


def test_cache_with_a_source_is_an_iterable_dataset(tmp_path):
    cache = wds.DBCache(str(tmp_path / "x.db"), 3, source=[{"cls": n} for n in range(3)])
    assert isinstance(cache, data.IterableDataset)
    loader = data.DataLoader(cache, batch_size=None)
    assert [item["cls"] for item in loader] == [0, 1, 2] == [item["cls"] for item in loader]
