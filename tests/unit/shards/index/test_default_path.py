"""Which file is the index of a set of shards: it belongs to that set and never shrinks."""

from __future__ import annotations

import copy
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock as wds
from penstock.cli import main
from penstock.jobs import map_shards
from penstock.shards.index import Index, build_index, default_index_path, open_index
from penstock.tools import split

COUNTS = (13, 14, 13, 14)
NAMES = [f"s{shard:04d}.tar" for shard in range(4)]


@pytest.fixture
def shards(tmp_path):
    for shard, count in enumerate(COUNTS):
        with wds.TarWriter(str(tmp_path / f"s{shard:04d}.tar")) as sink:
            for number in range(count):
                sink.write({"__key__": f"{shard}-{number}", "cls": number})
    return str(tmp_path / "s{0000..0003}.tar")


def keys(urls, **options):
    return [sample["__key__"] for sample in wds.WebDataset(urls, shardshuffle=False, **options)]


@pytest.mark.parametrize("part", ["s0003.tar", "s{0001..0002}.tar"])
@pytest.mark.parametrize("options", [[], ["--column", "label=cls:value"]])
def test_indexing_a_part_of_a_set_keeps_the_rows_of_the_others(shards, tmp_path, part, options):
    assert main(["index", shards]) == 0
    assert main(["index", str(tmp_path / part), *options]) == 0
    assert len(Index.load(str(tmp_path / "s.index.parquet"))) == sum(COUNTS)
    assert keys(shards, index=True) == keys(shards)
    assert main(["index", "--check", shards]) == 0
    assert os.listdir(tmp_path).count("s.index.parquet") == 1


def test_a_file_url_names_a_shard_of_the_set(shards, tmp_path):
    assert main(["index", shards]) == 0
    part = f"file:{tmp_path}/s%30003.tar"
    assert default_index_path(part) == str(tmp_path / "s.index.parquet")
    assert main(["index", part]) == 0
    assert keys(part, index=True) == keys(part)
    assert main(["index", part, "-o", f"file://{tmp_path}/s.index.parquet"]) == 0
    assert main(["verify", part, "--index", f"file:{tmp_path}/s.index.parquet"]) == 0
    assert len(Index.load(f"file:{tmp_path}/s.index.parquet")) == sum(COUNTS)
    assert sorted(set(os.listdir(tmp_path))) == ["s.index.parquet", *NAMES]


def test_an_index_of_file_urls_is_made_beside_them(shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert keys("file:s{0000..0003}.tar", index=True) == keys(shards)
    assert keys(["file:s0000.tar", str(tmp_path / "s0001.tar")], index=True)
    with wds.ShardWriter(f"file:{tmp_path}/w-%d.tar", index=True) as sink:
        sink.write({"__key__": "a", "txt": "x"})
    split("s0000.tar", f"file:{tmp_path}/p-%d.tar")
    map_shards(copy.copy, "s{0000..0001}.tar", f"file:{tmp_path}/job/{{stem}}.tar", jobs=1)
    assert keys("job/s{0000..0001}.tar") == keys("s{0000..0001}.tar")
    for name, count in (("w", 1), ("p", COUNTS[0]), ("job/s", 27), ("s", sum(COUNTS))):
        assert len(Index.load(f"{name}.index.parquet")) == count


def test_indexing_a_part_of_a_set_does_not_lose_its_columns(shards, tmp_path, capsys):
    assert main(["index", shards, "--column", "label=cls:value"]) == 0
    before = (tmp_path / "s.index.parquet").read_bytes()
    assert main(["index", str(tmp_path / "s0003.tar")]) != 0
    assert "columns label" in capsys.readouterr().err
    assert (tmp_path / "s.index.parquet").read_bytes() == before
    assert main(["index", shards]) == 0  # the whole set: as it was asked for
    assert Index.load(str(tmp_path / "s.index.parquet")).columns == []


def test_a_file_that_the_user_names_holds_what_was_asked_for(shards, tmp_path):
    out = str(tmp_path / "mine.parquet")
    assert main(["index", shards, "-o", out]) == 0
    assert main(["index", str(tmp_path / "s0003.tar"), "-o", out]) == 0
    assert len(Index.load(out)) == COUNTS[3]


def test_a_part_of_a_copied_set_keeps_the_rows_of_the_others_unread(shards, tmp_path, monkeypatch):
    from penstock.shards.index import part_files

    assert main(["index", shards]) == 0
    for shard in tmp_path.glob("*.tar"):
        os.utime(shard, (2_000_000_000, 2_000_000_000))
    scan, scanned = part_files.scan_shard, []
    monkeypatch.setattr(
        part_files, "scan_shard", lambda url, *a, **k: (scanned.append(url), scan(url, *a, **k))[1]
    )
    one = str(tmp_path / "s0003.tar")
    assert main(["index", one, "--jobs", "0"]) == 0
    assert len(Index.load(str(tmp_path / "s.index.parquet"))) == sum(COUNTS)
    assert scanned == [one]
    assert keys(shards, index=True) == keys(shards)


@pytest.mark.parametrize("added_by", ["command", "reader", "writer"])
def test_shards_that_changed_are_indexed_again_with_a_part_of_their_set(
    shards, tmp_path, caplog, added_by
):
    assert main(["index", shards]) == 0
    (tmp_path / "s0000.tar").unlink()
    with wds.TarWriter(str(tmp_path / "s0001.tar")) as sink:
        sink.write({"__key__": "new", "cls": 1})
    (tmp_path / "s0002.tar").write_bytes(b"damaged")
    added = str(tmp_path / "s0004.tar")
    if added_by == "writer":
        with wds.ShardWriter(
            f"{tmp_path}/s%04d.tar", start_shard=4, maxcount=9, verbose=0, index=True
        ) as sink:
            sink.write({"__key__": "4-0", "cls": 1})
    else:
        with wds.TarWriter(added) as sink:
            sink.write({"__key__": "4-0", "cls": 1})
    if added_by == "command":
        assert main(["index", str(tmp_path / "s0003.tar"), added]) == 0
    elif added_by == "reader":
        keys([str(tmp_path / "s0003.tar"), added], index=True)
    index = Index.load(str(tmp_path / "s.index.parquet"))
    assert list(index.keys) == ["new", *(f"3-{n}" for n in range(COUNTS[3])), "4-0"]
    assert "1 shards that no longer exist" in caplog.text
    assert "left out of the index: " in caplog.text
    assert "s0002.tar" in caplog.text


def test_building_returns_the_index_of_the_shards_asked_for(shards, tmp_path):
    wds.build_index(shards, default_index_path(shards))
    progress: list[str] = []
    one = str(tmp_path / "s0003.tar")
    index = wds.build_index(one, default_index_path(one), progress=lambda s: progress.append(s.url))
    assert (len(index), progress) == (COUNTS[3], [one])


@pytest.mark.parametrize("size", [1, 2])
def test_sources_of_one_folder_do_not_rewrite_a_common_index(shards, tmp_path, size):
    written: dict[str, int] = {}
    for first in range(0, 4, size):
        part = [str(tmp_path / f"s{n:04d}.tar") for n in range(first, first + size)]
        assert keys(part, index=True) == keys(part)
        for name in tmp_path.glob("*.parquet"):
            assert written.setdefault(name.name, name.stat().st_mtime_ns) == name.stat().st_mtime_ns
    assert len(written) == 4 // size
    for first in range(0, 4, size):  # all of them are found again
        part = [str(tmp_path / f"s{n:04d}.tar") for n in range(first, first + size)]
        assert keys(part, index=True) == keys(part)
    assert keys(shards, index=True) == keys(shards)
    assert len(Index.load(str(tmp_path / "s.index.parquet"))) == sum(COUNTS)


def test_sources_that_share_an_index_verify_it_once(shards, tmp_path, monkeypatch):
    """Otherwise a mixture of a thousand shards needs a minute for its first sample."""
    from penstock.shards.index import row_source

    names = []
    for number in range(30):
        names.append(str(tmp_path / f"t{number:04d}.tar"))
        with wds.TarWriter(names[-1]) as sink:
            sink.write({"__key__": str(number), "cls": number})
    build_index(names, default_index_path(names))
    verify, realpath = row_source.verify_checksum, os.path.realpath
    verified, resolved = [], []
    monkeypatch.setattr(
        row_source, "verify_checksum", lambda path: verified.append(path) or verify(path)
    )
    monkeypatch.setattr(
        os.path, "realpath", lambda path, **options: resolved.append(path) or realpath(path)
    )
    mixed = wds.mix([wds.WebDataset(name, index=True, shardshuffle=False) for name in names])
    assert len(list(mixed)) == 30
    assert len(verified) == 1
    assert len([path for path in resolved if path.endswith(".tar")]) <= 10 * len(names)


def test_an_index_that_was_replaced_is_read_again(shards, tmp_path):
    first = str(tmp_path / "s0000.tar")
    old = open_index(first)
    assert main(["index", shards, "--column", "label=cls:value"]) == 0
    new = open_index(first)
    assert (old.columns, new.columns) == ([], ["label"])


def test_sources_that_are_opened_at_once_get_an_index_each(shards, tmp_path):
    start = threading.Barrier(4)

    def read(number):
        start.wait()
        return keys(str(tmp_path / f"s{number:04d}.tar"), index=True)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read, range(4)))
    assert found == [keys(str(tmp_path / f"s{number:04d}.tar")) for number in range(4)]
    assert len(list(tmp_path.glob("*.parquet"))) == 4


def test_an_index_of_an_earlier_version_is_found_from_any_part(shards, tmp_path):
    wds.build_index(shards, str(tmp_path / "s.index.parquet"))
    before = sorted(os.listdir(tmp_path))
    assert keys(str(tmp_path / "s0002.tar"), index=True) == keys(str(tmp_path / "s0002.tar"))
    assert sorted(os.listdir(tmp_path)) == before


def test_shards_that_replace_a_set_take_its_index(shards, tmp_path):
    assert keys(shards, index=True)
    for number in range(4):
        os.rename(tmp_path / f"s{number:04d}.tar", tmp_path / f"s{number:02d}.tar")
    assert len(keys(str(tmp_path / "s{00..03}.tar"), index=True)) == sum(COUNTS)
    assert [name for name in os.listdir(tmp_path) if "parquet" in name] == ["s.index.parquet"]


@pytest.mark.parametrize("path", ["typo/s0000.tar", "typo/deep/s{0000..0003}.tar", "s0009.tar"])
def test_a_mistyped_path_makes_no_folder(shards, tmp_path, path):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(wds.StorageError, match="there is no such"):
        keys(str(tmp_path / path), index=True)
    assert main(["index", str(tmp_path / path)]) != 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("options", [[], ["--on-error", "skip"]])
def test_a_shard_that_does_not_exist_leaves_no_folders(shards, tmp_path, options, capsys):
    """Also if others of the set exist."""
    out = tmp_path / "new" / "folder" / "i.parquet"
    named = str(tmp_path / "s{0003..0005}.tar")
    assert main(["index", named, "-o", str(out), *options]) == (1 if options else 3)
    assert "s0004.tar" in "".join(capsys.readouterr())
    assert os.path.exists(tmp_path / "new") == os.path.exists(out) == bool(options)
    assert main(["index", str(tmp_path / "t{0..1}.tar"), "-o", f"{tmp_path}/x/i", *options]) != 0
    assert not os.path.exists(tmp_path / "x")
