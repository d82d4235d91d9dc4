"""What a user may give as ``index=``."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import PipelineError, StorageError, TarWriter
from penstock.errors import StaleIndexError
from penstock.shards.index import Index, SampleReader, build_index, default_index_path, open_index

MakeShards = Callable[..., str]


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        ("a/train-{000..099}.tar", "a/train.index.parquet"),
        ("a/train-000010.tar", "a/train.index.parquet"),
        ("imagenet2012_{0..9}.tar", "imagenet2012.index.parquet"),
        ("a/{000..003}.tar", "a/shards.index.parquet"),
        (["a/x/t-0.tar", "a/y/t-1.tar"], "a/t.index.parquet"),
    ],
)
def test_the_index_lies_beside_the_shards(urls: object, expected: str) -> None:
    assert default_index_path(urls) == expected


def test_the_index_of_remote_shards_is_kept_in_the_home_folder() -> None:
    path = default_index_path("s3://bucket/x-{0..1}.tar.gz")
    assert path.startswith(os.path.expanduser("~/.cache/penstock/indexes/"))
    assert path.endswith("/x.index.parquet")
    assert path != default_index_path("s3://other/x-{0..1}.tar.gz")


def test_the_index_is_made_once_and_told(
    make_shards: MakeShards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls = make_shards()
    with caplog.at_level(logging.INFO, "penstock.shards.index"):
        open_index(urls, True)
        made = (tmp_path / "train.index.parquet").stat().st_mtime_ns
        open_index(urls, True)
    assert (tmp_path / "train.index.parquet").stat().st_mtime_ns == made
    assert len(caplog.messages) == 1
    assert "train.index.parquet" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir() if "index" in path.name) == [
        "train.index.parquet"
    ]


def test_an_index_made_on_first_use_grows_with_the_shards(make_shards: MakeShards) -> None:
    few = open_index(make_shards(8, 4), True)
    urls = make_shards(16, 4)
    assert len(few) == 8
    assert list(open_index(urls, True).keys) == [f"k{n}" for n in range(16)]
    assert len(open_index(urls.replace("{000..003}", "{002..003}"), True)) == 8


def test_rows_are_those_of_the_shards_asked_for_in_their_order(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    index = open_index(make_shards(12, 4))
    some = open_index([f"{tmp_path}/train-002.tar", f"{tmp_path}/train-000.tar"], index)
    assert list(some.keys) == ["k8", "k9", "k10", "k11", "k0", "k1", "k2", "k3"]
    reader = SampleReader(some)
    assert [reader.read(row)["txt"] for row in (0, 7)] == [b"text 8", b"text 3"]
    assert some.fingerprint != index.fingerprint
    copy = pickle.loads(pickle.dumps(some))
    assert list(copy.keys) == list(some.keys)
    assert copy.fingerprint == some.fingerprint


def test_samples_carry_the_url_that_the_user_gave(
    make_shards: MakeShards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(make_shards(), tmp_path / "x.parquet")
    monkeypatch.chdir(tmp_path)
    index = open_index("./train-{000..002}.tar", "x.parquet")
    assert SampleReader(index).read(0)["__url__"] == "./train-000.tar"


def test_a_shard_that_the_index_does_not_have_is_named(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    build_index(make_shards(8, 4), tmp_path / "x.parquet")
    make_shards(12, 4)
    with pytest.raises(StaleIndexError, match=r"no such shard.*penstock index.*train-002\.tar"):
        open_index(f"{tmp_path}/train-{{001..002}}.tar", tmp_path / "x.parquet")


def test_a_folder_that_cannot_be_written_to_is_told_with_the_remedy(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls = make_shards()
    (tmp_path / "train.index.parquet.parts").touch()  # stands in the way, also for root
    with pytest.raises(StorageError, match="'penstock index SHARDS -o FILE'"):
        open_index(urls)


def test_anything_else_is_no_index(make_shards: MakeShards) -> None:
    with pytest.raises(PipelineError, match="not 7"):
        open_index(make_shards(), 7)


def test_an_index_that_was_made_anew_does_not_come_out_of_a_pickle(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    packed = pickle.dumps(open_index(make_shards(8, 4)))
    make_shards(8, 2)
    os.unlink(tmp_path / "train.index.parquet")
    open_index(f"{tmp_path}/train-{{000..003}}.tar")
    with pytest.raises(StaleIndexError, match="was rebuilt while it was in use"):
        pickle.loads(packed)


def _open(urls: str, results: multiprocessing.Queue[int]) -> None:
    results.put(len(open_index(urls, True)))


def test_processes_that_want_the_same_index_get_it(make_shards: MakeShards) -> None:
    urls = make_shards(40, 4)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[int] = context.Queue()
    processes = [context.Process(target=_open, args=(urls, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [40] * 4
    for process in processes:
        process.join()


def test_the_fingerprint_tells_other_data(make_shards: MakeShards, tmp_path: Path) -> None:
    one = open_index(make_shards(8, 4))
    assert Index.load(tmp_path / "train.index.parquet").fingerprint == one.fingerprint
    assert open_index(make_shards(8, 4, name="other")).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    "other", [["b", "a"], ["a", "c"]], ids=["in another order", "with another key"]
)
def test_the_fingerprint_tells_other_keys_in_shards_of_the_same_size(
    tmp_path: Path, other: list[str]
) -> None:
    found = []
    for folder, keys in (("one", ["a", "b"]), ("other", other), ("again", ["a", "b"])):
        (tmp_path / folder).mkdir()
        with TarWriter(tmp_path / folder / "x.tar") as sink:
            for key in keys:
                sink.write({"__key__": key, "cls": 1})
        found.append(open_index(f"{tmp_path}/{folder}/x.tar"))
    one, differs, again = found
    assert one.shards[0].size_bytes == differs.shards[0].size_bytes
    assert one.fingerprint == again.fingerprint != differs.fingerprint


def test_the_fingerprint_tells_other_places_of_the_same_keys(tmp_path: Path) -> None:
    found = []
    for folder, sizes in (("one", [10, 600]), ("other", [600, 10])):
        (tmp_path / folder).mkdir()
        with TarWriter(tmp_path / folder / "x.tar") as sink:
            for key, size in zip("ab", sizes):
                sink.write({"__key__": key, "bin": bytes(size)})
        found.append(open_index(f"{tmp_path}/{folder}/x.tar"))
    assert found[0].shards[0].size_bytes == found[1].shards[0].size_bytes
    assert found[0].fingerprint != found[1].fingerprint


def test_keys_are_a_sequence_that_finds(make_shards: MakeShards) -> None:
    keys = open_index(make_shards(10, 4)).keys
    assert (keys[-1], keys[2:4], len(keys)) == ("k9", ["k2", "k3"], 10)
    assert (keys.find("k7"), keys.find("nobody"), "k3" in keys) == (7, None, True)
    with pytest.raises(IndexError):
        keys[10]


def test_an_index_replaced_while_in_use_is_not_read_on(tmp_path):
    name = str(tmp_path / "x-0.tar")
    with TarWriter(name) as sink:
        sink.write({"__key__": "a", "cls": 1})
    index = open_index(name)
    path = index.path
    with open(path, "rb") as file:
        content = file.read()
    os.replace(_written(tmp_path / "other", content), path)
    with pytest.raises(StaleIndexError, match="replaced while it was in use"):
        list(index.keys)


def _written(path, content):
    path.write_bytes(content)
    return path
