from __future__ import annotations

import pytest

import penstock as wds
from penstock.errors import PipelineError


def test_round_robin_ends_with_the_first_that_ends():
    assert list(wds.RoundRobin([[1, 2, 3], "ab"])) == [1, "a", 2, "b", 3]
    assert list(wds.RoundRobin(["ab", [1, 2, 3]])) == ["a", 1, "b", 2]
    assert list(wds.RoundRobin([[1, 2, 3], "a", "xy"], longest=True)) == [1, "a", "x", 2, "y", 3]


def test_a_random_mix_draws_as_webdataset_does():
    assert "".join(wds.RandomMix(["aaa", "bbbbb"], [0.5, 0.5], seed=0)) == "bbaabab"


def test_a_random_mix_follows_its_weights_and_its_seed():
    def mix(seed, epochs=1):
        pipeline = wds.DataPipeline(wds.RandomMix(["a" * 2000, "b" * 2000], [3, 1], seed=seed))
        return ["".join(pipeline) for _ in range(epochs)]

    (first, second) = mix(1, 2)
    assert [first] == mix(1) != mix(2)
    assert first != second
    assert 0.70 < first[:1000].count("a") / 1000 < 0.80


def test_the_longest_mix_gives_everything():
    mixed = list(wds.RandomMix(["aaa", "bbbbb", ""], longest=True))
    assert sorted(mixed) == list("aaabbbbb")
    assert sorted(wds.RandomMix(["aa", "bb"], [1, 0], longest=True)) == list("aabb")


def test_pipelines_can_be_mixed_and_each_counts_what_it_skipped(shards):
    one = wds.WebDataset(shards(1, 4)).map(lambda sample: 1 / 0, handler=wds.ignore_and_continue)
    mixed = wds.DataPipeline(wds.RoundRobin([one, range(3)], longest=True))
    assert list(mixed) == [0, 1, 2]
    assert one.skipped == {"map": 4}


def test_an_error_behind_a_mix_says_the_sample(shards):
    urls = shards(2, 3)
    mixed = wds.RoundRobin([wds.WebDataset(urls[0]), wds.WebDataset(urls[1])])
    pipeline = wds.DataPipeline(mixed, wds.slice(3, 4), wds.map(lambda sample: 1 / 0))
    with pytest.raises(ZeroDivisionError) as caught:
        list(pipeline)
    assert "d001.tar, sample 's0004' at byte 2048" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: wds.RandomMix([]),
        lambda: wds.RoundRobin([]),
        lambda: wds.RandomMix(["a"], [1, 2]),
        lambda: wds.RandomMix(["a", "b"], [0, 0]),
        lambda: wds.RandomMix(["a", "b"], [-1, 2]),
        lambda: wds.RandomMix(["a"], [float("nan")]),
    ],
)
def test_mixes_that_cannot_work_are_refused(make):
    with pytest.raises(PipelineError):
        make()


def test_the_mock_gives_its_sample_so_many_times():
    assert list(wds.MockDataset({"a": 1}, 3)) == [{"a": 1}] * 3
    assert list(wds.MockDataset({"a": 1}, 0)) == []
