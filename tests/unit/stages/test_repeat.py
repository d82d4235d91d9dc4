from __future__ import annotations

from itertools import islice

import pytest

import penstock as wds


def test_it_repeats_what_stands_before_and_stages_behind_see_one_stream():
    pipeline = wds.DataPipeline(range(3), wds.repeat(2), wds.listed(4))
    assert list(pipeline) == [[0, 1, 2, 0], [1, 2]]


@pytest.mark.parametrize("nepochs", [-1, 0])
def test_without_a_number_it_never_ends(nepochs):
    assert list(islice(wds.DataPipeline(range(2), wds.repeat(nepochs)), 7)) == [0, 1, 0, 1, 0, 1, 0]


def test_it_ends_after_so_many_items():
    assert list(wds.DataPipeline(range(3), wds.repeat(nbatches=7))) == [0, 1, 2, 0, 1, 2, 0]
    assert list(wds.DataPipeline(range(3), wds.repeat(1, nbatches=2))) == [0, 1]
    assert list(wds.DataPipeline(range(3), wds.repeat(2, nbatches=100))) == [0, 1, 2, 0, 1, 2]


def test_each_pass_has_its_own_order_and_no_epoch_repeats_one():
    pipeline = wds.DataPipeline(range(30), wds.shuffle(30), wds.repeat(3), wds.listed(30))
    passes = [tuple(one) for _ in range(3) for one in pipeline]
    assert len(set(passes)) == 9
    assert all(sorted(one) == list(range(30)) for one in passes)


def test_nothing_is_not_repeated():
    assert list(wds.DataPipeline(range(0), wds.repeat())) == []


def test_skipped_samples_are_counted_in_every_pass():
    mapped = wds.map(lambda x: 1 / x, handler=wds.ignore_and_continue)
    pipeline = wds.DataPipeline(range(2), mapped, wds.repeat(3))
    assert list(pipeline) == [1.0, 1.0, 1.0]
    assert pipeline.skipped == {"map": 3}
