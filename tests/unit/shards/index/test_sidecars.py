"""DALI's index files, read as an index."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import PipelineError, ShardError, TarWriter
from penstock.errors import PenstockError, StaleIndexError
from penstock.shards.index import SampleReader, open_index

MakeShards = Callable[..., str]


def members(path: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(path) as tar:
        return tar.getmembers()


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


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("shardindex.json", b'{"__kind__": "wids-shard-index-v1", "shardlist": []}'),
        ("sizes.json", b'{"train-000.tar": 4}'),
        ("train-000.tar.idx", struct.pack("<2Q", 0, 2048)),  # Energon: offsets of samples
        ("a.json", b"{"),
        ("c.idx", b"1234567"),
    ],
)
def test_index_files_other_than_dalis_are_refused_with_a_remedy(
    make_shards: MakeShards, tmp_path: Path, name: str, data: bytes
) -> None:
    urls = make_shards(4, 4)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ShardError, match=rf"unknown kind of index.*index=True.*{name}"):
        open_index(urls, tmp_path / name)


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


def test_a_dali_text_older_than_its_shard_is_used_if_both_ends_fit(
    make_shards: MakeShards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls = make_shards(8, 4)
    files = dali(tmp_path)
    for file in files:
        os.utime(file, (0, 0))  # copied before the shards were
    assert len(open_index(urls, files)) == 8
    assert len(caplog.messages) == 1
    with TarWriter(f"{tmp_path}/train-000.tar") as sink:
        for number in range(4):
            sink.write({"__key__": f"z{number}", "cls": number, "txt": "text 0"})
    with pytest.raises(StaleIndexError, match=r"changed after the sidecar.*train-000\.tar"):
        open_index(urls, files)


def test_a_dali_text_with_a_wrong_count_is_an_error(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls = make_shards(4, 4)
    (tmp_path / "d.idx").write_text("v1.2 2\ncls 512 1 k0.cls\n")
    with pytest.raises(ShardError, match=r"'v1\.2 1'"):
        open_index(urls, tmp_path / "d.idx")


def test_each_shard_needs_its_own_dali_text(make_shards: MakeShards) -> None:
    urls = make_shards(4, 4)
    with pytest.raises(PipelineError, match="2 files for 1 shards"):
        open_index(urls, ["a.idx", "b.idx"])


def lines(*members: str) -> bytes:
    return f"v1.2 1\n{' '.join(members)}\n".encode()


DALI_TEXTS = [
    b"v1.2",
    b"v1.2 x\n",
    lines("cls 512 1"),
    lines(f"cls {'9' * 5000} 1 k0.cls"),
    lines(f"cls {1 << 70} 1 k0.cls"),
    lines(f"cls 512 {1 << 62} k0.cls"),
    lines("cls 99999999 1 k0.cls"),
    lines("cls 1536 8 k0.cls", "txt 512 1 k0.txt"),
    lines("cls 1024 1 k0.cls", "txt 0 0 k0.txt"),
]


@pytest.mark.parametrize("text", DALI_TEXTS, ids=range(len(DALI_TEXTS)))
def test_an_impossible_dali_text_is_an_error(
    make_shards: MakeShards, tmp_path: Path, text: bytes
) -> None:
    urls = make_shards(4, 4)
    (tmp_path / "a.idx").write_bytes(text)
    with pytest.raises(ShardError):
        SampleReader(open_index(urls, tmp_path / "a.idx")).read(0)


def test_a_changed_byte_of_a_dali_text_is_no_foreign_exception(
    make_shards: MakeShards, tmp_path: Path, flips: int
) -> None:
    urls = make_shards(8, 4)
    index = dali(tmp_path)
    path = Path(index[0])
    whole = path.read_bytes()
    chosen = random.Random(0)
    for _ in range(flips):
        damage = bytearray(whole)
        damage[chosen.randrange(len(damage))] = chosen.randrange(256)
        path.write_bytes(damage)
        with contextlib.suppress(PenstockError):
            reader = SampleReader(open_index(urls, index))
            for row in range(len(reader.index)):
                reader.read(row)
