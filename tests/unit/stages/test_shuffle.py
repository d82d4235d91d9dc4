from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as wds
from penstock.errors import PipelineError


def test_the_first_epoch_with_a_seed_is_that_of_webdataset():
    assert list(wds.shuffle(bufsize=10, initial=5, seed=0)(iter(range(20)))) == [
        3, 7, 8, 0, 4, 12, 10, 9, 13, 15, 6, 5, 2, 18, 1, 11, 16, 14, 17, 19,
    ]  # fmt: skip
    assert list(wds.shuffle(bufsize=2, seed=0)(range(6))) == [1, 2, 0, 4, 5, 3]
    assert list(wds.shuffle(seed=0)(range(1000)))[:5] == [49, 97, 53, 5, 33]


def test_the_epochs_of_detshuffle_are_those_of_webdataset():
    stage = wds.detshuffle(5)
    assert list(stage(range(10))) == [3, 4, 0, 2, 8, 5, 9, 1, 7, 6]
    assert list(stage(range(10))) == [1, 5, 0, 2, 6, 3, 9, 4, 7, 8]
    pipeline = wds.DataPipeline(range(10), wds.detshuffle(5))
    assert list(pipeline) == [3, 4, 0, 2, 8, 5, 9, 1, 7, 6]
    assert list(pipeline) == [1, 5, 0, 2, 6, 3, 9, 4, 7, 8]


def test_in_a_pipeline_only_its_epoch_counts_for_detshuffle():
    stage = wds.detshuffle(5)
    one, other = wds.DataPipeline(range(10), stage), wds.DataPipeline(range(10), stage)
    assert list(one) == list(other)
    second = list(one)
    one.set_epoch(1)
    assert list(one) == second == list(other)


@given(st.integers(0, 60), st.integers(0, 20), st.integers(0, 20), st.integers(0, 3))
def test_a_shuffle_gives_every_item_once(count, bufsize, initial, seed):
    found = list(wds.shuffle(bufsize, initial, seed=seed)(range(count)))
    assert sorted(found) == list(range(count))
    # An item cannot come before it has entered the buffer, which takes two for each one given.
    for place, item in enumerate(found):
        assert item <= max(initial, 1) + 2 * place + 1


def test_small_buffers_change_nothing():
    assert list(wds.shuffle(0)(range(9))) == list(wds.shuffle(1)(range(9))) == list(range(9))


def test_every_epoch_has_an_order_of_its_own_fixed_by_the_seed():
    def epochs(seed):
        pipeline = wds.DataPipeline(range(50), wds.shuffle(50), seed=seed)
        return [list(pipeline) for _ in range(3)]

    first = epochs(1)
    assert first == epochs(1)
    assert first != epochs(2)
    assert first[0] != first[1] != first[2]


def test_two_shuffles_of_one_pipeline_differ():
    once = list(wds.DataPipeline(range(50), wds.shuffle(50)))
    twice = list(wds.DataPipeline(range(50), wds.shuffle(50), wds.shuffle(50)))
    assert once != twice


def test_a_generator_of_ones_own_is_used_as_it_comes():
    rng = random.Random(7)
    stage = wds.shuffle(20, rng=rng)
    first, second = list(stage(range(20))), list(stage(range(20)))
    assert first != second
    assert list(wds.shuffle(20, rng=random.Random(7))(range(20))) == first


def test_a_seed_and_a_generator_together_are_refused():
    with pytest.raises(PipelineError, match="a seed or an rng"):
        wds.shuffle(rng=random.Random(), seed=1)


def test_size_is_another_name_of_bufsize():
    assert list(wds.shuffle(size=2, seed=0)(range(6))) == [1, 2, 0, 4, 5, 3]


def test_epoch_of_detshuffle_follows_the_pipeline():
    pipeline = wds.DataPipeline(range(20), wds.detshuffle(10))
    assert pipeline.stage(1).epoch == -1
    list(pipeline)
    list(pipeline)
    assert pipeline.stage(1).epoch == 1
    pipeline.set_epoch(5)
    list(pipeline)
    assert pipeline.stage(1).epoch == 5
