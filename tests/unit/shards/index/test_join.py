"""Fields of other shards, added by key."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as wds
from penstock.datasets.memory_reader import MemoryReader
from penstock.shards.index import join as joining
from penstock.shards.index import open_index
from penstock.shards.index.join import find_rows, map_rows


def write(folder: Path, name: str, keys: list[str], field: str, shards: int = 3) -> str:
    """Shards whose samples have their key and the set's name as a field."""
    for shard in range(shards):
        with wds.TarWriter(str(folder / f"{name}-{shard}.tar")) as sink:
            for key in keys[shard::shards]:
                sink.write({"__key__": key, field: f"{name} {key}"})
    return str(folder / f"{name}-{{0..{shards - 1}}}.tar")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "KEPT", str(tmp_path_factory.mktemp("joins")))


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, str]:
    """Pictures 0 to 39; captions of all in another order; embeddings of the even ones, and more."""
    rng = np.random.default_rng(0)
    keys = [f"k{n:03d}" for n in range(40)]
    shuffled = [keys[n] for n in rng.permutation(40)]
    some = [*keys[::2], "extra1", "extra2"]
    return {
        "image": write(tmp_path, "image", keys, "jpg"),
        "text": write(tmp_path, "text", shuffled, "txt", 2),
        "vector": write(tmp_path, "vector", some, "emb.txt", 4),
    }


def read(urls: str, **options: Any) -> dict[str, dict[str, Any]]:
    """The samples by key, the same from all three ways of reading."""
    streamed = {s["__key__"]: s for s in wds.WebDataset(urls, index=True, **options)}
    dataset = wds.IndexedDataset(urls, local_paths=True, **options)
    assert {s["__key__"]: s for s in dataset} == streamed
    assert len(dataset) == len(streamed) == len(wds.WebDataset(urls, index=True, **options))
    return streamed


def test_first_set_decides_and_orders(sets: dict[str, str]) -> None:
    plain = [s["__key__"] for s in wds.WebDataset(sets["image"], index=True)]
    joined = list(wds.WebDataset(sets["image"], index=True, join=wds.Join(sets["text"])))
    assert [s["__key__"] for s in joined] == plain
    for sample in joined:
        key = sample["__key__"]
        assert sample["jpg"] == f"image {key}".encode()
        assert sample["txt"] == f"text {key}".encode()
        assert "image-" in sample["__url__"]


@pytest.mark.parametrize("missing", ["drop", "fill", "error"])
def test_missing_samples_as_in_a_merge_of_tables(sets: dict[str, str], missing: str) -> None:
    """An inner or a left merge, as pandas has them; Arrow's is installed everywhere."""
    image = pa.table({"key": list(open_index(sets["image"]).keys)})
    keys = list(open_index(sets["vector"]).keys)
    vector = pa.table({"key": keys, "found": [True] * len(keys)})
    how = "inner" if missing == "drop" else "left outer"
    expected = image.join(vector, "key", join_type=how).to_pydict()
    options = {"fill": {"emb.txt": b"none"}} if missing == "fill" else {}
    join = wds.Join(sets["vector"], ["emb.txt"], missing=missing, **options)
    if missing == "error":
        with pytest.raises(wds.SampleError, match=r"20 of the samples .*vector-0.tar.*'k003'"):
            read(sets["image"], join=join)
        return
    found = read(sets["image"], join=join)
    assert sorted(found) == sorted(expected["key"])
    for key, there in zip(expected["key"], expected["found"]):
        assert found[key]["emb.txt"] == (f"vector {key}".encode() if there else b"none")


def test_fields_that_fill_does_not_name_are_none(sets: dict[str, str]) -> None:
    join = wds.Join(sets["vector"], ["emb.txt"], missing="fill")
    assert read(sets["image"], join=join)["k001"]["emb.txt"] is None


def test_three_sets_shuffled_resume_on_other_ranks(
    sets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    joins = [wds.Join(sets["text"], prefix="caption."), wds.Join(sets["vector"], missing="drop")]

    def make() -> Any:
        options: dict[str, Any] = {"index": True, "shardshuffle": 2, "lanes": 4, "join": joins}
        return wds.WebDataset(sets["image"], **options)

    expected = [(s["__key__"], s["caption.txt"], s["emb.txt"]) for s in make()]
    assert len(expected) == 20
    first = make()
    stream = iter(first)
    seen = [next(stream)["__key__"] for _ in range(7)]
    state = json.loads(json.dumps(first.state_dict()))
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        second = make()
        second.load_state_dict([state])
        seen += [s["__key__"] for s in second]
    assert sorted(seen) == sorted(key for key, _, _ in expected)


def test_ranks_get_equally_many_of_what_is_not_dropped(
    sets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        join = wds.Join(sets["vector"], missing="drop")
        counts.append(len(list(wds.WebDataset(sets["image"], index=True, join=join))))
    assert counts == [6, 6, 6]


def test_duplicate_key_names_both_places(sets: dict[str, str], tmp_path: Path) -> None:
    twice = write(tmp_path, "twice", ["k001", "k002", "k003", "k001"], "txt", 2)
    with pytest.raises(wds.DuplicateError, match=r"'k001' occurs twice, first in .*twice-0.tar"):
        read(sets["image"], join=wds.Join(twice, missing="drop"))
    with pytest.raises(wds.DuplicateError, match=r"'k001' occurs twice, first in .*twice-0.tar"):
        read(twice, join=wds.Join(sets["vector"], missing="drop"))


def test_field_of_both_sides_is_refused_with_both_named(
    sets: dict[str, str], tmp_path: Path
) -> None:
    other = write(tmp_path, "other", ["k001"], "jpg")
    with pytest.raises(wds.PipelineError, match=r"image-0.tar and .*other-0.tar have .*'jpg'"):
        read(sets["image"], join=wds.Join(other, missing="drop"))
    found = read(sets["image"], join=wds.Join(other, missing="drop", prefix="second."))
    assert found["k001"]["second.jpg"] == b"other k001"


def test_unknown_field_is_refused(sets: dict[str, str]) -> None:
    with pytest.raises(wds.PipelineError, match=r"no sample of .* has the field 'caption'"):
        read(sets["image"], join=wds.Join(sets["text"], ["caption"]))


def test_join_and_subset_choose_together(sets: dict[str, str]) -> None:
    join = wds.Join(sets["vector"], missing="error")
    found = read(sets["image"], join=join, where="key < 'k010'", exclude=lambda k: int(k[1:]) % 2)
    assert sorted(found) == ["k000", "k002", "k004", "k006", "k008"]


def test_row_map_is_kept_and_checked(sets: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    index, other = open_index(sets["image"]), open_index(sets["vector"])
    rows = map_rows(index, other)
    (name,) = os.listdir(joining.KEPT)
    monkeypatch.setattr(joining, "find_rows", None)  # the kept one is used
    assert map_rows(index, other).tolist() == rows.tolist()
    monkeypatch.undo()
    monkeypatch.setattr(joining, "KEPT", os.path.dirname(os.path.join(joining.KEPT, name)))
    expected = [-1 if (row := other.keys.find(key)) is None else row for key in index.keys]
    assert find_rows(index, other).tolist() == rows.tolist() == expected


def test_damaged_row_map_is_made_again(sets: dict[str, str]) -> None:
    index, other = open_index(sets["image"]), open_index(sets["vector"])
    rows = map_rows(index, other)
    (name,) = os.listdir(joining.KEPT)
    for damage in (b"", b"x" * 100, b"\x93NUMPY\x01\x00"):
        Path(joining.KEPT, name).write_bytes(damage)
        assert map_rows(index, other).tolist() == rows.tolist()


def test_keys_with_one_hash_are_told_apart(
    sets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index, other = open_index(sets["image"]), open_index(sets["vector"])
    expected = find_rows(index, other).tolist()
    real = joining.hash_texts
    monkeypatch.setattr(joining, "hash_texts", lambda texts, seed: real(texts, seed) % 50)
    assert find_rows(index, other).tolist() == expected


def test_state_of_another_join_is_refused(sets: dict[str, str]) -> None:
    first = wds.WebDataset(sets["image"], index=True, join=wds.Join(sets["text"]))
    next(iter(first))
    state = json.loads(json.dumps(first.state_dict()))
    join = wds.Join(sets["text"], prefix="x.")
    with pytest.raises(wds.StateError, match="other shards"):
        wds.WebDataset(sets["image"], index=True, join=join).load_state_dict(state)


def test_joins_work_in_mixtures_and_specs(sets: dict[str, str]) -> None:
    spec = {"dataset": [{"shards": sets["image"], "join": [{"shards": sets["text"]}]}]}
    samples = list(wds.WebDataset(spec))
    assert len(samples) == 40
    assert all(s["txt"] == f"text {s['__key__']}".encode() for s in samples)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missing": "skip"}, "missing is one of"),
        ({"fill": {"a": 1}}, "needs missing='fill'"),
        ({"prefix": 3}, "prefix is a text"),
    ],
)
def test_wrong_join_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(wds.PipelineError, match=words):
        wds.Join("a.tar", **options)


def test_fill_replaces_only_the_fields_that_a_sample_lacks(tmp_path: Path) -> None:
    with wds.TarWriter(str(tmp_path / "first.tar")) as sink:
        sink.write({"__key__": "a", "cls": 1})
        sink.write({"__key__": "b", "cls": 2})
    with wds.TarWriter(str(tmp_path / "other.tar")) as sink:
        sink.write({"__key__": "a", "id": b"7"})
        sink.write({"__key__": "b", "id": b"8", "txt": "x"})
    fields = ["txt", "id"]
    join = wds.Join(str(tmp_path / "other.tar"), fields, missing="fill", fill={"id": b"0"})
    found = read(str(tmp_path / "first.tar"), join=join)
    assert (found["a"]["txt"], found["a"]["id"], found["b"]["id"]) == (None, b"7", b"8")


def test_fill_without_fields_is_of_all_fields_of_the_other_set(tmp_path: Path) -> None:
    with wds.TarWriter(str(tmp_path / "first.tar")) as sink:
        for key in "abc":
            sink.write({"__key__": key, "cls": 1})
    with wds.TarWriter(str(tmp_path / "other.tar")) as sink:
        sink.write({"__key__": "a", "txt": "A", "id": 1})
        sink.write({"__key__": "b", "txt": "B"})
    join = wds.Join(str(tmp_path / "other.tar"), missing="fill", fill={"txt": b"none"})
    found = read(str(tmp_path / "first.tar"), join=join)
    fields = {key: (sample["txt"], sample["id"]) for key, sample in found.items()}
    assert fields == {"a": (b"A", b"1"), "b": (b"B", None), "c": (b"none", None)}


def test_join_that_is_a_text_is_refused() -> None:
    with pytest.raises(wds.PipelineError, match=r"not 'other.tar'"):
        wds.WebDataset("x.tar", index=True, join="other.tar")


def test_fill_of_a_field_that_is_not_asked_for_is_refused() -> None:
    with pytest.raises(wds.PipelineError, match="captxt"):
        wds.Join("x.tar", ["txt"], missing="fill", fill={"captxt": b""})


def test_views_of_a_joined_data_set_have_the_same_samples(sets: dict[str, str]) -> None:
    dataset = wds.IndexedDataset(sets["image"], join=wds.Join(sets["vector"], missing="drop"))
    view, other = dataset.map(dict), dataset.map(dict)
    assert len(view) == len(other) == len(dataset) == 20
    assert [s["__key__"] for s in dataset] == [s["__key__"] for s in view]
    assert all("emb.txt" in sample for sample in dataset)


@pytest.mark.parametrize("options", [{}, {"fields": ["txt"]}, {"prefix": "x."}])
def test_joined_shards_are_read_into_memory(sets: dict[str, str], options: dict[str, Any]) -> None:
    join = wds.Join(sets["text"], **options)
    dataset = wds.IndexedDataset(sets["image"], join=join, memory="ram")
    assert all(isinstance(reader, MemoryReader) for reader in dataset.reader._readers())
    assert list(dataset) == list(wds.IndexedDataset(sets["image"], join=join))
    dataset.close()


def test_fields_with_reserved_names_are_not_joined(tmp_path: Path) -> None:
    left = write(tmp_path, "left", ["a", "b"], "txt", 1)
    with tarfile.open(tmp_path / "right.tar", "w") as sink:
        for name in ("a.__note__", "a.cls", "b.__note__", "b.cls"):
            sink.addfile(tarfile.TarInfo(name))
    dataset = wds.IndexedDataset(left, join=wds.Join(str(tmp_path / "right.tar")))
    assert [sorted(sample) for sample in dataset] == [["__key__", "__url__", "cls", "txt"]] * 2


def test_bytes_of_all_sets_count_as_the_size_of_a_sample(sets: dict[str, str]) -> None:
    join = wds.Join(sets["vector"], missing="fill")
    (stage,) = wds.WebDataset(sets["image"], index=True, join=join).pipeline
    sizes = stage.sizes_of(np.arange(40))
    assert [stage.size_of(row) for row in range(40)] == sizes.tolist()
    assert len(set(sizes.tolist())) == 2
