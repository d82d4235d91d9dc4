"""Items whose results are kept on disk."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from penstock import CachedDynamicItem, provides, takes
from penstock.errors import PipelineError, UnsafeError, WriteError

torch = pytest.importorskip("torch")


@pytest.fixture
def made(tmp_path):
    """An item that gives what it is told to, and a list of the ids it was called for."""
    calls = []

    @CachedDynamicItem.cache(tmp_path)
    @takes("id", "value")
    @provides("result")
    def item(id, value):
        calls.append(id)
        return value

    return item, calls


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(5),
        (torch.ones(2, 3), [1, "x"]),
        ["plain", None, 2.5, {"a": 1}],
        np.arange(6.0).reshape(2, 3),
        {"mixed": [np.ones(2), 3]},
    ],
    ids=["tensor", "tuple", "plain", "array", "mixed"],
)
def test_a_result_is_computed_once_and_read_back_equal(made, value):
    item, calls = made
    first, second = item("a", value), item("a", value)
    assert calls == ["a"]
    assert repr(first) == repr(second) == repr(value)
    assert type(second) is type(value)


def test_a_file_is_named_by_the_id(made, tmp_path):
    item, _ = made
    item("utt1", 1)
    assert os.listdir(tmp_path) == ["utt1.pt"]
    assert torch.load(tmp_path / "utt1.pt", weights_only=True) == 1


@pytest.mark.parametrize("uid", ["a/b", "../up", ".hidden", "x" * 400, "ä%2F", 7])
def test_any_id_is_a_file_in_the_folder(made, tmp_path, uid):
    item, calls = made
    assert item(uid, "kept") == item(uid, "other") == "kept"
    assert calls == [uid]
    (name,) = os.listdir(tmp_path)
    assert "/" not in name
    assert not name.startswith(".")


def test_ids_that_look_alike_have_files_of_their_own(made):
    item, _ = made
    alike = ["a/b", "a%2Fb", "a\\b", "x" * 300 + "1", "x" * 300 + "2"]
    for number, uid in enumerate(alike):
        item(uid, number)
    assert [item(uid, None) for uid in alike] == list(range(len(alike)))


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_a_damaged_file_is_made_again(made, cut):
    item, calls = made
    item("a", torch.arange(50))
    path = Path(item.path("a"))
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    with pytest.warns(UserWarning, match="damaged"):
        assert item("a", torch.arange(50)).tolist() == list(range(50))
    assert path.read_bytes() == whole
    assert calls == ["a", "a"]


def test_a_flipped_bit_in_a_tensor_is_noticed(made):
    item, calls = made
    item("a", torch.full((1000,), 7))
    path = Path(item.path("a"))
    data = bytearray(path.read_bytes())
    data[data.index(b"\7" + bytes(7) + b"\7") + 80] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="damaged"):
        item("a", torch.full((1000,), 7))
    assert calls == ["a", "a"]


def test_a_file_that_would_run_code_is_refused(made, tmp_path):
    item, calls = made

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save(Evil(), item.path("a"))
    with pytest.raises(UnsafeError, match=r"a\.pt"):
        item("a", 1)
    with open(item.path("b"), "wb") as file:
        pickle.dump(Evil(), file)
    with pytest.raises(UnsafeError, match=r"b\.pt"):
        item("b", 1)
    assert not (tmp_path / "owned").exists()
    assert calls == []


def test_a_result_that_could_not_be_read_back_is_refused_when_it_is_made(made, tmp_path):
    item, _ = made
    with pytest.raises(WriteError, match="plain values"):
        item("a", print)
    assert os.listdir(tmp_path) == []


def test_the_first_key_is_the_id(tmp_path):
    with pytest.raises(PipelineError, match="'id' first"):
        CachedDynamicItem(tmp_path, ["wav"], abs, ["x"])


def test_a_generator_cannot_be_cached(tmp_path):
    def steps(id):
        yield 1

    with pytest.raises(PipelineError, match="generator"):
        CachedDynamicItem.cache(tmp_path)(takes("id")(provides("a")(steps)))


def test_a_cached_item_pickles(tmp_path):
    item = CachedDynamicItem(tmp_path, ["id"], str.upper, ["x"])
    again = pickle.loads(pickle.dumps(item))
    assert again("a") == "A"
    assert os.listdir(tmp_path) == ["a.pt"]
