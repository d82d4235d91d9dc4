from __future__ import annotations

import copy
import random

import numpy as np
import pytest

import penstock as wds
from penstock.errors import PipelineError, SampleError


def test_none_drops_the_sample():
    assert list(wds.map(lambda x: x or None)([0, 1, 2])) == [1, 2]


def test_a_dict_keeps_the_key_of_the_dict_it_was_made_of():
    stage = wds.map(lambda sample: {"__key__": "other", "n": 1})
    assert list(stage([{"__key__": "a"}, {}])) == [
        {"__key__": "a", "n": 1},
        {"__key__": None, "n": 1},
    ]
    assert list(wds.map(lambda sample: {"n": 1})([3])) == [{"n": 1}]
    assert list(wds.map(lambda sample: 7)([{"__key__": "a"}])) == [7]


def test_map_needs_a_function():
    with pytest.raises(PipelineError, match="needs a function, not 3"):
        wds.map(3)


def test_map_dict_changes_the_named_fields():
    stage = wds.map_dict(cls=int, txt=bytes.decode)
    assert list(stage([{"cls": b"3", "txt": b"x", "jpg": b"y"}])) == [
        {"cls": 3, "txt": "x", "jpg": b"y"}
    ]


def test_map_dict_tells_of_a_missing_field_and_needs_one():
    with pytest.raises(KeyError, match="cls"):
        list(wds.map_dict(cls=int)([{"txt": b""}]))
    stage = wds.map_dict(cls=int, handler=wds.ignore_and_continue)
    assert list(stage([{"txt": b""}, {"cls": b"1"}, {"cls": b"x"}])) == [{"cls": 1}]
    with pytest.raises(PipelineError, match="at least one"):
        wds.map_dict()


def test_map_tuple_changes_places():
    assert list(wds.map_tuple(str, None)([(1, 2, 3)])) == [("1", 2, 3)]
    assert list(wds.map_tuple(str, str, str)([[1, 2]])) == [("1", "2")]
    assert list(wds.map_tuple()([(1,)])) == [(1,)]


def test_map_tuple_needs_tuples():
    with pytest.raises(SampleError, match="needs tuples, not dict"):
        list(wds.map_tuple(str)([{"a": 1}]))
    stage = wds.map_tuple(int, handler=wds.ignore_and_stop)
    assert list(stage([("1",), ("x",), ("2",)])) == [(1,)]


def noise(value, rng):
    return value + float(rng.normal())


def global_noise(value):
    return value + random.random() + float(np.random.rand())


RANDOM_STAGES = {
    "map_tuple, generator": (lambda: wds.map_tuple(noise, None, rng=True), (1.0, 2.0)),
    "map_tuple, global": (lambda: wds.map_tuple(global_noise, None, rng="global"), (1.0, 2.0)),
    "map_dict, generator": (lambda: wds.map_dict(x=noise, rng=True), {"x": 1.0}),
    "map_dict, global": (lambda: wds.map_dict(x=global_noise, rng="global"), {"x": 1.0}),
}


@pytest.mark.parametrize("name", RANDOM_STAGES)
def test_random_functions_repeat_and_leave_the_global_generators_alone(name):
    make, item = RANDOM_STAGES[name]
    first = list(wds.DataPipeline([copy.copy(item) for _ in range(4)], make()))
    assert len({str(result) for result in [item, *first]}) == 5
    random.seed(3), np.random.seed(3)
    changed = random.getstate(), np.random.get_state()[1].tolist()
    assert list(wds.DataPipeline([copy.copy(item) for _ in range(4)], make())) == first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == changed


@pytest.mark.parametrize("stage", [wds.map_tuple, wds.map_dict])
def test_an_unknown_rng_is_refused(stage):
    with pytest.raises(PipelineError, match=r"rng is True, False or 'global', not 'numpy'"):
        stage(rng="numpy", **({"x": int} if stage is wds.map_dict else {}))
