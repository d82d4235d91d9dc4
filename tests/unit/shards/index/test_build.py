"""Making an index: in one file, in parallel, again after a stop, again after a change."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import PipelineError, ShardError, ShardWriter, TarWriter
from penstock.errors import StaleIndexError
from penstock.shards.index import Index, SampleReader, build_index, open_index
from penstock.shards.index.build import one_builder
from penstock.shards.index.row_source import FileRowSource
from waiting import wait_until

MakeShards = Callable[..., str]


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_come_in_their_order_however_many_read_them(
    make_shards: MakeShards, tmp_path: Path, workers: int
) -> None:
    told: list[str] = []
    index = build_index(
        make_shards(10, 4),
        tmp_path / "x.parquet",
        workers=workers,
        columns={"label": "cls:value"},
        progress=lambda shard: told.append(shard.url),
    )
    assert list(index.keys) == [f"k{n}" for n in range(10)]
    assert index.column("label").tolist() == list(range(10))
    assert index.starts.tolist() == [0, 4, 8, 10]
    assert index.shard.tolist() == [0] * 4 + [1] * 4 + [2] * 2
    assert sorted(told) == [shard.url for shard in index.shards]
    assert not (tmp_path / "x.parquet.parts").exists()


def test_a_moved_data_set_keeps_its_index(make_shards: MakeShards, tmp_path: Path) -> None:
    build_index(make_shards(), tmp_path / "train.index.parquet")
    other = tmp_path / "elsewhere"
    other.mkdir()
    for path in tmp_path.glob("train*"):
        shutil.move(path, other)
    index = Index.load(other / "train.index.parquet")
    assert SampleReader(index).read(9)["txt"] == b"text 9"


BUILD = """
import pathlib, time
from penstock.shards.index import build_index

folder = pathlib.Path(__file__).parent

def column(sample):
    with open(folder / "log", "a") as log:
        log.write(sample["__key__"] + " ")
    while sample["__key__"] == "k4" and (folder / "hang").exists():
        time.sleep(0.01)
    return len(sample["cls"])

if __name__ == "__main__":
    build_index(str(folder / "x-{0..5}.tar"), folder / "x.parquet", columns={"c": column})
"""


def test_a_build_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    for number in range(6):
        with TarWriter(str(tmp_path / f"x-{number}.tar")) as sink:
            sink.write({"__key__": f"k{number}", "cls": number})
    (tmp_path / "build.py").write_text(BUILD)
    (tmp_path / "hang").touch()
    parts = tmp_path / "x.parquet.parts"
    process = subprocess.Popen([sys.executable, str(tmp_path / "build.py")])
    try:
        wait_until(lambda: len(list(parts.glob("*.parquet"))) >= 5, "five parts are written")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert sorted((tmp_path / "log").read_text().split()) == [f"k{n}" for n in range(6)]
    assert not (tmp_path / "x.parquet").exists()
    (tmp_path / "hang").unlink()
    (tmp_path / "log").unlink()
    subprocess.run([sys.executable, str(tmp_path / "build.py")], check=True, timeout=60)
    assert (tmp_path / "log").read_text().split() == ["k4"]
    assert Index.load(tmp_path / "x.parquet").column("c").tolist() == [1] * 6
    assert not parts.exists()


def test_parts_of_a_stopped_build_are_used_again(make_shards: MakeShards, tmp_path: Path) -> None:
    urls = make_shards(10, 4)
    out = tmp_path / "x.parquet"
    seen: list[str] = []

    def column(sample: dict[str, Any]) -> int:
        if limit and sample["__key__"] == limit:
            raise KeyError("stop here")
        seen.append(sample["__key__"])
        return len(sample["txt"])

    limit = "k9"
    with pytest.raises(KeyError) as caught:
        build_index(urls, out, columns={"letters": column})
    assert "train-002.tar, sample 'k9'" in caught.value.__notes__[0]
    first = set(seen)
    seen.clear()
    limit = ""
    index = build_index(urls, out, columns={"letters": column})
    assert set(seen) == {"k8", "k9"}
    assert first >= {f"k{n}" for n in range(8)}
    assert index.column("letters").tolist() == [6] * 10


def test_a_part_of_a_shard_that_was_changed_is_not_used(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls = make_shards(8, 4)
    (tmp_path / "train-001.tar").rename(tmp_path / "away")
    with pytest.raises(OSError, match="train-001"):
        build_index(urls, tmp_path / "x.parquet")
    with ShardWriter(f"{tmp_path}/train-%03d.tar", maxcount=4) as sink:
        for number in range(8):
            sink.write({"__key__": f"new{number}", "cls": number})
    index = build_index(urls, tmp_path / "x.parquet")
    assert list(index.keys) == [f"new{n}" for n in range(8)]


def test_what_an_index_knows_is_not_read_again(
    make_shards: MakeShards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.shards.index import part_files as parts

    build_index(make_shards(8, 4), tmp_path / "x.parquet")
    scanned: list[str] = []
    scan = parts.scan_shard
    monkeypatch.setattr(
        parts, "scan_shard", lambda url, *a, **k: (scanned.append(url), scan(url, *a, **k))[1]
    )
    urls = make_shards(12, 4)
    for shard in Index.load(tmp_path / "x.parquet").shards:
        os.utime(shard.url, ns=(0, shard.mtime_ns or 0))  # the same bytes at the same time
    index = build_index(urls, tmp_path / "x.parquet")
    assert len(index) == 12
    assert [Path(url).name for url in scanned] == ["train-002.tar"]


def test_a_shard_changed_at_the_same_size_is_told_with_the_remedy(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    index = open_index(make_shards())
    reader = SampleReader(index)
    reader.read(0)
    index.check(1)
    shard = tmp_path / "train-001.tar"
    later = shard.stat().st_mtime_ns + 1_000_000_000
    shard.write_bytes(shard.read_bytes().replace(b"text 5", b"TEXT 5"))
    os.utime(shard, ns=(later, later))
    with pytest.raises(StaleIndexError, match=r"other content.*penstock index.*train-001\.tar"):
        index.check(1)
    with pytest.raises(StaleIndexError, match=r"train-001\.tar") as caught:
        reader.read(5)
    assert "_ns" not in str(caught.value)
    assert reader.read(0)["txt"] == b"text 0"


def test_a_longer_shard_is_told_by_its_size(make_shards: MakeShards, tmp_path: Path) -> None:
    index = open_index(make_shards())
    with (tmp_path / "train-000.tar").open("ab") as file:
        file.write(bytes(512))
    with pytest.raises(StaleIndexError, match="10,752 bytes, not 10,240"):
        index.check(0)


def test_what_cannot_be_indexed_is_told(make_shards: MakeShards, tmp_path: Path) -> None:
    urls = make_shards()
    with pytest.raises(PipelineError, match="pipe:cat"):
        build_index("pipe:cat x.tar", tmp_path / "x.parquet")
    with pytest.raises(PipelineError, match="passed twice"):
        build_index([f"{tmp_path}/train-000.tar"] * 2, tmp_path / "x.parquet")
    with pytest.raises(PipelineError, match="FIELD:MEASURE"):
        build_index(urls, tmp_path / "x.parquet", columns={"a": "cls"})
    with pytest.raises(PipelineError, match="'size'"):
        build_index(urls, tmp_path / "x.parquet", columns={"size": "cls:value"})
    with pytest.raises(PipelineError, match="importable"):
        build_index(urls, tmp_path / "x.parquet", columns={"a": lambda s: 1}, workers=1)


def test_a_file_that_is_no_index_is_told(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.parquet").write_bytes(b"nothing")
    with pytest.raises(ShardError, match=r"the index is damaged.*a\.parquet"):
        Index.load(tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "b.parquet")
    with pytest.raises(ShardError, match="not an index of penstock"):
        Index.load(tmp_path / "b.parquet")
    with pytest.raises(ShardError, match="there is no such index"):
        Index.load(tmp_path / "c.parquet")


def test_empty_shards_have_no_rows(tmp_path: Path) -> None:
    for name in "abc":
        with TarWriter(str(tmp_path / f"{name}.tar")) as sink:
            if name == "b":
                sink.write({"__key__": "x", "cls": 1})
    index = build_index(
        f"{tmp_path}/{{a,b,c}}.tar", tmp_path / "x.parquet", columns={"v": "cls:value"}
    )
    assert index.starts.tolist() == [0, 0, 1, 1]
    assert SampleReader(index).read(0)["__key__"] == "x"
    index = build_index(f"{tmp_path}/{{a,c}}.tar", tmp_path / "y.parquet")
    assert (len(index), list(index.keys), index.shard.tolist()) == (0, [], [])


def test_one_who_waited_for_a_lock_file_since_deleted_waits_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    lock = tmp_path / "x.parquet.lock"
    flock, locked = fcntl.flock, []

    def slow(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        if not locked:  # the one before has ended, and the next has made its lock file
            lock.unlink()
            lock.touch()
        locked.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(fcntl, "flock", slow)
    with one_builder(str(tmp_path / "x.parquet")):
        assert len(locked) == 2
        assert locked[-1] == lock.stat().st_ino
    assert not lock.exists()


def test_a_part_is_written_though_others_delete_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TarWriter(tmp_path / "x.tar") as sink:
        sink.write({"__key__": "a", "cls": 1})
    made, deleted = os.makedirs, []

    def make_and_lose(name: str, exist_ok: bool = False) -> None:
        made(name, exist_ok=exist_ok)
        if len(deleted) < 3:
            deleted.append(name)
            os.rmdir(name)

    monkeypatch.setattr(os, "makedirs", make_and_lose)
    assert len(build_index(f"{tmp_path}/x.tar", tmp_path / "x.parquet")) == 1
    assert len(deleted) == 3


@pytest.mark.parametrize("when", ["its list is read", "its rows are read"])
def test_a_part_that_an_equal_job_replaces_while_parts_are_joined_is_read_again(
    make_shards: MakeShards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    name = "_read_stamp" if when == "its list is read" else "table"
    read, replaced = getattr(FileRowSource, name), []

    def replace_and_read(source: FileRowSource) -> Any:
        found = read(source)
        if ".parts" in source.path and len(replaced) < 3:
            replaced.append(source.path)
            shutil.copy(source.path, f"{source.path}.new")
            os.replace(f"{source.path}.new", source.path)
        return found if name == "_read_stamp" else read(source)

    monkeypatch.setattr(FileRowSource, name, replace_and_read)
    index = build_index(make_shards(10, 4), tmp_path / "x.parquet")
    assert list(index.keys) == [f"k{n}" for n in range(10)]
    assert len(replaced) == 3
