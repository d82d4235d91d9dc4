"""Compressed shards: every kind, by content, whole, joined, cut and damaged."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import struct
import subprocess
import sys
import tracemalloc
import warnings

import pytest

from penstock import limits
from penstock.errors import MissingPackage, ShardError, ShardWarning
from penstock.shards.open_shard import open_shard, tape_of
from penstock.shards.sample_reader import Samples
from tar_files import SlowStream, tar_bytes

if sys.version_info >= (3, 14):
    from compression import zstd

    def compress_zst(data: bytes) -> bytes:
        return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})

else:
    zstandard = pytest.importorskip("zstandard")

    def compress_zst(data: bytes) -> bytes:
        return zstandard.ZstdCompressor(write_checksum=True).compress(data)


COMPRESS = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": compress_zst,
}
with contextlib.suppress(ImportError):
    import lz4.frame

    COMPRESS["lz4"] = lambda data: lz4.frame.compress(data, content_checksum=True)
KINDS = pytest.mark.parametrize("kind", COMPRESS)


def tar_of(keys, size: int = 200) -> bytes:
    return tar_bytes(
        (f"{key}.txt", (key.encode() + os.urandom(8).hex().encode() * 99)[:size]) for key in keys
    )


def samples(data: bytes, most: int = 1 << 20, **options):
    return list(Samples(tape_of(SlowStream(data, most), "x.tar", **options)))


def keys(data: bytes, most: int = 1 << 20, **options):
    return [sample["__key__"] for sample in samples(data, most, **options)]


@KINDS
@pytest.mark.parametrize("most", [1, 5, 7, 100, 1 << 20])
def test_every_kind_is_known_by_its_content(tmp_path, kind, most):
    plain = tar_of("abc")
    data = COMPRESS[kind](plain)
    assert samples(data, most) == samples(plain)
    (tmp_path / "misleading.tar").write_bytes(data)
    with open_shard(str(tmp_path / "misleading.tar")) as tape:
        assert [s["txt"] for s in Samples(tape)] == [s["txt"] for s in samples(plain)]


@KINDS
@pytest.mark.parametrize("most", [1, 100, 1 << 20])
def test_frames_one_after_another_are_one_stream(kind, most):
    plain = tar_of("abc")
    parts = [plain[:700], plain[700:701], plain[701:]]
    joined = b"".join(map(COMPRESS[kind], parts))
    assert keys(joined, most) == ["a", "b", "c"]
    padded = bytes(3).join(map(COMPRESS[kind], parts)) + bytes(100_000)
    assert keys(padded, most) == ["a", "b", "c"]


@KINDS
def test_joined_compressed_tars_are_told_or_read_on(kind):
    joined = COMPRESS[kind](tar_of("ab")) + COMPRESS[kind](tar_of("cd"))
    with pytest.warns(ShardWarning, match="concatenated=True"):
        assert keys(joined) == ["a", "b"]
    assert keys(joined, concatenated=True) == ["a", "b", "c", "d"]


@KINDS
def test_a_cut_at_any_byte_gives_a_prefix_and_then_an_error(kind):
    plain = tar_of("abcd")
    data = COMPRESS[kind](plain)
    everything = samples(plain)
    for cut in range(len(data)):
        found = []
        with pytest.raises(ShardError, match=r"x\.tar.* byte"):
            found.extend(Samples(tape_of(SlowStream(data[:cut]), "x.tar")))
        assert found == everything[: len(found)]


@KINDS
def test_changed_bytes_are_told_or_change_nothing(kind):
    plain = tar_of("abcd")
    data = COMPRESS[kind](plain)
    everything = samples(plain)
    for place in range(len(data)):
        bad = bytearray(data)
        bad[place] ^= 0x10
        found = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", ShardWarning)
                found.extend(Samples(tape_of(SlowStream(bytes(bad)), "x.tar")))
        except (ShardError, ShardWarning) as told:
            assert "x.tar" in str(told)  # noqa: PT017
        else:
            # Times and names in a gzip header, unused bits: nothing that is read.
            assert found == everything, place


@KINDS
def test_something_else_behind_the_compressed_data_is_an_error(kind):
    with pytest.raises(ShardError, match="other data follows the compressed data"):
        keys(COMPRESS[kind](tar_of("ab")) + b"rubbish")


@pytest.mark.parametrize("kind", sorted(COMPRESS.keys() & {"zst", "lz4"}))
@pytest.mark.parametrize("most", [1, 6, 1 << 20])
def test_skippable_frames_are_skipped_wherever_they_stand(kind, most):
    skippable = b"\x5e\x2a\x4d\x18" + struct.pack("<I", 20_000) + b"table" * 4000
    empty = b"\x50\x2a\x4d\x18" + struct.pack("<I", 0)
    plain = tar_of("ab")
    data = skippable + COMPRESS[kind](plain[:999]) + empty + COMPRESS[kind](plain[999:]) + skippable
    assert keys(data, most) == ["a", "b"]
    with pytest.raises(ShardError, match="compressed data"):
        keys(data[:-1], most)


@KINDS
def test_data_that_swells_takes_little_memory(kind):
    data = COMPRESS[kind](bytes(256 << 20) if kind == "bz2" else bytes(64 << 20))
    tracemalloc.start()
    try:
        assert tape_of(SlowStream(data), "x.tar").next_member() is None
        assert tracemalloc.get_traced_memory()[1] < (160 if kind == "zst" else 24) << 20
    finally:
        tracemalloc.stop()


STANDARD_ZSTD = sys.version_info >= (3, 14)
EMPTY_LZ4 = bytes.fromhex("04224d1860408200000000")


@pytest.mark.parametrize("kind", ["zst", "lz4"])
def test_a_missing_package_is_named(monkeypatch, kind):
    data = COMPRESS["zst"](tar_of("a")) if kind == "zst" else EMPTY_LZ4
    for name in ("zstandard", "lz4", "lz4.frame"):
        monkeypatch.setitem(sys.modules, name, None)
    if kind == "zst" and STANDARD_ZSTD:
        assert keys(data) == ["a"]
        return
    install = "pip install lz4" if STANDARD_ZSTD else r"pip install .*\[compression\]"
    with pytest.raises(
        MissingPackage, match=rf"{'zstandard' if kind == 'zst' else 'lz4'}.*{install}"
    ):
        keys(data)


def test_compressed_shards_of_the_tar_command_are_read(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"1")
    for ending in ("gz", "bz2", "xz"):
        shard = str(tmp_path / f"x.tar.{ending}")
        subprocess.run(["tar", "-caf", shard, "-C", str(tmp_path), "a.txt"], check=True)
        with open_shard(shard) as tape:
            assert [sample["txt"] for sample in Samples(tape)] == [b"1"]


def test_a_compressed_shard_can_be_entered_at_a_later_sample():
    plain = tar_of("abc")
    offset = [m.offset for m in tape_of(SlowStream(plain), "x.tar")][2]
    found = Samples(tape_of(SlowStream(COMPRESS["gz"](plain)), "x.tar", start=offset))
    assert [sample["__key__"] for sample in found] == ["c"]


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", 1 << 20)


def zeros(size: int, name: str = "b.bin") -> bytes:
    """A tar of a small member, a large one of zeros, and a small one."""
    return tar_bytes([("a.txt", bytes(3)), (name, bytes(size)), ("c.txt", bytes(3))])


@KINDS
def test_a_member_that_unpacks_to_more_than_the_limit_is_an_error(kind, small_limit):
    data = COMPRESS[kind](zeros(64 << 20))
    assert len(data) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(ShardError, match=r"67,108,864 bytes.*MAX_DECODED_BYTES.*x\.tar.* byte"):
            samples(data)
        assert tracemalloc.get_traced_memory()[1] < 80 << 20  # zstd gives up to 64 MiB at once
    finally:
        tracemalloc.stop()


@KINDS
def test_a_member_of_just_the_limit_is_read(kind, small_limit):
    assert [len(s.get("bin", b"")) for s in samples(COMPRESS[kind](zeros(1 << 20)))] == [
        0,
        1 << 20,
        0,
    ]


@KINDS
def test_a_large_member_that_nobody_wants_is_passed_over(kind, small_limit):
    data = COMPRESS[kind](zeros(8 << 20))
    assert keys(data, want=lambda name: not name.endswith(b".bin")) == ["a", "c"]


def test_members_of_plain_tars_may_have_any_size(small_limit, tmp_path):
    assert keys(zeros(2 << 20)) == ["a", "b", "c"]


def test_a_dictionary_that_xz_claims_is_not_believed(small_limit):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    data = lzma.compress(tar_of("ab"), filters=filters)
    with pytest.raises(ShardError, match="Memory usage limit"):
        samples(data)


OUT_OF_MEMORY = """
import resource, sys, penstock as wds
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
dataset = wds.WebDataset(sys.argv[1], handler=wds.ignore_and_continue, shardshuffle=False)
try:
    print(len(list(dataset)), "samples")
except MemoryError:
    print("out of memory")
"""


def test_a_lack_of_memory_is_no_damage_that_a_handler_skips(tmp_path):
    path = tmp_path / "x.tar.zst"
    path.write_bytes(COMPRESS["zst"](zeros(400 << 20)))
    command = [sys.executable, "-c", OUT_OF_MEMORY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "out of memory\n", done.stderr
