from __future__ import annotations

import gzip
import pickle

import numpy as np
import pytest
import torch

from penstock.codecs import DECODERS, Decoder, encode_based_on_extension, make_encoder
from penstock.codecs.encoder import default_handlers
from penstock.errors import MissingPackage, PipelineError, WriteError

encode = make_encoder(True)


def test_bytes_and_text_are_written_as_they_are_whatever_the_extension():
    found = encode(
        {
            "__key__": "k",
            "jpg": b"x",
            "json": "[1]",
            "foo": bytearray(b"y"),
            "bar": memoryview(b"z"),
        }
    )
    assert found == {"__key__": "k", "jpg": b"x", "json": b"[1]", "foo": b"y", "bar": b"z"}


def test_values_are_written_by_the_last_extension_in_any_case():
    assert encode({"__key__": "k", "a.b.JSON": [1]})["a.b.JSON"] == b"[1]"


def test_gz_names_are_packed_unless_they_are_bytes_already():
    found = encode({"__key__": "k", "json.gz": [1], "txt.gz": "hello", "raw.gz": b"as is"})
    assert gzip.decompress(found["json.gz"]) == b"[1]"
    assert gzip.decompress(found["txt.gz"]) == b"hello"
    assert found["raw.gz"] == b"as is"


def test_meta_fields_keep_their_values():
    assert encode({"__key__": "k", "__n__": 3, "_x": None}) == {
        "__key__": "k",
        "__n__": 3,
        "_x": None,
    }


def test_a_sample_comes_back():
    sample = {
        "__key__": "k",
        "cls": 3,
        "json": {"a": [1, None]},
        "txt.gz": "hello",
        "pyd": {1, 2},
        "mp": [1],
        "cbor": {"x": 2.5},
    }
    assert Decoder()(encode(sample)) == sample


def test_arrays_and_tensors_come_back():
    sample = {
        "__key__": "k",
        "npy": np.arange(3),
        "ten": [np.ones(2)],
        "pth": torch.arange(3),
        "npz": {"a": np.ones(2)},
    }
    found = Decoder()(encode(sample))
    assert found["npy"].tolist() == [0, 1, 2]
    assert found["ten"][0].tolist() == [1, 1]
    assert found["pth"].tolist() == [0, 1, 2]
    assert found["npz"]["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("foo", 3, "no encoder for the extension 'foo'"),
        ("txt", 3, "takes str, not int"),
        ("json", object(), "TypeError"),
        ("jpg", np.full((2, 2), 7.0), "from 0 to 1"),
        ("jpg", np.zeros((2, 2, 4), np.uint8), "RGBA"),
        ("npy", np.array([None]), "objects"),
        ("pyd", lambda: 0, "pickle"),
        ("wav", [1, 2, 3], "rate"),
    ],
)
def test_what_cannot_be_written_names_key_field_and_cause(field, value, cause):
    with pytest.raises(WriteError) as caught:
        encode({"__key__": "the-key", field: value})
    assert "'the-key'" in str(caught.value)
    assert repr(field) in str(caught.value)
    assert cause in str(caught.value)


def test_a_missing_package_passes_as_it_is(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cbor2", None)
    with pytest.raises(MissingPackage):
        encode({"__key__": "k", "cbor": 1})


@pytest.mark.parametrize("spec", [False, None])
def test_no_encoder_means_the_sample_as_it_is(spec):
    sample = {"__key__": "k", "cls": 3}
    assert make_encoder(spec)(sample) is sample


def test_a_dict_holds_the_only_encoders():
    encoder = make_encoder({"foo": lambda value: b"%d" % value})
    assert encoder({"__key__": "k", "foo": 3})["foo"] == b"3"
    with pytest.raises(WriteError, match="no encoder for the extension 'cls'"):
        encoder({"__key__": "k", "cls": 3})
    both = {**default_handlers, "foo": lambda value: b"!"}
    assert encode_based_on_extension({"foo": 1, "cls": 2}, both) == {"foo": b"!", "cls": b"2"}


def test_a_function_of_the_sample_is_an_encoder():
    assert make_encoder(len)({"a": 1}) == 1


def test_another_spec_is_refused():
    with pytest.raises(PipelineError, match="encoder="):
        make_encoder("json")


def test_encoders_travel_to_other_processes():
    for spec in (True, False, {"foo": len}):
        pickle.loads(pickle.dumps(make_encoder(spec)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cls", "cat"), ("cls", 3.0), ("cls", np.float32(3)), ("cls", None), ("cls", [3]),
        ("id", "n01"), ("a.index", ""), ("json", "cat"), ("meta.json", ""), ("json.gz", "{"),
    ],
)  # fmt: skip
def test_a_value_that_could_not_be_read_back_is_not_written(field, value):
    with pytest.raises(WriteError, match=field):
        encode({"__key__": "k", field: value})


def test_text_that_its_extension_can_read_is_written():
    found = encode({"__key__": "k", "cls": " 7 ", "json": '{"a": 1}', "txt": "cat", "class": "cat"})
    assert (found["cls"], found["json"], found["class"]) == (b" 7 ", b'{"a": 1}', b"cat")


def test_text_is_checked_against_the_decoder_in_use(monkeypatch):
    monkeypatch.setitem(DECODERS._entries, "cls", "records:text_loads")
    assert encode({"__key__": "k", "cls": "cat"})["cls"] == b"cat"


def test_text_for_an_encoder_of_ones_own_is_not_checked():
    assert make_encoder({"cls": str})({"__key__": "k", "cls": "cat"})["cls"] == b"cat"
