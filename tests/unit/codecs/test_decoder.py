from __future__ import annotations

import gzip
import io
import json
import pickle
from functools import partial

import numpy as np
import pytest
import soundfile
from PIL import Image

import penstock as wds
from penstock import DataPipeline
from penstock.codecs import Continue, Decoder, basichandlers, gzfilter, handle_extension
from penstock.codecs.audio import torch_audio
from penstock.codecs.video import torch_video
from penstock.errors import DecodingError, MissingPackage, PipelineError, SampleError, UnsafeError


def sample(**fields):
    return {"__key__": "k", "__url__": "a.tar", **fields}


def png():
    stream = io.BytesIO()
    Image.fromarray(np.zeros((2, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def upper(key, data):
    return data.upper() if key.endswith(".up") else None


def test_fields_are_decoded_by_their_last_extension():
    found = Decoder()({"__key__": "k", "cls": b" 3\n", "a.json": b"[1]", "x.y.txt": b"\xc3\xbc"})
    assert found == {"__key__": "k", "cls": 3, "a.json": [1], "x.y.txt": "ü"}


def test_what_nobody_reads_stays_bytes():
    names = "class count html tenbin msgpack xml csv yaml mp4 jpg CLS"
    fields = dict.fromkeys(names.split(), b"1")
    assert Decoder()(fields) == fields


def test_the_sample_itself_is_left_alone():
    given = sample(cls=b"3")
    Decoder()(given)
    assert given["cls"] == b"3"


def test_json_null_is_none_and_not_its_bytes():
    assert Decoder()(sample(json=b"null"))["json"] is None


def test_gz_fields_are_unpacked_and_decoded():
    data = {"a.json.gz": gzip.compress(b"[1]"), "raw.gz": gzip.compress(b"x")}
    assert Decoder()(data) == {"a.json.gz": [1], "raw.gz": b"x"}


def test_meta_fields_become_text_where_they_can():
    found = Decoder()({"__key__": b"k", "__bad__": b"\xff", "__n__": 3})
    assert found == {"__key__": "k", "__bad__": b"\xff", "__n__": 3}


@pytest.mark.parametrize("only", ["json cls", ["json", "cls"]])
def test_only_the_chosen_fields_are_decoded(only):
    found = Decoder(only=only)(sample(json=b"1", cls=b"2", txt=b"x", **{"a.json": b"1"}))
    assert (found["json"], found["cls"], found["txt"], found["a.json"]) == (1, 2, b"x", b"1")


def test_a_value_that_is_not_bytes_is_an_error_unless_partial():
    with pytest.raises(DecodingError, match=r"'cls'.*int, not bytes"):
        Decoder()(sample(cls=3))
    assert Decoder(partial=True)(sample(cls=3, json=b"1"))["cls"] == 3


def test_bytearrays_and_memoryviews_are_bytes():
    found = Decoder()(sample(cls=bytearray(b"3"), txt=memoryview(b"x")))
    assert (found["cls"], found["txt"]) == (3, "x")


def test_an_error_tells_field_cause_and_origin():
    with pytest.raises(DecodingError) as caught:
        Decoder()(sample(cls=b"3.0"))
    error = caught.value
    assert "cannot read 'cls': ValueError: invalid literal" in str(error)
    assert str(error).endswith("(a.tar, sample 'k')")
    assert (error.url, error.key, error.k) == ("a.tar", "k", "cls")
    assert isinstance(error.__cause__, ValueError)


def test_an_error_without_a_shard_still_tells_the_key():
    with pytest.raises(DecodingError, match="'cls' of sample 'k'"):
        Decoder()({"__key__": "k", "cls": b"x"})


def test_a_missing_package_passes_as_it_is(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "msgpack", None)
    with pytest.raises(MissingPackage, match=r"pip install .*\[msgpack\]"):
        Decoder()(sample(mp=b"\x01"))


def test_handlers_come_one_by_one_or_as_a_list():
    fields = sample(up=b"abc", cls=b"1", png=png())
    for decoder in (Decoder(upper, "rgb8"), Decoder([upper, "rgb8"]), Decoder(upper, ["rgb8"][0])):
        found = decoder(fields)
        assert (found["up"], found["cls"], found["png"].shape) == (b"ABC", 1, (2, 3, 3))


def test_the_list_form_takes_the_other_arguments_by_place():
    decoder = Decoder([], [], [upper], "up", True)
    assert decoder({"up": b"a", "cls": 3}) == {"up": b"A", "cls": 3}
    with pytest.raises(PipelineError):
        Decoder([upper], [], [], None, True, 7)


def test_the_first_answer_counts_and_none_asks_the_next():
    decoder = Decoder(handle_extension("cls", lambda data: None), handle_extension("cls", len))
    assert decoder({"cls": b"123"}) == {"cls": 3}
    assert Decoder(handle_extension("cls", lambda data: None))({"cls": b"123"}) == {"cls": 123}


def test_continue_hands_on_another_key_and_other_data():
    def unwrap(key, data):
        return Continue(key.removesuffix(".wrapped"), data[1:-1]) if "wrapped" in key else None

    assert Decoder(unwrap)({"json.wrapped": b"<[1]>"}) == {"json.wrapped": [1]}


def test_pre_and_post_replace_the_defaults():
    fields = {"json.gz": gzip.compress(b"1"), "cls": b"2"}
    assert Decoder(pre=[])(fields)["json.gz"] == fields["json.gz"]
    assert Decoder(post=[])(fields) == {"json.gz": b"1", "cls": b"2"}
    assert Decoder(pre=[gzfilter], post=[basichandlers])(fields) == {"json.gz": 1, "cls": 2}


def test_a_decoder_applied_to_samples_gives_decoded_samples():
    assert [s["cls"] for s in Decoder()([sample(cls=b"1"), sample(cls=b"2")])] == [1, 2]


def test_a_decoder_applied_to_a_data_set_maps_it():
    class Data:
        def map(self, function):
            return function(sample(cls=b"1"))["cls"]

    assert Decoder()(Data()) == 1


def test_a_decoder_applied_to_something_else_says_so():
    with pytest.raises(SampleError, match="a sample is a dict"):
        Decoder()(3)


def test_the_documents_old_form_works():
    def my_png_decoder(key, value):
        if not key.endswith(".png"):
            return None
        assert isinstance(value, bytes)
        return Image.open(io.BytesIO(value)).size

    decoder = Decoder(my_png_decoder, torch_video, torch_audio)
    assert decoder(sample(png=png(), cls=b"1"))["png"] == (3, 2)
    assert Decoder(handle_extension(".png", len))(sample(png=b"123"))["png"] == 3


@pytest.mark.parametrize("bad", [3, None, "RGB", "la", "foo"])
def test_a_handler_that_cannot_work_is_refused_at_once(bad):
    with pytest.raises(PipelineError):
        Decoder(bad)


def test_a_decoder_is_a_value():
    decoder = Decoder("rgb8", upper, only="png up", partial=True)
    decoder(sample(up=b"x", png=png()))
    again = pickle.loads(pickle.dumps(decoder))
    assert again == decoder != Decoder("rgb8")
    assert again(sample(up=b"x"))["up"] == b"X"
    assert repr(decoder) == "Decoder('rgb8', upper, only='png up', partial=True)"


def test_field_names_do_not_fill_memory():
    decoder = Decoder()
    for n in range(10000):
        decoder({f"f{n}.cls": b"1"})
    assert len(decoder._plans) < 5000


def test_pickles_of_any_kind_need_a_word_in_code(monkeypatch):
    data = sample(pyd=pickle.dumps(Image.Image), cls=b"1")
    with pytest.raises(DecodingError, match="needs allow_pickle=True in code") as caught:
        Decoder()(data)
    assert isinstance(caught.value.__cause__, UnsafeError)
    assert Decoder(allow_pickle=True)(data)["pyd"] is Image.Image
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(UnsafeError, match="WDS_SECURE"):
        Decoder(allow_pickle=True)


def test_decode1_reads_one_field():
    assert Decoder().decode1("cls", b"3") == 3


class OfItsOwn(Decoder):
    """Overrides ``decode`` and calls ``decode1``, as video2dataset does."""

    def decode(self, sample):
        return {
            key: value if key.startswith("__") else self.decode1(key, value)
            for key, value in sample.items()
        }


class EachInUpperCase(Decoder):
    """Overrides ``decode1``."""

    def decode1(self, key, data):
        value = super().decode1(key, data)
        return value.upper() if isinstance(value, str) else value


def test_a_decoder_may_override_decode_and_call_decode1():
    decoder = OfItsOwn(["rgb8", handle_extension("up", bytes.upper)])
    found = decoder(sample(cls=b"3", png=png(), up=b"x", **{"json.gz": gzip.compress(b"[1]")}))
    assert (found["cls"], found["up"], found["json.gz"]) == (3, b"X", [1])
    assert found["png"].shape == (2, 3, 3)
    assert [one["cls"] for one in DataPipeline([sample(cls=b"1")], wds.map(decoder))] == [1]


def test_decode1_hands_on_values_that_are_not_bytes():
    decoder = OfItsOwn([handle_extension("n", lambda value: value + 1)])
    assert decoder({"n": 6, "unknown": [1]}) == {"n": 7, "unknown": [1]}


def test_a_decoder_may_override_decode1():
    found = EachInUpperCase()(sample(txt=b"cat", cls=b"3"))
    assert (found["__key__"], found["txt"], found["cls"]) == ("k", "CAT", 3)
    with pytest.raises(DecodingError, match="cannot read 'cls': ValueError"):
        EachInUpperCase()(sample(cls=b"x"))


def seen_by_handler(stage, item):
    errors = []
    list(DataPipeline([item], stage(handler=lambda error: errors.append(error) or True)))
    return errors[0]


def test_a_handler_gets_the_sample_that_failed():
    bad = sample(cls=b"x", txt=b"y")
    for stage in (wds.decode, partial(wds.xdecode, cls=json.load), partial(wds.map, Decoder())):
        assert seen_by_handler(stage, bad).sample == bad


def test_a_handler_gets_the_sample_also_from_a_transform():
    bad = sample(jpg=b"no picture")
    error = seen_by_handler(partial(wds.map_dict, jpg=wds.Resize(8)), bad)
    assert isinstance(error, DecodingError)
    assert error.sample == bad


def test_an_error_that_goes_to_another_process_leaves_the_sample_behind():
    with pytest.raises(DecodingError) as caught:
        Decoder(lambda key, data: int(data))(sample(cls=b"x", more=b"3"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.sample, again.k) == (str(caught.value), None, "cls")


@pytest.mark.parametrize(
    "field", ["jpg", "json", "cls", "npy", "npz", "pyd", "pth", "mp", "wav", "mp4"]
)
def test_an_empty_field_and_a_page_are_named(field):
    decoder = Decoder("rgb8", torch_audio, torch_video)
    for data, words in ((b"", "it is empty"), (b"<html>No</html>", "it begins with '<html>'")):
        with pytest.raises(DecodingError) as caught:
            decoder(sample(**{field: data}))
        assert f"cannot read {field!r}: {words} (" in str(caught.value)


def test_messages_hold_no_addresses():
    for handler in (
        lambda key, data: soundfile.read(io.BytesIO(data)),
        lambda key, data: object() + 1,
    ):
        with pytest.raises(DecodingError) as caught:
            Decoder(handler)(sample(wav=b"noise"))
        assert "0x" not in str(caught.value)


def test_lack_of_memory_is_no_decoding_error():
    def fail(key, data):
        raise MemoryError("no more")

    def fail_as_torch_does(key, data):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 77 bytes")

    for handler, kind in ((fail, MemoryError), (fail_as_torch_does, RuntimeError)):
        with pytest.raises(kind, match=r"no more|can't allocate"):
            Decoder(handler)(sample(x=b"1"))
        for stage in (
            wds.decode(handler, handler=wds.ignore_and_continue),
            wds.map(Decoder(handler), handler=wds.ignore_and_continue),
            wds.xdecode(x=partial(handler, None), handler=wds.ignore_and_continue),
        ):
            with pytest.raises(kind, match=r"no more|can't allocate"):
                list(DataPipeline([sample(x=b"1")], stage))
