"""Samples chosen before anything is read: where, keys, fraction, fold, exclude."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as wds
from penstock.shards.index import Subset, build_index, open_index
from penstock.shards.index.packed_strings import Texts
from penstock.shards.index.subset import hash_texts


def write(folder: Path, shards: range, each: int = 40) -> str:
    """Shards of numbered samples; sample n is spoken by speaker n // 8."""
    for number in shards:
        with wds.TarWriter(str(folder / f"d-{number:02d}.tar")) as sink:
            for n in range(number * each, (number + 1) * each):
                about = {"speaker": f"p{n // 8}", "n": n} if n % 10 else {"n": n}
                sink.write({"__key__": f"s{n:04d}", "json": json.dumps(about)})
    return str(folder / f"d-{{00..{shards[-1]:02d}}}.tar")


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    urls = write(tmp_path, range(5))
    columns = {"speaker": "json:speaker", "n": "json:n"}
    index = build_index(urls, tmp_path / "x.parquet", columns=columns)
    return {"urls": urls, "index": index}


def keys_of(data: dict[str, Any], **options: Any) -> list[str]:
    """The keys that all three ways of reading return; they must agree."""
    streamed = [s["__key__"] for s in wds.WebDataset(data["urls"], index=data["index"], **options)]
    dataset = wds.IndexedDataset(data["urls"], data["index"], **options)
    source = wds.IndexedSamples(data["urls"], data["index"], window=0, **options)
    assert [sample["__key__"] for sample in dataset] == list(dataset.keys) == streamed
    assert [sample["__key__"] for sample in wds.DataPipeline(source)] == streamed
    assert len(source) == len(dataset) == len(streamed)
    return streamed


def test_where_keys_and_exclude_choose_together(data: dict[str, Any]) -> None:
    found = keys_of(data, where="n >= 100", keys="s01?5", exclude=["s0105"])
    assert found == [f"s01{ten}5" for ten in range(1, 10)]


def test_keys_are_a_list_or_a_file(data: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("s0007\n\ns0003\n")
    assert keys_of(data, keys=["s0007", "s0003"]) == ["s0003", "s0007"]
    assert keys_of(data, keys=str(tmp_path / "keys.txt")) == ["s0003", "s0007"]
    assert keys_of(data, keys=tmp_path / "keys.txt") == ["s0003", "s0007"]


def test_unknown_keys_are_named_in_a_warning(data: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"1 of the keys in keys: 'nobody'"):
        assert keys_of(data, keys=["nobody", "s0001"]) == ["s0001"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("z*", r"no key that matches keys='z\*'; a key is the member's name"),
        ("s01[0-4]*", r"no key that matches keys='s01\[0-4\]\*'; \[ is a plain character"),
    ],
)
def test_pattern_that_matches_nothing_is_named_in_a_warning(
    data: dict[str, Any], pattern: str, message: str
) -> None:
    with pytest.warns(UserWarning, match=message):
        assert keys_of(data, keys=pattern) == []


def test_pattern_that_matches_does_not_warn(data: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(keys_of(data, keys="s000*", where="n > 100")) == 0


def test_folds_are_disjoint_and_complete(data: dict[str, Any]) -> None:
    parts = [keys_of(data, fold=wds.Fold(4, part)) for part in range(4)]
    assert sorted(itertools.chain(*parts)) == keys_of(data)
    assert all(25 < len(part) < 75 for part in parts)
    assert keys_of(data, fold=wds.Fold(4, [0, 2])) == sorted(parts[0] + parts[2])
    assert keys_of(data, fold=wds.Fold(4, 0, salt="b")) != parts[0]


def test_fold_by_a_column_keeps_its_values_together(data: dict[str, Any]) -> None:
    index = data["index"]
    speakers = dict(zip(index.keys, index.column("speaker")))
    parts = [keys_of(data, fold=wds.Fold(3, part, by="speaker")) for part in range(3)]
    assert sorted(itertools.chain(*parts)) == keys_of(data)
    known = [{speakers[key] for key in part} - {None} for part in parts]
    assert sum(map(len, known)) == len(set().union(*known))
    assert [{None} <= {speakers[key] for key in part} for part in parts] == [True] * 3
    with pytest.raises(wds.PipelineError, match="no column 'speakr'"):
        keys_of(data, fold=wds.Fold(3, 0, by="speakr"))


def test_membership_is_unchanged_after_five_shards_are_added(tmp_path: Path) -> None:
    choices: list[dict[str, Any]] = [
        {"fraction": 0.3},
        {"fold": wds.Fold(5, [1, 2])},
        {"fold": wds.Fold(5, 3, by="speaker")},
    ]
    columns = {"speaker": "json:speaker"}
    before = write(tmp_path, range(5))
    index = build_index(before, tmp_path / "a.parquet", columns=columns)
    old = [keys_of({"urls": before, "index": index}, **choice) for choice in choices]
    after = write(tmp_path, range(10))
    index = build_index(after, tmp_path / "b.parquet", columns=columns)
    for choice, kept in zip(choices, old):
        found = keys_of({"urls": after, "index": index}, **choice)
        assert [key for key in found if key < "s0200"] == kept
        assert len(found) > len(kept) > 0


def test_fraction_is_that_share_of_the_samples(data: dict[str, Any]) -> None:
    assert keys_of(data, fraction=1) == keys_of(data)
    small, large = set(keys_of(data, fraction=0.2)), set(keys_of(data, fraction=0.6))
    assert small < large
    assert 20 < len(small) < 60 < 100 < len(large) < 140


def test_selected_rows_are_part_of_the_fingerprint(data: dict[str, Any]) -> None:
    prints = {
        wds.IndexedSamples(data["urls"], data["index"], **options).fingerprint
        for options in ({}, {"fraction": 0.5}, {"where": "n < 7"}, {"fold": wds.Fold(2, 0)})
    }
    assert len(prints) == 4


def test_state_of_another_subset_is_refused(data: dict[str, Any]) -> None:
    first = wds.WebDataset(data["urls"], index=data["index"], where="n < 100")
    next(iter(first))
    state = json.loads(json.dumps(first.state_dict()))
    with pytest.raises(wds.StateError, match="n < 99"):
        wds.WebDataset(data["urls"], index=data["index"], where="n < 99").load_state_dict(state)


def test_subset_resumes_and_moves_to_other_ranks(data: dict[str, Any]) -> None:
    def make() -> Any:
        options = {"index": data["index"], "shardshuffle": 2, "lanes": 6, "fraction": 0.5}
        return wds.WebDataset(data["urls"], **options)

    expected = [sample["__key__"] for sample in make()]
    first = make()
    stream = iter(first)
    head = [next(stream)["__key__"] for _ in range(17)]
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert head + [sample["__key__"] for sample in second] == expected


def test_no_shard_is_opened_to_choose(data: dict[str, Any], tmp_path: Path) -> None:
    index = open_index(data["urls"], data["index"])
    for name in tmp_path.glob("*.tar"):
        name.unlink()
    rows = Subset(where="n < 9", fraction=0.9).rows(index)
    assert rows is not None
    assert 0 < len(rows) <= 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"where": "n <"}, "cannot be parsed"),
        ({"fraction": 0}, "above 0 and at most 1"),
        ({"fraction": 1.5}, "above 0 and at most 1"),
        ({"fraction": True}, "above 0 and at most 1"),
        ({"fraction": float("nan")}, "above 0 and at most 1"),
        ({"fold": 3}, "fold is a Fold"),
        ({"keys": [1, 2]}, "list of texts"),
        ({"exclude": "s1"}, "say exclude="),
    ],
)
def test_wrong_choice_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(wds.PipelineError, match=words):
        wds.WebDataset("x-{0..9}.tar", index=True, **options)


@pytest.mark.parametrize(("of", "use"), [(0, 0), (3, 3), (3, -1), (3, []), (2.5, 1), (3, [True])])
def test_wrong_fold_is_refused(of: Any, use: Any) -> None:
    with pytest.raises(wds.PipelineError, match="Fold: "):
        wds.Fold(of, use)


def test_choice_without_an_index_names_the_remedy() -> None:
    with pytest.raises(wds.PipelineError, match=r"where, fraction .*index=True"):
        wds.WebDataset("x.tar", where="a > 1", fraction=0.5)


@given(st.lists(st.text(max_size=40)), st.integers(0, 2**64 - 1))
def test_hash_depends_on_the_text_alone(texts: list[str], seed: int) -> None:
    found = hash_texts(Texts.packed(texts), seed)
    for text, value in zip(texts, found.tolist()):
        assert hash_texts(Texts.packed([text]), seed).tolist() == [value]
    assert len(set(found.tolist())) == len(set(texts))


def test_hash_values_stay_as_they_were() -> None:
    """Another value would move samples between the folds that people have published."""
    texts = Texts.packed(["", "a", "train/0001", "ö" * 20])
    expected = [
        7191089600892374487,
        16562737976575586817,
        12011877632943681224,
        2874165752614562711,
    ]
    assert hash_texts(texts, 7).tolist() == expected
    assert np.dtype(np.uint64) == hash_texts(texts, 7).dtype
