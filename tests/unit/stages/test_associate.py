from __future__ import annotations

import pytest

import penstock as wds


def test_a_mapping_adds_what_it_has_for_the_key():
    stage = wds.associate({"a": {"n": 1, "txt": "new"}})
    assert list(stage([{"__key__": "a", "txt": "old"}, {"__key__": "b"}])) == [
        {"__key__": "a", "txt": "new", "n": 1},
        {"__key__": "b"},
    ]


def test_a_function_is_asked_for_the_key():
    assert list(wds.associate(lambda key: {"up": key.upper()})([{"__key__": "a"}])) == [
        {"__key__": "a", "up": "A"}
    ]


def test_a_sample_without_a_key_is_an_error():
    with pytest.raises(KeyError):
        list(wds.associate({})([{"n": 1}]))
