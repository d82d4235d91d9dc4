from __future__ import annotations

import pytest

import penstock as wds
from penstock.errors import PipelineError, SampleError

SAMPLE = {"__key__": "a", "png": 1, "jpg": 2, "cls": 3}


def test_the_first_old_name_that_is_there_counts_and_all_of_them_go():
    assert list(wds.rename(image="gif;jpg;png", label=["cls"])([SAMPLE])) == [
        {"__key__": "a", "image": 2, "label": 3}
    ]


def test_without_keep_everything_else_is_dropped():
    assert list(wds.rename(keep=False, label="cls")([SAMPLE])) == [{"label": 3}]


def test_the_sample_itself_stays_as_it_was():
    sample = dict(SAMPLE)
    list(wds.rename(label="cls")([sample]))
    assert sample == SAMPLE


def test_a_missing_name_is_an_error_or_the_handlers_matter():
    with pytest.raises(SampleError, match=r"didn't find \['gif'\]"):
        list(wds.rename(image="gif")([SAMPLE]))
    assert list(wds.rename(image="gif", handler=wds.ignore_and_continue)([SAMPLE])) == []


def test_patterns_rename_and_the_last_that_matches_counts():
    assert list(wds.rename_keys(image="*.jpg", label="cls")([{"x/Big.JPG": 1, "cls": 2}])) == [
        {"image": 1, "label": 2}
    ]
    both = wds.rename_keys(("any", "*g"), ("image", "jpg"))
    assert list(both([{"jpg": 1, "png": 2}])) == [{"image": 1, "any": 2}]


def test_fields_that_match_nothing_go_unless_kept():
    assert list(wds.rename_keys(label="cls")([SAMPLE])) == [{"label": 3}]
    assert list(wds.rename_keys(label="cls", keep_unselected=True)([SAMPLE])) == [
        {"__key__": "a", "png": 1, "jpg": 2, "label": 3}
    ]


def test_patterns_must_match_and_must_not_collide():
    with pytest.raises(SampleError, match=r"\['\*\.gif'\] match no field"):
        list(wds.rename_keys(image="*.gif")([SAMPLE]))
    assert list(wds.rename_keys(image="*.gif", must_match=False)([SAMPLE])) == [{}]
    with pytest.raises(SampleError, match=r"two fields .* become 'image'"):
        list(wds.rename_keys(image="*g")([SAMPLE]))
    loose = wds.rename_keys(image="*g", duplicate_is_error=False)
    assert list(loose([SAMPLE])) == [{"image": 2}]
    with pytest.raises(PipelineError, match="at least one"):
        wds.rename_keys()
