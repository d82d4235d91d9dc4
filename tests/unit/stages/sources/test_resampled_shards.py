from __future__ import annotations

from itertools import islice

import pytest

import penstock as wds
from penstock.errors import PipelineError, UrlError

TWENTY = [str(n) for n in range(20)]


def drawn(shards, count=6):
    return [int(shard["url"]) for shard in islice(shards, count)]


def test_deterministic_draws_are_those_of_webdataset():
    shards = wds.ResampledShards(TWENTY, seed=1, deterministic=True)
    assert drawn(shards) == [4, 18, 2, 8, 3, 15]
    assert drawn(shards) == [2, 6, 4, 9, 7, 15]


def test_epoch_is_the_number_of_the_pass_that_began_last():
    shards = wds.ResampledShards(TWENTY)
    assert shards.epoch == -1
    drawn(shards)
    drawn(shards)
    assert shards.epoch == 1
    pipeline = wds.DataPipeline(wds.ResampledShards(TWENTY, nshards=3))
    pipeline.set_epoch(7)
    list(pipeline)
    assert pipeline.stage(0).epoch == 7


def test_draws_never_end_unless_told():
    assert len(drawn(wds.ResampledShards(TWENTY), 1000)) == 1000
    assert len(drawn(wds.ResampledShards(TWENTY, nshards=7), 1000)) == 7


def test_draws_are_fixed_by_the_seed_and_differ_by_epoch_rank_and_worker(monkeypatch):
    def sequence(**places):
        for name, value in places.items():
            monkeypatch.setenv(name, str(value))
        return drawn(wds.ResampledShards(TWENTY, seed=5), 30)

    shards = wds.ResampledShards(TWENTY, seed=5)
    first, second = drawn(shards, 30), drawn(shards, 30)
    assert first == sequence(RANK=0, WORLD_SIZE=2, WORKER=0, NUM_WORKERS=2)
    others = [sequence(RANK=1), sequence(WORKER=1), sequence(RANK=0)]
    assert len({tuple(draws) for draws in [first, second, *others]}) == 5


def test_all_shards_are_drawn_about_as_often():
    counts = [0] * 20
    for number in drawn(wds.ResampledShards(TWENTY), 4000):
        counts[number] += 1
    assert all(120 < count < 290 for count in counts)


def test_what_sets_a_worker_apart_can_be_given():
    one = wds.ResampledShards(TWENTY, worker_seed=lambda: 17)
    other = wds.ResampledShards(TWENTY, worker_seed=lambda: 18)
    assert drawn(one, 20) != drawn(other, 20)


def test_too_many_or_no_urls_are_refused():
    with pytest.raises(PipelineError, match="more than max_urls=3"):
        wds.ResampledShards(TWENTY, max_urls=3)
    with pytest.raises(UrlError):
        wds.ResampledShards([])


def test_resampled_draws_from_what_its_source_gives():
    found = list(wds.DataPipeline(range(5), wds.resampled(100)))
    assert len(found) == 100
    assert set(found) == set(range(5))
    with pytest.raises(PipelineError, match="nothing to draw from"):
        list(wds.resampled(3)([]))


def test_non_empty_lets_items_through_and_tells_of_none():
    assert list(wds.non_empty([1])) == [1]
    with pytest.raises(PipelineError, match="no item at all"):
        list(wds.non_empty([]))
