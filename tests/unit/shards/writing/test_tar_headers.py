"""The headers before a member, as other tar readers understand them."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PipelineError, WriteError
from penstock.shards import header as tar
from penstock.shards.writing.tar_headers import MAX_SIZE, Headers, pax_record


def first(blocks: bytes) -> tarfile.TarInfo:
    """The member as the standard library reads it; its data is not there."""
    with tarfile.open(fileobj=io.BytesIO(blocks), mode="r|") as archive:
        member = archive.next()
    assert member is not None
    return member


def test_a_plain_header_says_what_it_was_given() -> None:
    blocks = Headers("me", "us", 0o640, 12)(b"d/a.txt", 5)
    assert len(blocks) == 512
    member = first(blocks)
    assert (member.name, member.size, member.mode, member.mtime) == ("d/a.txt", 5, 0o640, 12)
    assert (member.uname, member.gname, member.uid, member.gid) == ("me", "us", 0, 0)
    assert member.type == tarfile.REGTYPE
    tar.verify(blocks, "x.tar", 0)


@given(st.binary(min_size=1, max_size=100).filter(lambda name: 0 not in name))
def test_every_checksum_is_right(name: bytes) -> None:
    blocks = Headers(format="gnu")(name, len(name) * 1234567)
    tar.verify(blocks, "x.tar", 0)
    assert tar.name_of(blocks) == name
    assert tar.size_of(blocks, "x.tar", 0) == len(name) * 1234567


@pytest.mark.parametrize("form", [None, "pax", "gnu", "ustar"])
@pytest.mark.parametrize("length", [1, 99, 100, 101, 155, 156, 200, 255, 256])
def test_names_of_every_length_come_back(form: str | None, length: int) -> None:
    name = ("d" * 60 + "/") * 4
    name = name[: length - 1].rstrip("/") + "x" * (length - len(name[: length - 1].rstrip("/")))
    assert len(name) == length
    if form == "ustar" and length > 244:
        with pytest.raises(WriteError, match="remove format="):
            Headers(format=form)(name.encode(), 0)
        return
    assert first(Headers(format=form)(name.encode(), 0)).name == name


@pytest.mark.parametrize("form", [None, "pax", "gnu"])
@pytest.mark.parametrize("name", ["x" * 101, "x" * 5000, "ä" * 60, "日本/" * 40 + "語", "e\u0301"])
def test_long_and_foreign_names_come_back(form: str | None, name: str) -> None:
    assert first(Headers(format=form)(name.encode(), 0)).name == name


def test_a_name_that_is_not_utf8_comes_back() -> None:
    for form in (None, "pax", "gnu", "ustar"):
        member = first(Headers(format=form)(b"a\xff.txt", 0))
        assert member.name.encode("utf-8", "surrogateescape") == b"a\xff.txt"


def test_short_ascii_names_need_no_second_header_by_default() -> None:
    prefixed = b"d" * 150 + b"/" + b"x" * 100
    for name in (b"a", b"x" * 100, prefixed):
        assert len(Headers()(name, MAX_SIZE)) == 512


def test_a_size_from_8_gib_on_comes_back() -> None:
    for size in (MAX_SIZE, MAX_SIZE + 1, 1 << 40):
        for form in (None, "pax", "gnu"):
            assert first(Headers(format=form)(b"a.bin", size)).size == size
    assert len(Headers()(b"a.bin", MAX_SIZE)) == 512
    with pytest.raises(WriteError, match="8 GiB"):
        Headers(format="ustar")(b"a.bin", MAX_SIZE + 1)


def test_a_fraction_of_a_second_is_kept_by_pax_alone() -> None:
    assert first(Headers(mtime=1.75, format="pax")(b"a", 0)).mtime == 1.75
    assert len(Headers(mtime=2.0, format="pax")(b"a", 0)) == 512
    for form in (None, "ustar", "gnu"):
        blocks = Headers(mtime=1.75, format=form)(b"a", 0)
        assert len(blocks) == 512
        assert first(blocks).mtime == 1


def test_formats_are_named_or_numbered_as_in_tarfile() -> None:
    numbers = tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT
    for name, number in zip(("ustar", "gnu", "pax"), numbers):
        assert Headers(format=number).format == Headers(format=name).format == name
    assert Headers(format="gnu")(b"a", 0)[257:265] == b"ustar  \0"
    assert Headers()(b"a", 0)[257:265] == b"ustar\x0000"


@pytest.mark.parametrize(
    "options",
    [
        {"format": "zip"},
        {"format": 3},
        {"format": True},
        {"mode": -1},
        {"mode": 0o10000},
        {"mode": "r"},
        {"mtime": -1},
        {"mtime": float("nan")},
        {"mtime": 1e12},
        {"user": "x" * 32},
        {"group": "a\0b"},
        {"user": None},
    ],
)
def test_what_no_header_can_hold_is_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match=next(iter(options))):
        Headers(**options)  # type: ignore[arg-type]


@given(st.integers(0, 1200))
def test_a_pax_record_counts_its_own_length(size: int) -> None:
    record = pax_record(b"path", b"x" * size)
    assert int(record.split(b" ")[0]) == len(record)
    assert tar.pax_records(record, "x.tar", 0) == {b"path": b"x" * size}


@pytest.mark.parametrize(("folder", "headers"), [(154, 1), (155, 1), (156, 3)])
def test_the_prefix_holds_155_bytes(folder: int, headers: int) -> None:
    name = "d" * folder + "/" + "x" * 100
    blocks = Headers()(name.encode(), 0)
    assert len(blocks) == headers * 512
    assert first(blocks).name == name
