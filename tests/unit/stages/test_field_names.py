from __future__ import annotations

import pytest

import penstock as wds
from penstock.errors import SampleError


def test_the_first_of_the_alternatives_counts():
    assert wds.getfirst({"b": 1, "c": 2}, "a;c;b") == 2
    assert wds.getfirst({"b": 1}, ["a", "b"]) == 1


def test_a_missing_field_is_an_error_or_the_default():
    with pytest.raises(SampleError, match=r"didn't find \['a'\] in \['b'\]"):
        wds.getfirst({"b": 1}, "a")
    assert wds.getfirst({"b": 1}, "a", default=7, missing_is_error=False) == 7
