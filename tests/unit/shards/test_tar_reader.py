"""The complete reader: every form of tar there is, and every way one can be broken."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
import tracemalloc
import warnings
import zipfile

import pytest

from penstock.errors import ShardError, ShardWarning
from penstock.shards.header import BLOCK, name_of, number, padded, pax_records, verify
from penstock.shards.open_shard import open_shard, tape_of
from tar_files import SlowStream, tar_bytes

LONG = "folder/" * 20 + "name-that-is-long" * 10 + ".txt"
FILES = {"a.txt": b"hello", "b/c.bin": bytes(range(256)) * 5, "empty.txt": b"", "d.x": b"x" * 512}


def tar_of(files, *format, **attributes) -> bytes:
    return tar_bytes(files.items(), *format, **attributes)


def header(name: bytes, size: bytes | int = 0, kind: bytes = b"0", **parts: bytes) -> bytes:
    """One header made by hand, with the right checksum."""
    head = bytearray(BLOCK)
    head[: len(name)] = name
    size = b"%011o\0" % size if isinstance(size, int) else size
    head[124 : 124 + len(size)] = size
    head[156:157] = kind
    magic = parts.get("magic", b"ustar\x0000")
    head[257 : 257 + len(magic)] = magic
    prefix = parts.get("prefix", b"")
    head[345 : 345 + len(prefix)] = prefix
    return summed(head)


def summed(head: bytes) -> bytes:
    head = bytearray(head)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def block(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


END = bytes(2 * BLOCK)


def members(data: bytes, *, most: int | None = None, **options):
    """(name, data) of all members, read as a stream."""
    source = SlowStream(data) if most is None else SlowStream(data, most)
    return [(m.name.decode(), m.data) for m in tape_of(source, "x.tar", **options)]


def file_members(path, **options):
    with open_shard(str(path), **options) as tape:
        return [(m.name.decode(), m.data) for m in tape]


# ── what the format allows ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("most", [1, 7, 512, 1000, 1 << 20])
def test_every_format_of_the_standard_library_is_read(format, most):
    data = tar_of(FILES, format, mtime=1.5 if format == tarfile.PAX_FORMAT else 1)
    assert members(data, most=most) == list(FILES.items())


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(
    "name", [LONG, "a" * 100 + ".txt", "grün/日本語-🎈.txt", "ü" * 90 + ".txt"]
)
def test_long_and_unicode_names_are_read_whole(format, name):
    assert members(tar_of({name: b"1", "z.txt": b"2"}, format)) == [(name, b"1"), ("z.txt", b"2")]


def test_a_name_of_exactly_100_bytes_has_no_end_mark():
    name = "n" * 96 + ".txt"
    assert members(tar_of({name: b"1"})) == [(name, b"1")]


def test_the_posix_prefix_stands_before_the_name():
    name = "p" * 120 + "/" + "n" * 90 + ".txt"
    assert members(tar_of({name: b"1"})) == [(name, b"1")]
    made = header(b"a.txt", 1, prefix=b"dir") + block(b"1") + END
    assert members(made) == [("dir/a.txt", b"1")]


@pytest.mark.parametrize("magic", [b"ustar  \0", b"\0" * 8])
def test_gnu_and_v7_headers_have_other_things_where_the_prefix_would_be(magic):
    made = header(b"a.txt", 1, magic=magic, prefix=b"12345670123") + block(b"1") + END
    assert members(made) == [("a.txt", b"1")]


def test_v7_headers_are_read_and_their_folders_skipped():
    made = header(b"dir/", 0, b"\0", magic=b"") + header(
        b"dir/a.txt", b"      5 ", b"\0", magic=b""
    )
    assert members(made + block(b"hello") + END) == [("dir/a.txt", b"hello")]


def test_contiguous_files_are_files():
    assert members(header(b"a.txt", 2, b"7") + block(b"hi") + END) == [("a.txt", b"hi")]


@pytest.mark.parametrize("kind", list(b"123456V"))
def test_links_devices_folders_pipes_and_labels_are_skipped_whatever_their_size(kind):
    made = header(b"odd", 700, bytes([kind])) + header(b"a.txt", 1) + block(b"1") + END
    assert members(made) == [("a.txt", b"1")]


def test_everything_that_the_standard_library_can_write_besides_files_is_skipped(tmp_path):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE,
                     tarfile.CHRTYPE, tarfile.BLKTYPE):  # fmt: skip
            info = tarfile.TarInfo("long/" * 30 + "odd.txt")
            info.type, info.linkname = kind, "target/" * 30
            tar.addfile(info)
        info = tarfile.TarInfo("a.txt")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"1"))
    assert members(target.getvalue()) == [("a.txt", b"1")]


def test_a_name_told_for_a_folder_is_not_taken_for_the_next_file():
    pax = b"20 path=other/name.x\n"
    pax = b"%d path=other/name.x\n" % len(pax)
    made = header(b"x", len(pax), b"x") + block(pax) + header(b"dir", 0, b"5")
    assert members(made + header(b"a.txt", 1) + block(b"1") + END) == [("a.txt", b"1")]


def test_global_pax_headers_are_passed_over():
    target = io.BytesIO()
    with tarfile.open(
        fileobj=target, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "made here"}
    ) as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"1"))
    assert target.getvalue()[156:157] == b"g"
    assert members(target.getvalue()) == [("a.txt", b"1")]


def test_a_global_pax_header_that_names_all_members_is_refused():
    pax = b"10 path=x\n"
    with pytest.raises(ShardError, match=r"global PAX header .*x\.tar, byte 0"):
        members(header(b"g", len(pax), b"g") + block(pax) + END)


def test_a_pax_size_wins_over_the_headers_own_also_before_a_long_name():
    pax, name = b"11 size=13\n", LONG.encode() + b"\0"
    made = header(b"x", len(pax), b"x") + block(pax)
    made += header(b"././@LongLink", len(name), b"L") + block(name)
    made += header(b"cut", 0) + block(b"thirteen byte") + END
    assert members(made) == [(LONG, b"thirteen byte")]


def test_an_empty_pax_header_is_one():
    made = header(b"x", 0, b"x") + header(b"a.txt", 1) + block(b"1") + END
    assert members(made) == [("a.txt", b"1")]


def test_base_256_sizes_are_read():
    size = b"\x80" + (5).to_bytes(11, "big")
    assert members(header(b"a.txt", size) + block(b"hello") + END) == [("a.txt", b"hello")]
    assert number(size) == 5
    assert number(b"\xff" * 12) == -1


def test_nine_gigabytes_are_passed_over_unread(tmp_path):
    big = 9 << 30
    path = tmp_path / "big.tar"
    with open(path, "wb") as file:
        file.write(header(b"big.bin", b"\x80" + big.to_bytes(11, "big")))
        file.truncate(BLOCK + big)
        file.seek(0, os.SEEK_END)
        file.write(header(b"a.txt", 1) + block(b"1") + END)
    found = file_members(path, want=lambda name: name == b"a.txt")
    assert found == [("big.bin", None), ("a.txt", b"1")]
    pax = b"19 size=%d\n" % big
    with open(path, "r+b") as file:
        file.truncate(0)
        file.write(header(b"x", len(pax), b"x") + block(pax) + header(b"big.bin", 0))
        file.truncate(3 * BLOCK + big)
        file.seek(0, os.SEEK_END)
        file.write(header(b"a.txt", 1) + block(b"1") + END)
    with open_shard(str(path), want=lambda name: name == b"a.txt") as tape:
        assert [(m.name, m.size, m.offset) for m in tape] == [
            (b"big.bin", big, 0),
            (b"a.txt", 1, 3 * BLOCK + big),
        ]


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_what_the_tar_command_writes_is_read(tmp_path, form):
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    name = "long" * 15 if form in ("v7", "ustar") else "long" * 40
    wanted = {"sub/a.txt": b"1", "sub/b.bin": bytes(3000), f"sub/{name}.txt": b"long"}
    for file, data in wanted.items():
        (folder / file).write_bytes(data)
    os.symlink("a.txt", folder / "sub" / "link.txt")
    os.link(folder / "sub" / "b.bin", folder / "sub" / "zz-hard.bin")
    shard = tmp_path / "x.tar"
    command = [
        "tar",
        f"--format={form}",
        "--sort=name",
        "-cf",
        str(shard),
        "-C",
        str(folder),
        "sub",
    ]
    subprocess.run(command, check=True)
    assert dict(file_members(shard)) == wanted
    assert dict(members(shard.read_bytes(), most=1001)) == wanted


def test_a_volume_label_of_the_tar_command_is_skipped(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"1")
    shard = tmp_path / "x.tar"
    command = [
        "tar",
        "--format=gnu",
        "-V",
        "label",
        "-cf",
        str(shard),
        "-C",
        str(tmp_path),
        "a.txt",
    ]
    subprocess.run(command, check=True)
    assert file_members(shard) == [("a.txt", b"1")]


def test_sparse_members_are_refused_with_the_remedy(tmp_path):
    with open(tmp_path / "a.txt", "wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    for form in ("gnu", "pax"):
        shard = tmp_path / f"{form}.tar"
        command = ["tar", f"--format={form}", "-S", "-cf", str(shard), "-C", str(tmp_path), "a.txt"]
        subprocess.run(command, check=True)
        with pytest.raises(ShardError, match="pack the shard again"):
            file_members(shard)


def test_a_checksum_of_signed_bytes_is_right_too():
    head = bytearray(header("ü.txt".encode(), 1))
    head[148:156] = b" " * 8
    signed = sum(byte if byte < 128 else byte - 256 for byte in head)
    head[148:156] = b"%06o\0 " % signed
    assert members(bytes(head) + block(b"1") + END) == [("ü.txt", b"1")]


@pytest.mark.parametrize("form", [b"%06o\0 ", b"%06o \0", b"%7o\0", b"  %06o", b"%08o", b"%07o "])
def test_checksums_are_read_in_all_their_forms(form):
    head = bytearray(header(b"a.txt", 1))
    head[148:156] = b" " * 8
    text = form % sum(head)
    head[148:156] = text
    verify(bytes(head), "x.tar", 0)


def test_offsets_and_sizes_point_at_the_data():
    data = tar_of({"a.txt": b"hello", LONG: b"x" * 600}, tarfile.PAX_FORMAT, mtime=1.5)
    for member in tape_of(SlowStream(data), "x.tar"):
        assert data[member.data_offset : member.data_offset + member.size] == member.data
        (again,) = list(tape_of(SlowStream(data), "x.tar", start=member.offset))[:1]
        assert again == member


def test_a_file_that_is_open_already_is_read_from_where_it_stands(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"junk" + tar_of(FILES))
    with open(path, "rb") as file:
        file.read(4)
        assert [(m.name.decode(), m.data) for m in tape_of(file, "x")] == list(FILES.items())


# ── joined tars ─────────────────────────────────────────────────────────────────────────


def test_data_behind_the_end_is_told_and_not_read():
    one = tar_of({"a.txt": b"1"})
    with pytest.warns(ShardWarning, match=rf"x\.tar, byte {len(one)}; .*concatenated=True"):
        assert members(one + tar_of({"b.txt": b"2"})) == [("a.txt", b"1")]


@pytest.mark.parametrize("most", [1, 13, 511, 512, 513, 10240, 1 << 20])
@pytest.mark.parametrize("trailer", [BLOCK, 2 * BLOCK, 7 * BLOCK])
def test_joined_tars_are_read_on_when_asked(tmp_path, most, trailer):
    parts = [tar_of({f"{n}.txt": b"%d" % n * 700}).rstrip(b"\0") for n in range(3)]
    joined = b"".join(block(part) + bytes(trailer) for part in parts)
    wanted = [(f"{n}.txt", b"%d" % n * 700) for n in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert members(joined, most=most, concatenated=True) == wanted
        (tmp_path / "x.tar").write_bytes(joined)
        assert file_members(tmp_path / "x.tar", concatenated=True) == wanted


def test_a_joined_tar_whose_name_begins_with_zeros_is_found():
    second = summed(b"\0\0\0.txt" + header(b"", 1)[7:]) + block(b"2") + END
    made = header(b"a.txt", 1) + block(b"1") + END + second
    for most in (1, 512, 515, 4000):
        assert members(made, most=most, concatenated=True) == [("a.txt", b"1"), ("", b"2")]


def test_rubbish_behind_the_end_is_an_error_when_joined_tars_are_expected():
    with pytest.raises(ShardError, match="checksum"):
        members(tar_of({"a.txt": b"1"}) + b"rubbish" * 100, concatenated=True)


# ── what is broken ──────────────────────────────────────────────────────────────────────


def zipped() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        file.writestr("a.txt", b"hello " * 200)
    return target.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"x", "ends inside a header"),
        (b"just some text\n" * 100, "no tar file"),
        (b"Q" + random.Random(1).randbytes(4000), "no tar file"),
        (zipped(), "no tar file"),
        (b"PK\x03\x04", "ends inside a header"),
        (header(b"a.txt", b"\xff" * 12) + END, "impossible size"),
        (header(b"a.txt", b"zzzzzzzzzzz") + END, "impossible size"),
        (header(b"a.txt", 1, b"A") + block(b"1") + END, "unsupported type 'A'"),
        (header(b"a", 99, b"x") + block(b"12 path=a.txt\n") + END, "damaged PAX"),
        (header(b"a", 5, b"x") + block(b"path=") + END, "damaged PAX"),
        (header(b"a", 9, b"x") + block(b"9 size=x\n") + END, "impossible size"),
        (header(b"a", 2 << 20, b"L") + END, "long name of"),
        (header(b"a", 3, b"L") + block(b"abc") + END, "does not follow"),
    ],
)
def test_what_is_no_tar_is_told_with_its_url_and_byte(tmp_path, data, message):
    (tmp_path / "x.tar").write_bytes(data)
    for read in (lambda: members(data), lambda: file_members(tmp_path / "x.tar")):
        with pytest.raises(ShardError, match=message) as caught:
            read()
        assert caught.value.origin.url.endswith("x.tar")
        assert caught.value.origin.offset is not None


@pytest.mark.parametrize(
    "first",
    [
        random.Random(2).randbytes(512),
        bytes(range(128, 256)) * 4,
        b"a/very/long/name/" * 5 + bytes(200) + b"ustar" + bytes(222),
    ],
    ids=["random", "high bytes", "a header with a long name and a wrong checksum"],
)
def test_a_first_block_of_garbage_is_not_called_text(first):
    with pytest.raises(ShardError, match="first block is damaged") as caught:
        members(first + tar_of({"a.txt": b"1"}))
    assert "text" not in str(caught.value)
    assert repr(first[:16]) in str(caught.value)


@pytest.mark.parametrize("page", ["<html>Zugriff verweigert: für Sie</html>", '{"error": "é"}'])
def test_a_page_of_text_is_called_text(page):
    with pytest.raises(ShardError, match="this is text and no tar file"):
        members((page * 40).encode()[:1024])


def test_any_changed_byte_of_a_header_is_found():
    good = tar_of({"a.txt": b"hello", "b.txt": b"world"})
    for place in range(1024, 1536):
        for change in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[place] ^= change
            if 154 <= place - 1024 < 156:
                continue  # what ends the number: other ends are no damage
            with pytest.raises(ShardError, match=r"checksum.* \(x\.tar, byte 1024\)"):
                members(bytes(bad))


@pytest.mark.parametrize("form", ["octal", "base256", "pax"])
def test_a_lying_size_takes_no_memory(tmp_path, form):
    size = 1 << 40
    if form == "octal":
        size = 8 << 29
        made = header(b"a.bin", size)
    elif form == "base256":
        made = header(b"a.bin", b"\x80" + size.to_bytes(11, "big"))
    else:
        pax = b"22 size=%d\n" % size
        made = header(b"x", len(pax), b"x") + block(pax) + header(b"a.bin", 0)
    (tmp_path / "x.tar").write_bytes(made + b"little" * 100)
    read = [lambda: members(made + b"little" * 100), lambda: file_members(tmp_path / "x.tar")]
    read += [lambda: file_members(tmp_path / "x.tar", want=lambda name: False)]
    for attempt in read:
        tracemalloc.start()
        try:
            with pytest.raises(ShardError, match="ends inside a member's data"):
                attempt()
            assert tracemalloc.get_traced_memory()[1] < 6 << 20
        finally:
            tracemalloc.stop()


def test_pax_records_may_hold_equal_signs_newlines_and_zeros():
    body = b"17 comment=a=b\nc\n13 path=a\0.b\n"
    assert pax_records(body, "x", 0) == {b"comment": b"a=b\nc", b"path": b"a\0.b"}


def test_sizes_are_rounded_up_to_blocks():
    assert [padded(n) for n in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]
    assert name_of(header(b"n", prefix=b"p")) == b"p/n"
