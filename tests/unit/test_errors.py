"""Errors are also what programs written for WebDataset and SpeechBrain catch."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import pytest

import penstock as wds
from penstock import errors
from penstock.errors import PenstockError

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, PenstockError)
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_error_survives_another_process(cls):
    error = pickle.loads(pickle.dumps(cls("rule, value, remedy", origin=errors.Origin("a.tar"))))
    assert type(error) is cls
    assert str(error) == "rule, value, remedy (a.tar)"
    assert str(cls("one text, as torch makes it again")) == "one text, as torch makes it again"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_is_public_and_in_the_tree(cls):
    assert getattr(wds, cls.__name__) is cls
    assert cls.__name__ in (errors.__doc__ or "")


def test_cut_shard_is_a_tarfile_read_error(shard, tmp_path):
    whole = shard([("a", {"txt": b"x" * 2000})])
    cut = tmp_path / "cut.tar"
    cut.write_bytes(Path(whole).read_bytes()[:1000])
    with pytest.raises(tarfile.ReadError):
        list(wds.WebDataset(str(cut), shardshuffle=False))


def test_unknown_scheme_is_a_value_error():
    with pytest.raises(ValueError, match="no opener for 'nosuch'"):
        wds.gopen("nosuch://a.tar")


def test_cache_name_of_something_else_than_a_text_is_an_assertion_error():
    with pytest.raises(AssertionError, match="123"):
        wds.cache.url_to_cache_name(123)
    with pytest.raises(wds.UrlError):
        wds.cache.url_to_cache_name(123)


def test_manifest_without_a_replacement_is_a_key_error(tmp_path):
    (tmp_path / "m.json").write_text('{"a": {"wav": "{root}/a.wav"}}')
    with pytest.raises(KeyError, match=r"replacements=\{'root'"):
        wds.DynamicItemDataset.from_json(str(tmp_path / "m.json"))[0]


def test_unknown_batch_ordering_is_a_not_implemented_error():
    pytest.importorskip("torch")
    data = wds.DynamicItemDataset({"a": {"duration": 1.0}}, output_keys=["id"])
    with pytest.raises(NotImplementedError, match="batch_ordering"):
        wds.DynamicBatchSampler(data, 10, num_buckets=2, batch_ordering="sideways")
    with pytest.raises(NotImplementedError, match="lengths_list"):
        wds.DynamicBatchSampler([1, 2], 10, num_buckets=2, length_func=len)
    with pytest.raises(RuntimeError, match="num_buckets"):
        wds.DynamicBatchSampler(data, 10, num_buckets=None)


def test_tensors_that_form_no_batch_are_index_and_os_errors():
    torch = pytest.importorskip("torch")
    with pytest.raises(OSError, match="dimension 1"):
        wds.batch_pad_right([torch.zeros(2, 3), torch.zeros(2, 4)])
    with pytest.raises(IndexError, match="dimensions"):
        wds.batch_pad_right([torch.zeros(2), torch.zeros(2, 4)])
    with pytest.raises(IndexError, match="nothing to pad"):
        wds.batch_pad_right([])
    with pytest.raises(IndexError, match="there are none"):
        wds.PaddedBatch([])


def test_sound_that_cannot_be_read_is_a_runtime_error(tmp_path):
    pytest.importorskip("soundfile")
    (tmp_path / "a.wav").write_bytes(b"no sound")
    with pytest.raises(RuntimeError, match="cannot read the sound"):
        wds.read_audio(str(tmp_path / "a.wav"))
