"""The index that a ShardWriter writes."""

from __future__ import annotations

import io
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from penstock import PipelineError, ShardWriter
from penstock.shards.index import Index, build_index, open_index


def write(folder: Path, count: int, **options: Any) -> None:
    options = {"maxcount": 4, "index": True, **options}
    start = options.get("start_shard", 0)
    with ShardWriter(f"{folder}/x-%03d.tar", **options) as sink:
        for number in range(count):
            key = f"{start}_{number}{'ä' * number * 7}"
            sink.write({"__key__": key, "cls": number, "bin": bytes(number * 300)})


@pytest.mark.parametrize("form", [None, "gnu", "pax"])
@pytest.mark.parametrize("mtime", [0, 1.5])
def test_it_is_the_one_that_reading_gives(tmp_path: Path, form: str | None, mtime: float) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    write(tmp_path, 10, format=form, mtime=mtime)
    build_index(f"{tmp_path}/x-{{000..002}}.tar", tmp_path / "read.parquet")
    written = pq.read_table(tmp_path / "x.index.parquet")
    assert written.equals(pq.read_table(tmp_path / "read.parquet"))
    # Only the writer has seen every byte, so only it knows checksums: shards compare without.
    names = ("x.index.parquet", "read.parquet")
    one, other = (Index.load(tmp_path / name).shards for name in names)
    assert one == other


def test_nothing_is_read_to_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.shards.index import part_files as parts

    monkeypatch.setattr(parts, "scan_shard", None)
    write(tmp_path, 10)
    assert len(Index.load(tmp_path / "x.index.parquet")) == 10
    assert not (tmp_path / "x.index.parquet.parts").exists()


def test_writers_of_one_folder_add_to_one_index(tmp_path: Path) -> None:
    write(tmp_path, 8)
    write(tmp_path, 4, start_shard=2)
    index = Index.load(tmp_path / "x.index.parquet")
    assert [shard.name for shard in index.shards] == ["x-000.tar", "x-001.tar", "x-002.tar"]


def test_a_data_set_written_anew_has_a_new_index(tmp_path: Path) -> None:
    write(tmp_path, 10)
    for path in tmp_path.glob("*.tar"):
        path.unlink()
    write(tmp_path, 3)
    index = open_index(f"{tmp_path}/")
    index.check(0)
    assert (len(index), len(Index.load(tmp_path / "x.index.parquet"))) == (3, 3)


def test_compressed_shards_are_marked(tmp_path: Path) -> None:
    write(tmp_path, 3, compress="gz")
    assert Index.load(tmp_path / "x.index.parquet").shards[0].compressed


def test_a_writer_that_goes_on_has_the_whole_index(tmp_path: Path) -> None:
    write(tmp_path, 8, index=False)
    write(tmp_path, 10, skip_existing=True, index=tmp_path / "mine.parquet")
    assert len(Index.load(tmp_path / "mine.parquet")) == 10


def test_a_sample_that_cannot_be_written_is_not_in_the_index(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/x-%03d.tar", index=True) as sink:
        sink.write({"__key__": "a", "cls": 1})
        with pytest.raises(ValueError, match="not read back"):
            sink.write({"__key__": "a", "cls": 2})
        sink.write({"__key__": "b", "cls": 3})
    assert list(open_index(f"{tmp_path}/x-000.tar").keys) == ["a", "b"]


def test_what_cannot_be_indexed_is_told_at_once(tmp_path: Path) -> None:
    for options in ({"check": False}, {"opener": io.BytesIO}):
        with pytest.raises(PipelineError, match="index= cannot be combined"):
            ShardWriter(f"{tmp_path}/x-%03d.tar", index=True, **options)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="pipe:"):
        ShardWriter("pipe:cat > x-%03d.tar", index=True)


def test_an_index_with_columns_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path, 4)
    build_index(f"{tmp_path}/x-000.tar", tmp_path / "x.index.parquet", columns={"c": "cls:value"})
    with pytest.raises(PipelineError, match="has the columns c"):
        ShardWriter(f"{tmp_path}/x-%03d.tar", index=True)


def _write_some(folder: Path, process: int) -> None:
    for writer in range(4):
        pattern = f"{folder}/p{process}w{writer}-%03d.tar"
        with ShardWriter(pattern, maxcount=2, index=f"{folder}/all.parquet", verbose=0) as sink:
            for number in range(5):
                sink.write({"__key__": f"{process}_{writer}_{number}", "cls": number})


def test_processes_that_write_at_once_lose_no_row_of_their_index(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_some, args=(tmp_path, n)) for n in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    expected = {f"{p}_{w}_{n}" for p in range(6) for w in range(4) for n in range(5)}
    assert set(Index.load(tmp_path / "all.parquet").keys) == expected
    assert [path.name for path in tmp_path.glob("all.*")] == ["all.parquet"]
