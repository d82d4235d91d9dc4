from __future__ import annotations

import json
import pickle

import pytest

import penstock as wds
from penstock.errors import DecodingError, PenstockError

SAMPLE = {"__key__": "a", "__url__": "x.tar", "cls": b"3", "json": b'{"n": 1}', "bin": b"raw"}


def test_fields_are_decoded_by_their_extension():
    assert list(wds.decode()([SAMPLE])) == [{**SAMPLE, "cls": 3, "json": {"n": 1}}]


def test_only_some_fields_are_decoded_when_asked():
    for only in ("cls", ["cls"]):
        assert list(wds.decode(only=only)([SAMPLE])) == [{**SAMPLE, "cls": 3}]


def test_ones_own_handlers_come_first():
    def shout(key, data):
        return data.decode().upper() if key == ".bin" else None

    assert next(wds.decode(shout)([SAMPLE]))["bin"] == "RAW"
    handler = wds.handle_extension("bin", len)
    assert next(wds.decode(handler)([SAMPLE]))["bin"] == 3


def test_an_unknown_image_spec_is_told_when_the_stage_is_made():
    with pytest.raises(ValueError, match="foo"):
        wds.decode("foo")


def test_a_field_that_cannot_be_read_says_field_shard_and_sample(shard):
    url = shard([("a", {"cls": b"1"}), ("b", {"cls": b"x"}), ("c", {"cls": b"3"})])
    with pytest.raises(DecodingError, match=r"cls.*x\.tar, sample 'b' at byte 1024") as caught:
        list(wds.WebDataset(url).shuffle(10).decode())
    assert (caught.value.key, caught.value.k, caught.value.url) == ("b", "cls", url)
    for handler, wanted in [
        (wds.ignore_and_continue, [1, 3]),
        (wds.ignore_and_stop, [1]),
        (lambda error: isinstance(error, DecodingError), [1, 3]),
    ]:
        dataset = wds.WebDataset(url).decode(handler=handler)
        assert [sample["cls"] for sample in dataset] == wanted
        assert dataset.skipped == ({"decode": 1} if len(wanted) == 2 else {})
    with pytest.warns(UserWarning, match="sample 'b' at byte 1024"):
        list(wds.WebDataset(url).decode(handler=wds.warn_and_continue))


def test_values_that_are_decoded_already_pass_when_partial():
    with pytest.raises(DecodingError):
        list(wds.decode()([{**SAMPLE, "cls": 3}]))
    assert next(wds.decode(partial=True)([{**SAMPLE, "cls": 3}]))["cls"] == 3


def test_xdecode_gives_streams_to_the_last_pattern_that_matches():
    sample = {"__key__": "a", "a.json": b"[1]", "txt": b"x", "bin": b"y", "pyd": pickle.dumps([2])}
    assert next(wds.xdecode(json=json.load)([sample])) == {
        "__key__": "a", "a.json": [1], "txt": "x", "bin": b"y", "pyd": [2],
    }  # fmt: skip
    stage = wds.xdecode(("*.json", json.load), ("a.*", None), ("*.a.json", False))
    assert next(stage([sample]))["a.json"] == b"[1]"


def test_xdecode_tells_of_fields_it_cannot_read():
    with pytest.raises(DecodingError, match="no decoder for the field 'foo'"):
        list(wds.xdecode()([{"foo": b""}]))
    assert list(wds.xdecode(must_decode=False)([{"foo": b""}])) == [{"foo": b""}]
    with pytest.raises(DecodingError, match=r"cannot read 'json': .*\(x\.tar, sample 'k'\)"):
        list(wds.xdecode(json=json.load)([{"__key__": "k", "__url__": "x.tar", "json": b"["}]))
    stage = wds.xdecode(json=json.load, handler=wds.ignore_and_continue)
    assert list(stage([{"json": b"["}, {"json": b"1"}])) == [{"json": 1}]


def test_xdecode_does_not_run_code_from_pickles():
    evil = b"cos\nsystem\n(S'false'\ntR."
    with pytest.raises(PenstockError):
        list(wds.xdecode()([{"pyd": evil}]))
