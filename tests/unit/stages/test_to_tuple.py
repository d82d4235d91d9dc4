from __future__ import annotations

import pytest

import penstock as wds
from penstock.errors import PipelineError, SampleError

SAMPLE = {"__key__": "a", "png": 1, "cls": 2, "seg.png": 3, "none": None}


def taken(*args, **options):
    return list(wds.to_tuple(*args, **options)([SAMPLE]))


def test_fields_are_named_one_by_one_or_in_one_string():
    assert (
        taken("jpg;png", "cls") == taken("jpg;png cls") == taken(["jpg", "png"], "cls") == [(1, 2)]
    )
    assert taken("cls") == [(2,)]
    assert taken("__key__") == [("a",)]
    assert taken() == [()]


def test_a_missing_field_is_an_error_unless_allowed():
    with pytest.raises(SampleError, match=r"didn't find \['jpg'\] in \['__key__', 'png'"):
        taken("jpg")
    assert taken("jpg", "cls", missing_is_error=False) == [(None, 2)]
    assert taken("jpg", handler=wds.ignore_and_continue) == []
    assert issubclass(SampleError, ValueError)


def test_none_is_an_error_unless_allowed():
    with pytest.raises(SampleError, match="the field 'none' is None"):
        taken("cls", "none")
    assert taken("none", none_is_error=False) == [(None,)]
    assert taken("none", missing_is_error=False) == [(None,)]
    with pytest.raises(SampleError, match="is None"):
        taken("jpg", missing_is_error=False, none_is_error=True)


def test_two_ways_to_name_fields_do_not_mix():
    with pytest.raises(PipelineError, match="one string with spaces"):
        wds.to_tuple("a b", "c")


def test_arrays_are_not_compared():
    import numpy as np

    assert len(list(wds.to_tuple("x")([{"x": np.zeros(3)}]))) == 1


def extracted(*args, **options):
    return list(wds.extract_keys(*args, **options)([SAMPLE]))


def test_patterns_match_with_and_without_the_dot():
    assert extracted("*.cls", "seg.*") == extracted("cls", "*.seg.png") == [(2, 3)]
    assert extracted("*.gif;*.cls") == [(2,)]


def test_each_pattern_must_match_one_field():
    with pytest.raises(SampleError, match=r"match several fields: \['png', 'seg\.png'\]"):
        extracted("*.png")
    assert extracted("*.png", duplicate_is_error=False) == [(1,)]
    with pytest.raises(SampleError, match="match no field"):
        extracted("*.gif")
    assert extracted("*.gif", "cls", ignore_missing=True) == [(2,)]
