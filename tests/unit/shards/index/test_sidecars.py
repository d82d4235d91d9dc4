"""The files of other tools."""

from __future__ import annotations

import json
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import PipelineError, ShardError, TarWriter
from penstock.errors import StaleIndexError
from penstock.shards.index import SampleReader, open_index

MakeShards = Callable[..., str]


def members(path: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(path) as tar:
        return tar.getmembers()


def energon(folder: Path, shift: int = 0) -> list[str]:
    """A file per shard: where each sample begins, and where the last one ends."""
    written = []
    for shard in sorted(folder.glob("train-*.tar")):
        found = members(shard)
        offsets = [member.offset + shift for member in found[::2]]
        offsets.append(found[-1].offset_data + 512)
        shard.with_suffix(".tar.idx").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
        written.append(str(shard.with_suffix(".tar.idx")))
    return written


def dali(folder: Path) -> list[str]:
    """A text per shard: version and count, then a line per sample."""
    written = []
    for shard in sorted(folder.glob("train-*.tar")):
        found = members(shard)
        lines = []
        for one, two in zip(found[::2], found[1::2]):
            parts = [
                f"{member.name.split('.', 1)[1]} {member.offset_data} {member.size} {member.name}"
                for member in (one, two)
            ]
            lines.append(" ".join(parts))
        path = shard.with_suffix(".idx")
        path.write_text("\n".join([f"v1.2 {len(lines)}", *lines, ""]))
        written.append(str(path))
    return written


def test_wids_json_is_held_against_the_shards(make_shards: MakeShards, tmp_path: Path) -> None:
    urls = make_shards(10, 4)
    told = [{"url": f"train-{n:03d}.tar", "nsamples": 4, "md5sum": ""} for n in range(3)]
    path = tmp_path / "shardindex.json"
    for last, bytes_of_first in ((2, None), (4, None), (2, 7)):
        told[2]["nsamples"] = last
        if bytes_of_first is not None:
            told[0]["filesize"] = bytes_of_first
        path.write_text(json.dumps({"__kind__": "wids-shard-index-v1", "shardlist": told}))
        if (last, bytes_of_first) == (2, None):
            assert len(open_index(urls, path)) == 10
            continue
        with pytest.raises(StaleIndexError, match=r"shardindex\.json says (4 samples|7 bytes)"):
            open_index(urls, path)


def test_sizes_json_is_held_against_the_shards(make_shards: MakeShards, tmp_path: Path) -> None:
    urls = make_shards(8, 4)
    path = tmp_path / "sizes.json"
    path.write_text(json.dumps({"train-000.tar": 4, "train-001.tar": 4}))
    assert len(open_index(urls, str(path))) == 8
    path.write_text(json.dumps({"train-000.tar": 4}))
    with pytest.raises(StaleIndexError, match=r"does not have this shard.*train-001"):
        open_index(urls, str(path))


def test_energons_offsets_are_held_against_the_shards(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls = make_shards(10, 4)
    assert len(open_index(urls, energon(tmp_path))) == 10
    with pytest.raises(StaleIndexError, match="other offsets"):
        open_index(urls, energon(tmp_path, shift=512))


def test_energons_shards_may_have_the_same_name_in_two_folders(tmp_path: Path) -> None:
    urls, files = [], []
    for folder, count in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        urls.append(f"{tmp_path}/{folder}/train-0.tar")
        with TarWriter(urls[-1]) as sink:
            for number in range(count):
                sink.write({"__key__": str(number), "cls": 1, "txt": "x"})
        files += energon(tmp_path / folder)
    assert len(open_index(urls, files)) == 3


def test_dalis_text_is_an_index(make_shards: MakeShards, tmp_path: Path) -> None:
    urls = make_shards(10, 4)
    index = open_index(urls, dali(tmp_path))
    expected = open_index(urls, True)
    assert list(index.keys) == list(expected.keys)
    assert (index.offset == expected.offset).all()
    assert (index.size == expected.size).all()
    assert [index.fields_of(n) for n in range(10)] == [expected.fields_of(n) for n in range(10)]
    assert SampleReader(index).read(7) == SampleReader(expected).read(7)


def test_dalis_names_may_have_spaces(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("a b.cls", "a b.txt"):
            tar.addfile(tarfile.TarInfo(name))
    index = open_index(f"{tmp_path}/train-0.tar", dali(tmp_path))
    assert list(index.keys) == ["a b"]
    assert list(index.fields_of(0)) == ["cls", "txt"]


def test_a_dali_text_older_than_its_shard_is_stale(make_shards: MakeShards, tmp_path: Path) -> None:
    urls = make_shards(4, 4)
    files = dali(tmp_path)
    os.utime(files[0], (0, 0))
    with pytest.raises(StaleIndexError, match=r"changed after the sidecar.*train-000\.tar"):
        open_index(urls, files)


def test_other_files_are_told(make_shards: MakeShards, tmp_path: Path) -> None:
    urls = make_shards(4, 4)
    for name, data in (("a.json", b"{"), ("b.json", b"[1]"), ("c.idx", b"1234567")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ShardError, match=rf"no index that is known.*{name}"):
            open_index(urls, tmp_path / name)
    (tmp_path / "d.idx").write_text("v1.2 2\ncls 512 1 k0.cls\n")
    with pytest.raises(ShardError, match=r"'v1\.2 1'"):
        open_index(urls, tmp_path / "d.idx")
    with pytest.raises(PipelineError, match="2 files for 1 shards"):
        open_index(urls, ["a.idx", "b.idx"])
