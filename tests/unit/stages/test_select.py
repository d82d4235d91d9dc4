from __future__ import annotations

import pytest

import penstock as wds
from penstock.errors import PipelineError


def test_select_keeps_what_the_predicate_likes():
    assert list(wds.select(lambda x: x % 2)(range(6))) == [1, 3, 5]
    with pytest.raises(TypeError):
        wds.select(lambda x: x, key="a")


def test_select_asks_its_handler():
    stage = wds.select(lambda x: 1 / x, handler=wds.ignore_and_continue)
    assert list(stage([1, 0, 2])) == [1, 2]


@pytest.mark.parametrize("args", [(3,), (2, 5), (1, None), (None,), (0, None, 3), (4, 2)])
def test_slice_is_that_of_itertools(args):
    from itertools import islice

    assert list(wds.slice(*args)(range(10))) == list(islice(range(10), *args))


def test_slice_takes_no_more_than_it_needs():
    source = iter(range(10))
    assert list(wds.slice(3)(source)) == [0, 1, 2]
    assert next(source) == 3


@pytest.mark.parametrize("args", [(), (1, 2, 3, 4)])
def test_slice_needs_one_to_three_numbers(args):
    with pytest.raises(PipelineError, match="one to three"):
        wds.slice(*args)


def test_rsample_keeps_a_part_by_the_seed_and_the_epoch():
    def epochs(seed):
        pipeline = wds.DataPipeline(range(2000), wds.rsample(0.3), seed=seed)
        return [list(pipeline), list(pipeline)]

    first, second = epochs(1)
    assert 480 < len(first) < 720
    assert first == sorted(first) != second
    assert [first, second] == epochs(1) != epochs(2)


def test_rsample_needs_a_probability():
    assert list(wds.rsample(1)(range(3))) == [0, 1, 2]
    assert list(wds.rsample(0)(range(3))) == []
    for p in (-0.1, 1.5, float("nan")):
        with pytest.raises(PipelineError, match="between 0 and 1"):
            wds.rsample(p)
