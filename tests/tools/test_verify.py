"""``penstock verify``: one planted fault per code, with its byte."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
import zlib

import numpy as np
import pytest
from tool_shards import picture, tar

import penstock as wds
from penstock import limits, tools
from penstock.errors import ShardError
from penstock.tools.findings import CODES

JPG = picture(1)
GOOD = [("a.jpg", JPG), ("a.cls", b"1"), ("b.jpg", JPG), ("b.cls", b"2")]


def link(name, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "a.jpg"
    return info


def found(shell, line):
    """The findings of a call, and its status."""
    done = shell(f"penstock verify {line} --json")
    findings = [json.loads(text) for text in done.stdout.splitlines()]
    assert done.stderr == ""
    assert all(finding["schema"] == "penstock.verify/1" for finding in findings)
    return findings, done.returncode


def codes(findings):
    return [(finding["code"], finding["offset"], finding["key"]) for finding in findings]


def cut_in_data(path):
    offsets = tar(path, GOOD)
    os.truncate(path, offsets[2] + 512 + 10)
    return offsets[2]


def cut_in_header(path):
    offsets = tar(path, GOOD)
    os.truncate(path, offsets[2] + 100)
    return offsets[2]


def cut_after_long_name(path):
    offsets = tar(path, [*GOOD, ("c" * 200 + ".jpg", JPG)], format=tarfile.GNU_FORMAT)
    os.truncate(path, offsets[4] + 1024 + 512 + 20)
    return offsets[4]


def wrong_checksum(path):
    offsets = tar(path, GOOD)
    data = bytearray(path.read_bytes())
    data[offsets[2] + 5] ^= 1
    path.write_bytes(data)
    return offsets[2]


def no_tar(path):
    path.write_bytes(b"<html>Not found</html>" * 100)
    return 0


def empty_file(path):
    path.write_bytes(b"")
    return 0


def data_after_end(path):
    tar(path, GOOD)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"more" * 300)
    return size


def damaged_gzip(path):
    offsets = tar(path, [(f"{n}.bin", np.random.default_rng(n).bytes(9000)) for n in range(9)])
    packed = gzip.compress(path.read_bytes(), mtime=0)
    path.write_bytes(packed[: len(packed) // 2])
    readable = len(zlib.decompressobj(wbits=31).decompress(path.read_bytes()))
    return max(offset for offset in offsets if offset <= readable)


def no_end_marker(path):
    tar(path, GOOD, end=False)
    return path.stat().st_size


def planted(members, number, **options):
    def make(path):
        return tar(path, members, **options)[number]

    return make


def stale_index(path):
    tar(path, GOOD)
    wds.build_index(str(path), str(path.with_name("x.index.parquet")))
    tar(path, [*GOOD, ("c.jpg", JPG), ("c.cls", b"1")])


def index_of_another_shard(path):
    """The index of a shard of equal size and ends whose second sample is elsewhere."""
    other = [("a.jpg", JPG), ("a.cls", b"1"), ("c.jpg", JPG), ("c.cls", b"2")]
    big = [(f"z{n}.txt", b"x" * 9000) for n in range(30)]
    offsets = tar(path, [*big, *other, *[(f"y{n}.txt", b"x" * 9000) for n in range(30)]])
    wds.build_index(str(path), str(path.with_name("x.index.parquet")))
    tar(path, [*big, *GOOD, *[(f"y{n}.txt", b"x" * 9000) for n in range(30)]])
    return offsets[32]


FAULTS = {
    "PS101": (cut_in_data, "", "b"),
    "PS101 header": (cut_in_header, "", None),
    "PS101 long name": (cut_after_long_name, "", "c" * 200),
    "PS102": (wrong_checksum, "", None),
    "PS103": (no_tar, "", None),
    "PS103 empty": (empty_file, "", None),
    "PS104": (data_after_end, "", None),
    "PS105": (damaged_gzip, "", "4"),
    "PS106": (no_end_marker, "", None),
    "PS201": (planted([*GOOD, ("a.txt", b"x")], 4), "", "a"),
    "PS202": (planted([*GOOD, ("b.cls", b"3")], 4), "", "b"),
    "PS203": (planted([*GOOD, ("a.jpg", JPG), ("a.cls", b"1")], 4), "", "a"),
    "PS204": (planted([*GOOD, ("README", b"x")], 4), "", None),
    "PS205": (planted([*GOOD, ("../c.jpg", JPG)], 4), "", "../c"),
    "PS205 absolute": (planted([*GOOD, ("/c.jpg", JPG)], 4), "", "/c"),
    "PS205 control": (planted([*GOOD, ("c\x1b.jpg", JPG)], 4), "", "c\x1b"),
    "PS206": (planted([*GOOD, link("c.jpg")], 4), "", "c"),
    "PS206 device": (planted([*GOOD, link("c.jpg", tarfile.CHRTYPE)], 4), "", "c"),
    "PS301": (planted([*GOOD, ("c.jpg", JPG)], 4), "--require 'jpg,cls;txt'", "c"),
    "PS302": (planted([*GOOD, ("c.jpg", JPG)], 4), "", "c"),
    "PS303": (planted([*GOOD, ("c.jpg", b""), ("c.cls", b"1")], 4), "", "c"),
    "PS304": (planted([*GOOD, ("c.jpg", JPG[:300]), ("c.cls", b"1")], 4), "--decode", "c"),
    "PS305": (planted([*GOOD, ("c.jpg", picture(1, "PNG")), ("c.cls", b"1")], 4), "", "c"),
    "PS402": (index_of_another_shard, "", "b"),
    "PS501": (planted([*GOOD, ("c.jpg", JPG), link("d.jpg")], 5), "--for webdataset", None),
    "PS502": (planted([("a.gif", b"GIF89a"), ("a.txt", b"x")], 0), "--for open_clip", "a"),
    "PS503": (planted([*GOOD, ("c.jpg", JPG)], 4), "--for hub", "c"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_with_its_byte(fault, shell, tmp_path) -> None:
    make, options, key = FAULTS[fault]
    code = fault.split()[0]
    path = tmp_path / "x-0.tar"
    offset = make(path)
    if code == "PS402":
        status = path.stat()
        stamp = wds.Index.load(tmp_path / "x.index.parquet").shards[0].mtime_ns
        os.utime(path, ns=(status.st_atime_ns, stamp))
    findings, status = found(shell, f"x-0.tar {options}")
    mine = [finding for finding in findings if finding["code"] == code]
    assert [(one["offset"], one["key"]) for one in mine] == [(offset, key)], findings
    assert list(mine[0])[1:] == [
        *("code", "severity", "shard", "key", "offset", "field", "message", "remedy")
    ]
    bad = any(finding["severity"] == "error" for finding in findings)
    assert status == (1 if bad else 0)
    assert mine[0]["severity"] == CODES[code].severity


def test_a_stale_index_is_found(shell, tmp_path) -> None:
    stale_index(tmp_path / "x-0.tar")
    findings, status = found(shell, "x-0.tar")
    assert ([finding["code"] for finding in findings], status) == (["PS401"], 1)


def test_an_index_that_is_not_there_cannot_be_checked(shell, tmp_path) -> None:
    tar(tmp_path / "x-0.tar", GOOD)
    findings, status = found(shell, "x-0.tar --index missing.parquet")
    assert ([one["code"] for one in findings], status) == (["PS901"], 3)


def test_an_index_of_other_shards_is_not_compared(shell, tmp_path) -> None:
    for name in ("x.tar", "x-0.tar", "x-1.tar"):
        tar(tmp_path / name, [(f"{name[:-4]}.txt", b"1")])
    assert shell("penstock index x-0.tar").returncode == 0
    assert (tmp_path / "x.index.parquet").exists()
    assert found(shell, "x.tar") == ([], 0)
    assert [one["code"] for one in found(shell, "x-0.tar x-1.tar")[0]] == ["PS401"]
    done = shell("penstock select x.tar --where 'bytes > 0' --list")
    assert (done.stdout, done.returncode) == ("x\n", 0), done.stderr


def test_a_damaged_index_is_found(shell, tmp_path) -> None:
    tar(tmp_path / "x-0.tar", GOOD)
    (tmp_path / "x.index.parquet").write_bytes(b"PAR1 nothing PAR1")
    assert [one["code"] for one in found(shell, "x-0.tar")[0]] == ["PS402"]


def test_documents_are_grouped_as_their_index_says(shell, tmp_path) -> None:
    members = [("a.json", b"{}"), ("a-x.1.jpg", JPG), ("a-y.jpg", JPG), ("a-x.2.jpg", JPG)]
    members += [("a-1.json", b"{}"), ("b.json", b"{}"), ("b-a-x.jpg", JPG)]
    tar(tmp_path / "x-0.tar", members)
    path = str(tmp_path / "x-0.tar")
    wds.build_index(path, str(tmp_path / "x.index.parquet"), group="dashed")
    assert found(shell, "x-0.tar") == ([], 0)
    (tmp_path / "x.index.parquet").unlink()
    assert {code for code, _, _ in codes(found(shell, "x-0.tar")[0])} == {"PS201", "PS302"}


def test_a_good_shard_with_its_index_has_no_findings(shell, shards) -> None:
    assert shell(f"penstock index {shards} --jobs 1 --quiet").returncode == 0
    done = shell(f"penstock verify {shards} --decode --require jpg,cls --for webdataset,hub")
    assert done.returncode == 2  # one name per --for
    readers = "--for webdataset --for hub --for open_clip"
    done = shell(f"penstock verify {shards} --decode --require jpg,cls {readers}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "2 shards, 10 samples, 0 findings\n"


def test_a_shard_without_samples_is_found(shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [])
    assert codes(found(shell, "x.tar")[0]) == [("PS207", 0, None)]


def test_a_key_of_another_shard_is_found(shell, tmp_path) -> None:
    tar(tmp_path / "x-0.tar", GOOD)
    offsets = tar(tmp_path / "x-1.tar", [("c.jpg", JPG), ("c.cls", b"1"), *GOOD[2:]])
    findings, status = found(shell, "x-{0..1}.tar")
    assert codes(findings) == [("PS203", offsets[2], "b")]
    assert "x-0.tar" in findings[0]["message"]
    assert status == 1


def test_a_shard_that_cannot_be_read_is_status_3_unless_others_are_bad(shell, tmp_path) -> None:
    tar(tmp_path / "x-0.tar", GOOD)
    findings, status = found(shell, "x-0.tar missing.tar")
    assert ([one["code"] for one in findings], status) == (["PS901"], 3)
    tar(tmp_path / "x-0.tar", [*GOOD, ("README", b"x")])
    assert found(shell, "x-0.tar missing.tar")[1] == 1


def test_the_codes_are_listed(shell) -> None:
    done = shell("penstock verify --codes --json")
    assert [json.loads(line)["code"] for line in done.stdout.splitlines()] == list(CODES)
    assert done.returncode == 0
    assert "PS101  truncated" in shell("penstock verify --codes").stdout


def test_reading_continues_after_a_damaged_header(tmp_path) -> None:
    path = tmp_path / "x.tar"
    wrong_checksum(path)
    seen = list(tools.verify(str(path), require="jpg"))
    assert [one.code for one in seen] == ["PS102", "PS301", "PS302"]
    assert seen[1].key == "b"  # its jpg is lost, its cls is not


def test_many_findings_of_a_kind_are_counted_for_a_person(shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [(f"{n}.jpg", b"") for n in range(50)])
    done = shell("penstock verify x.tar")
    assert done.stdout.count("PS303 field is empty") == 20
    assert "… and 30 more PS303" in done.stdout


ONE_MIB = 1 << 20
ZEROS = bytes(4 * ONE_MIB)


def header(name, size=0, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


BOMBS = {
    "zeros": (ZEROS, 0),
    "folders": (header("d/", kind=tarfile.DIRTYPE) * 8000, 0),
    "links": (header("a.txt", kind=tarfile.SYMTYPE) * 8000, 0),
    "no extension": (header("README", 4 * ONE_MIB) + ZEROS, 0),
    "after the end": (header("a.txt", 1) + b"1" + ZEROS, 513),
    "a member": (
        header("a.txt", 1) + b"1".ljust(512, b"\0") + header("b.bin", 4 * ONE_MIB) + ZEROS,
        1024,
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("decode", ["", "--decode"])
def test_a_compressed_shard_is_checked_up_to_the_limit_of_reading(
    kind, decode, shell, tmp_path, monkeypatch
) -> None:
    data, offset = BOMBS[kind]
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(data))
    monkeypatch.setenv("PENSTOCK_MAX_DECODED_BYTES", str(ONE_MIB))
    findings, status = found(shell, f"x.tar.gz --for webdataset --for hub {decode}")
    mine = [one for one in findings if one["code"] == "PS107"]
    assert [one["offset"] for one in mine] == [offset], findings
    assert "PENSTOCK_MAX_DECODED_BYTES" in mine[0]["message"]
    others = {one["code"] for one in findings if one["code"] != "PS107"}
    assert others <= {"links": {"PS206", "PS501"}, "no extension": {"PS501"}}.get(kind, set())
    assert status == 1
    assert len(findings) < 2 * 3000  # of 8,000 links; 1 MiB has 2,048
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", ONE_MIB)
    with pytest.raises(ShardError):
        list(wds.WebDataset(str(tmp_path / "x.tar.gz"), shardshuffle=False))


# ── repair ──────────────────────────────────────────────────────────────────────────────


def samples(path):
    return {
        sample["__key__"]: {f: v for f, v in sample.items() if not f.startswith("__")}
        for sample in wds.WebDataset(str(path), shardshuffle=False)
    }


A, B = {"jpg": JPG, "cls": b"1"}, {"jpg": JPG, "cls": b"2"}
REPAIRS = {
    "PS101": (cut_in_data, {"a": A}),
    "PS101 header": (cut_in_header, {"a": A}),
    "PS102": (wrong_checksum, {"a": A}),
    "PS104": (data_after_end, {"a": A, "b": B}),
    "PS106": (no_end_marker, {"a": A, "b": B}),
    "PS201": (planted([*GOOD, ("a.txt", b"x")], 4), {"a": {**A, "txt": b"x"}, "b": B}),
    "PS202": (planted([*GOOD, ("b.cls", b"3")], 4), {"a": A, "b": B}),
    "PS203": (planted([*GOOD, *GOOD[:2]], 4), {"a": A, "b": B}),
    "PS203 other": (
        planted([*GOOD, ("a.jpg", JPG), ("a.cls", b"7")], 4),
        {"a": A, "b": B, "a~2": {"jpg": JPG, "cls": b"7"}},
    ),
    "PS204": (planted([*GOOD, ("README", b"x")], 4), {"a": A, "b": B}),
    "PS205": (planted([*GOOD, ("/../c\x1b.jpg", JPG)], 4), {"a": A, "b": B, "c_": {"jpg": JPG}}),
    "PS206": (planted([*GOOD, link("c.jpg")], 4), {"a": A, "b": B}),
    "PS304": (planted([*GOOD, ("c.jpg", JPG[:300])], 4), {"a": A, "b": B}),
}


@pytest.mark.parametrize("fault", REPAIRS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_repaired_shard_has_the_good_samples_and_passes(fault, packed, tmp_path) -> None:
    make, expected = REPAIRS[fault]
    path = tmp_path / "x.tar"
    make(path)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    decode = fault == "PS304"
    changes = list(tools.repair(str(path), str(tmp_path / "good" / "y.tar"), decode=decode))
    assert fault.split()[0] in {change.code for change in changes}
    good = tmp_path / "good" / "y.tar"
    assert samples(good) == expected
    assert {one.code for one in tools.verify(str(good), decode=True)} <= {"PS302"}


def test_the_command_repairs_and_reports_each_change(shell, tmp_path) -> None:
    FAULTS["PS201"][0](tmp_path / "x.tar")
    done = shell("penstock verify x.tar --repair -o good/")
    assert done.returncode == 1
    assert "repaired PS201: txt of 'a' put together with jpg, cls" in done.stdout
    assert shell("penstock verify good/x.tar").returncode == 0
    again = shell("penstock verify x.tar --repair -o good/")
    assert (again.returncode, "--force" in again.stderr) == (3, True)
    assert shell("penstock verify x.tar --repair -o good/ --force").returncode == 1
    assert shell("penstock verify x.tar --repair").returncode == 2


def test_a_shard_without_complete_samples_makes_no_output(shell, tmp_path) -> None:
    no_tar(tmp_path / "x.tar")
    done = shell("penstock verify x.tar --repair -o good.tar")
    assert done.returncode == 1
    assert "no shard is written" in done.stdout
    assert [path.name for path in tmp_path.glob("*.tar")] == ["x.tar"]


def test_a_hidden_member_in_a_nested_tar_is_not_taken_for_one(tmp_path) -> None:
    inner = tmp_path / "inner.tar"
    tar(inner, [("evil.jpg", JPG)])
    path = tmp_path / "x.tar"
    offsets = tar(path, [("a.tar", inner.read_bytes()), ("b.cls", b"1")])
    data = bytearray(path.read_bytes())
    data[offsets[0] + 5] ^= 1
    path.write_bytes(data)
    keys = {one.key for one in tools.verify(str(path), require="none")}
    assert keys == {None, "b"}


def test_a_stream_is_verified_as_a_file_is(shell, tmp_path) -> None:
    offset = cut_in_data(tmp_path / "x.tar")
    done = shell("penstock verify - --json < x.tar")
    assert codes([json.loads(done.stdout)]) == [("PS101", offset, "b")]
    assert codes(found(shell, "'pipe:cat x.tar'")[0]) == [("PS101", offset, "b")]


def test_walker_and_reader_agree_on_good_shards(tmp_path) -> None:
    """PAX, GNU and ustar names, folders, empty members, many windows."""
    from penstock.shards.open_shard import open_shard, tape_of
    from penstock.tools.tar_walk import TolerantReader

    folder = tarfile.TarInfo("d")
    folder.type = tarfile.DIRTYPE
    members = [folder, ("d/a.jpg", JPG), ("é" * 150 + ".txt", b"x"), ("e.txt", b"")]
    members += [(f"n{n}.bin", bytes([n % 251]) * (n * 997 % 90_000)) for n in range(60)]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        tar(tmp_path / "x.tar", members, format=form)
        with open_shard(str(tmp_path / "x.tar")) as tape:
            expected = [(m.name, m.offset, m.data_offset, m.size, m.data) for m in tape]
        data = (tmp_path / "x.tar").read_bytes()
        for stream in (io.BytesIO(data), io.BytesIO(gzip.compress(data))):
            reader = TolerantReader.of(tape_of(stream, "x.tar"))
            assert [tuple(e)[:5] for e in reader.entries(lambda name: True)] == expected
        with open_shard(str(tmp_path / "x.tar")) as tape:
            entries = list(TolerantReader.of(tape).entries())
        assert [tuple(e)[:4] for e in entries] == [e[:4] for e in expected]


def test_verify_counts_the_samples_of_a_truncated_stream_that_repair_keeps(shell, tmp_path) -> None:
    noise = random.Random(1)
    with wds.TarWriter(str(tmp_path / "whole.tar.gz")) as sink:
        for number in range(3):
            sink.write({"__key__": f"k{number}", "bin": noise.randbytes(5000), "cls": number})
    data = (tmp_path / "whole.tar.gz").read_bytes()
    for size, samples in ((3000, 0), (6000, 1), (9000, 1), (11500, 2), (len(data) - 20, 3)):
        (tmp_path / "cut.tar.gz").write_bytes(data[:size])
        said = shell("penstock verify cut.tar.gz --repair -o good.tar --force").stdout
        checked, repaired = said.splitlines()[-2:]
        assert checked.startswith(f"1 shard, {samples} sample"), (size, said)
        assert f", {samples} sample" in repaired, (size, said)


def test_repair_of_a_shard_that_is_named_twice_is_refused(shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", GOOD)
    done = shell("penstock verify x.tar x.tar --repair -o 'good-%d.tar'")
    assert done.returncode == 2
    assert "'x.tar' is named twice" in done.stderr


def test_a_compressed_sample_with_a_cut_member_is_not_repaired(shell, tmp_path) -> None:
    noise = random.Random(1)
    with wds.TarWriter(str(tmp_path / "x.tar.gz")) as sink:
        sink.write({"__key__": "k", "a.bin": noise.randbytes(3000), "b.bin": noise.randbytes(5000)})
    (tmp_path / "x.tar.gz").write_bytes((tmp_path / "x.tar.gz").read_bytes()[:6000])
    done = shell("penstock verify x.tar.gz --repair -o good.tar")
    assert "(sample 'k', field 'b.bin')" in done.stdout
    assert "'k' is incomplete and left out" in done.stdout
    assert "1 shard, 0 samples" in done.stdout
    assert not (tmp_path / "good.tar").exists()


@pytest.mark.parametrize("field", ["__key__", "__url__", "__KEY__", "__local_path__"])
def test_a_field_that_readers_add_themselves_is_found_and_repaired(field, tmp_path) -> None:
    path, good = str(tmp_path / "x.tar"), str(tmp_path / "good.tar")
    tar(path, [("a.txt", b"1"), (f"a.{field}", b"other"), ("b.txt", b"2"), (f"c.{field}", b"3")])
    for index in False, True:
        with pytest.raises(wds.DuplicateError):
            list(wds.WebDataset(path, index=index))
    for command in tools.cat, tools.sort, tools.split:
        with pytest.raises(wds.DuplicateError):
            command(path, str(tmp_path / "out-%d.tar"))
    with pytest.raises(wds.DuplicateError):
        tools.convert(path, str(tmp_path / "out.csv"), to="csv")
    found = [(one.code, one.key, one.offset) for one in tools.verify(path)]
    assert found == [("PS202", "a", 1024), ("PS202", "c", 3072)]
    list(tools.repair(path, good))
    assert [sample["__key__"] for sample in wds.WebDataset(good)] == ["a", "b"]
    assert list(tools.verify(good)) == []
