from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import penstock as wds
from penstock.errors import UrlError

TWENTY = [str(n) for n in range(20)]


def urls(source):
    return [shard["url"] for shard in source]


def test_shards_come_in_the_order_given():
    assert urls(wds.SimpleShardList("a-{00..02}.tar::b.tar")) == [
        "a-00.tar", "a-01.tar", "a-02.tar", "b.tar",
    ]  # fmt: skip
    assert urls(wds.SimpleShardList(["b.tar", Path("a.tar")])) == ["b.tar", "a.tar"]
    assert len(wds.SimpleShardList(TWENTY)) == 20


def test_the_first_order_of_a_seed_is_that_of_webdataset_and_then_another():
    shards = wds.SimpleShardList(TWENTY, seed=3)
    first = urls(shards)
    assert first[:6] == ["8", "3", "6", "5", "15", "16"]
    second = urls(shards)
    assert sorted(second) == sorted(first)
    assert second != first
    again = wds.SimpleShardList(TWENTY, seed=3)
    assert [urls(again), urls(again)] == [first, second]


def test_assigned_seed_gives_its_own_order_whatever_the_epoch():
    ten = [str(n) for n in range(10)]
    pipeline = wds.DataPipeline(wds.SimpleShardList(ten), wds.split_by_worker)
    assert urls(pipeline)[0] == "0"
    pipeline.stage(0).seed = 17
    assert urls(pipeline)[0] == "7"
    assert urls(pipeline) == urls(wds.SimpleShardList(ten, seed=17))
    assert repr(pipeline.stage(0)).endswith("seed=17)")
    assert pipeline.state_dict()["stages"][0] == "SimpleShardList(seed=17)"


def test_a_generator_of_urls_is_read_once_and_travels():
    for made in (
        wds.SimpleShardList(url for url in TWENTY),
        wds.SimpleShardList(urls=(url for url in TWENTY)),
        pickle.loads(pickle.dumps(wds.SimpleShardList(iter(TWENTY)))),
    ):
        assert urls(made) == TWENTY == urls(made)
        assert made == wds.SimpleShardList(TWENTY)


@pytest.mark.parametrize("nothing", ["", [], iter([])])
def test_an_empty_list_is_told(nothing):
    with pytest.raises(UrlError):
        wds.SimpleShardList(nothing)
