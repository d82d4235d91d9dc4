"""Shards that were copied together with their index."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import IndexedDataset, WebDataset
from penstock.cli import main
from penstock.errors import StaleIndexError
from penstock.shards.index import SampleReader, build_index, open_index

MakeShards = Callable[..., str]


def copy_of(folder: Path) -> Path:
    """What ``cp -r`` makes: the same bytes, written now."""
    other = folder.parent / f"{folder.name}-copy"
    shutil.copytree(folder, other, copy_function=shutil.copyfile)
    for path in other.iterdir():
        os.utime(path, (2_000_000_000, 2_000_000_000))
    return other


@pytest.mark.parametrize("made_by", ["writer", "reader"])
def test_shards_copied_with_their_index_are_read_with_one_notice(
    make_shards: MakeShards, tmp_path: Path, caplog: pytest.LogCaptureFixture, made_by: str
) -> None:
    urls = make_shards(10, 4, index=made_by == "writer")
    open_index(urls)
    copy = copy_of(tmp_path)
    made = (copy / "train.index.parquet").stat().st_mtime_ns
    there = urls.replace(str(tmp_path), str(copy))
    data = IndexedDataset(there).decode()
    assert [sample["txt"] for sample in data] == [f"text {n}" for n in range(10)]
    streamed = WebDataset(there, index=True, shardshuffle=0)
    assert [sample["txt"] for sample in streamed] == [b"text %d" % n for n in range(10)]
    assert (copy / "train.index.parquet").stat().st_mtime_ns == made
    assert len(caplog.messages) == 1
    assert "copied" in caplog.text
    assert "2000000000" not in caplog.text
    assert main(["index", there, "--check"]) == 0


def test_a_copy_is_noticed_before_workers_are_forked(
    make_shards: MakeShards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls = make_shards(10, 4)
    open_index(urls)
    copy = copy_of(tmp_path)
    open_index(urls.replace(str(tmp_path), str(copy)))
    assert len(caplog.messages) == 1


def test_a_copy_that_differs_at_either_end_is_refused(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls = make_shards(12, 4)
    open_index(urls)
    copy = copy_of(tmp_path)
    first, last = copy / "train-000.tar", copy / "train-001.tar"
    for shard, old, new in ((first, b"text 0", b"TEXT 0"), (last, b"text 7", b"TEXT 7")):
        shard.write_bytes(shard.read_bytes().replace(old, new))
        os.utime(shard, (2_000_000_000, 2_000_000_000))
    reader = SampleReader(open_index(urls.replace(str(tmp_path), str(copy))))
    for row in (1, 5):
        with pytest.raises(StaleIndexError, match="other content"):
            reader.read(row)
    assert reader.read(9)["txt"] == b"text 9"


def test_an_index_made_again_takes_the_copies_time_and_is_silent(
    make_shards: MakeShards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls = make_shards(10, 4)
    open_index(urls)
    copy = copy_of(tmp_path)
    there = urls.replace(str(tmp_path), str(copy))
    build_index(there, copy / "train.index.parquet")
    with caplog.at_level(logging.INFO, "penstock.shards.index"):
        assert len(list(IndexedDataset(there))) == 10
    assert caplog.messages == []
