"""The index says of every shard what reading it says."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DuplicateError, ShardError, TarWriter, WebDataset
from penstock.shards.index import SampleReader, build_index
from penstock.shards.index.scan import scan_shard

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}

names = st.text(st.sampled_from("abßü-_ "), min_size=1, max_size=8)
keys = st.builds(
    lambda n, text, times: f"{n}{text * times}", st.integers(0, 9), names, st.integers(1, 20)
)
fields = st.dictionaries(
    st.sampled_from(["cls", "jpg", "JSON", "seg.png", "a b", "[x", ""]),
    st.binary(max_size=2000),
    min_size=1,
    max_size=4,
)
samples = st.lists(st.tuples(keys, fields), max_size=6, unique_by=lambda item: item[0])
extras = st.sampled_from(["", "folder", "link", "meta", "nodot"])


def write(path: Path, content: list[tuple[str, dict[str, bytes]]], form: int, extra: str) -> None:
    with tarfile.open(path, "w", format=form) as tar:
        for key, sample in content:
            if extra:
                add_extra(tar, extra, key)
            for field, data in sample.items():
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size, info.mtime = len(data), 1.5
                tar.addfile(info, io.BytesIO(data))


def add_extra(tar: tarfile.TarFile, kind: str, key: str) -> None:
    info = tarfile.TarInfo({"meta": f"__meta__/{key}.x"}.get(kind, f"{kind}-{key}"))
    if kind == "folder":
        info.type = tarfile.DIRTYPE
    elif kind == "link":
        info.type, info.linkname = tarfile.SYMTYPE, "x" * 120
    else:
        info.size = 700
    tar.addfile(info, io.BytesIO(bytes(info.size)) if info.size else None)


def in_order(path: Path) -> list[dict[str, Any]]:
    return list(WebDataset(str(path), shardshuffle=False, empty_check=False))


@pytest.mark.parametrize("form", FORMATS)
@given(content=samples, extra=extras)
@settings(max_examples=25, deadline=None)
def test_any_sample_by_its_row_equals_the_one_read_in_order(
    form: str, content: list[tuple[str, dict[str, bytes]]], extra: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tar"
        try:
            write(path, content, FORMATS[form], extra)
        except ValueError:
            return  # a name that ustar cannot hold
        index = build_index(str(path), f"{folder}/x.parquet")
        reader = SampleReader(index, local_paths=True)
        expected = in_order(path)
        assert list(index.keys) == [sample["__key__"] for sample in expected]
        for row in reversed(range(len(index))):
            assert list(reader.read(row).items()) == list(expected[row].items())


@pytest.mark.parametrize("form", FORMATS)
def test_offsets_are_those_of_the_first_headers_and_sizes_lead_to_the_next(
    form: str, tmp_path: Path
) -> None:
    content = [("a" * 90, {"jpg": b"x" * 700, "cls": b"1"}), ("b", {"jpg": b""})]
    write(tmp_path / "x.tar", content, FORMATS[form], "")
    index = build_index(str(tmp_path / "x.tar"), tmp_path / "x.parquet")
    with tarfile.open(tmp_path / "x.tar") as tar:
        members = tar.getmembers()
    assert index.offset.tolist() == [members[0].offset, members[2].offset]
    assert index.offset[0] + index.size[0] == index.offset[1]
    assert index.fields_of(0) == {
        "jpg": (members[0].offset_data, 700),
        "cls": (members[1].offset_data, 1),
    }


def test_a_key_that_is_not_utf8_comes_back(tmp_path: Path) -> None:
    key = b"\xff\xfe".decode("utf-8", "surrogateescape")
    with TarWriter(str(tmp_path / "x.tar")) as sink:
        sink.write({"__key__": key, "cls": 1})
    index = build_index(str(tmp_path / "x.tar"), tmp_path / "x.parquet")
    assert index.keys[0] == key
    assert SampleReader(index).read(0)["__key__"] == key


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    content = [("a", {"cls": b"1"}), ("b", {"cls": b"1"}), ("a", {"cls": b"1"})]
    write(tmp_path / "x.tar", content, tarfile.USTAR_FORMAT, "")
    with pytest.raises(DuplicateError, match="'a' occurs twice"):
        build_index(str(tmp_path / "x.tar"), tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


def test_a_shard_cut_inside_a_member_is_an_error(tmp_path: Path) -> None:
    whole = tmp_path / "x.tar"
    write(whole, [("a", {"cls": b"1"}), ("b", {"cls": b"2"})], tarfile.USTAR_FORMAT, "")
    data = whole.read_bytes()
    for end in (0, 100, 512, 600, 1536, 2000):
        (tmp_path / "cut.tar").write_bytes(data[:end])
        with pytest.raises(ShardError, match=r"cut\.tar"):
            scan_shard(str(tmp_path / "cut.tar"))


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_compressed_shard_is_indexed_but_not_read_at_random(tmp_path: Path, ending: str) -> None:
    for name in ("x.tar", f"x.tar.{ending}"):
        with TarWriter(str(tmp_path / name)) as sink:
            for number in range(3):
                sink.write({"__key__": str(number), "cls": number})
    plain = build_index(str(tmp_path / "x.tar"), tmp_path / "plain.parquet")
    index = build_index(str(tmp_path / f"x.tar.{ending}"), tmp_path / "x.parquet")
    assert index.shards[0].compressed
    assert not plain.shards[0].compressed
    assert index.offset.tolist() == plain.offset.tolist()
    with pytest.raises(ShardError, match="compressed shard"):
        SampleReader(index).read(0)


def test_joined_tars_are_indexed_to_the_end(tmp_path: Path) -> None:
    parts = []
    for key in "ab":
        with TarWriter(str(tmp_path / f"{key}.tar")) as sink:
            sink.write({"__key__": key, "txt": key})
        parts.append((tmp_path / f"{key}.tar").read_bytes())
    (tmp_path / "joined.tar").write_bytes(b"".join(parts))
    index = build_index(str(tmp_path / "joined.tar"), tmp_path / "x.parquet", concatenated=True)
    assert [SampleReader(index).read(row)["txt"] for row in range(2)] == [b"a", b"b"]
