"""TarWriter: what is written reads back, the same bytes every time, whole or not at all."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import PipelineError, StorageError, WriteError
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import Samples
from penstock.shards.writing import TarWriter

Sample = dict[str, Any]


def written(samples: list[Sample], **options: Any) -> bytes:
    stream = io.BytesIO()
    with TarWriter(stream, **options) as sink:
        for sample in samples:
            sink.write(sample)
    return stream.getvalue()


def read(data: bytes) -> list[Sample]:
    with open_shard("x.tar", stream=io.BytesIO(data)) as tape:
        samples = list(Samples(tape))
    for sample in samples:
        del sample["__url__"]
    return samples


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


# ── write, then read ────────────────────────────────────────────────────────────────────

part = st.text(st.characters(codec="utf-8", exclude_characters="/.\0"), min_size=1, max_size=120)
folder = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60)
keys = st.builds(
    lambda folders, last: "/".join([*folders, last]),
    st.lists(folder.filter(lambda name: name != ".."), max_size=4),
    part,
).filter(lambda key: not key.startswith("__"))
fields = (
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), max_size=20)
    .map(str.lower)
    .filter(lambda field: field == field.lower() and not field.startswith("_"))
)
payloads = st.one_of(
    st.binary(max_size=40), st.sampled_from([0, 1, 511, 512, 513, 1024]).map(lambda n: b"x" * n)
)
sample_lists = st.lists(
    st.tuples(keys, st.dictionaries(fields, payloads, min_size=1, max_size=4)),
    max_size=5,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: [{"__key__": key, **values} for key, values in pairs])


@given(sample_lists, st.sampled_from([None, "pax", "gnu"]))
@example([{"__key__": "d.x/a", "": b"", ".jpg": b"1", "seg.png": b"2"}], None)
def test_write_then_read_is_the_identity(samples: list[Sample], form: str | None) -> None:
    data = written(samples, format=form)
    assert read(data) == samples
    assert len(data) % 10240 == 0
    assert data.endswith(bytes(1024))


@given(sample_lists, st.sampled_from([None, "pax", "gnu"]))
def test_the_standard_library_reads_the_same(samples: list[Sample], form: str | None) -> None:
    expected = [
        (f"{sample['__key__']}.{field}", sample[field])
        for sample in samples
        for field in sorted(sample)
        if field != "__key__"
    ]
    with tarfile.open(fileobj=io.BytesIO(written(samples, format=form))) as archive:
        found = []
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found.append((member.name, content.read()))
    assert found == expected


@given(sample_lists)
@settings(max_examples=20)
def test_the_same_samples_give_the_same_bytes(samples: list[Sample]) -> None:
    again = [dict(reversed(sample.items())) for sample in samples]
    assert written(samples) == written(again)
    for kind in ("gz", "bz2", "xz", "zst", "lz4"):
        assert written(samples, compress=kind) == written(again, compress=kind)


@pytest.mark.parametrize("form", [None, "pax", "gnu", "ustar"])
def test_gnu_tar_lists_and_extracts_every_format(tmp_path: Path, form: str | None) -> None:
    wanted = {"a": b"", "d/b": b"x", "d/" + "n" * 90: b"y" * 512, "dd/" * 30 + "m" * 80: b"z" * 513}
    if form != "ustar":
        wanted |= {"l" * 180: b"long", "f/" * 90 + "p" * 150: b"very long", "ä/日本": b"foreign"}
    shard = tmp_path / "x.tar"
    with TarWriter(shard, format=form) as sink:
        for key, value in wanted.items():
            sink.write({"__key__": key, "bin": value})
    listing = ["tar", "--quoting-style=literal", "-tf", str(shard)]
    listed = subprocess.run(listing, check=True, capture_output=True, text=True)
    assert listed.stderr == ""
    assert listed.stdout.splitlines() == [key + ".bin" for key in wanted]
    subprocess.run(["tar", "-xf", str(shard), "-C", str(tmp_path)], check=True)
    for key, value in wanted.items():
        assert (tmp_path / f"{key}.bin").read_bytes() == value


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz"])
def test_webdataset_reads_it(tmp_path: Path, ending: str) -> None:
    webdataset = pytest.importorskip("webdataset")
    shard = tmp_path / f"x.{ending}"
    samples = [{"__key__": f"d/{i}", "cls": str(i).encode(), "bin": bytes(i)} for i in range(9)]
    samples.append({"__key__": "ä" * 100, "cls": b"1", "bin": b"2"})
    with TarWriter(shard) as sink:
        for sample in samples:
            sink.write(sample)
    back = [dict(sample) for sample in webdataset.WebDataset(str(shard), shardshuffle=False)]
    kept = [{name: sample[name] for name in ("__key__", "cls", "bin")} for sample in back]
    assert kept == samples


def test_a_large_sample_and_many_small_ones_read_back() -> None:
    samples: list[Sample] = [{"__key__": str(i), "bin": bytes(i % 700)} for i in range(2000)]
    samples.insert(1000, {"__key__": "large", "a": b"a" * 5_000_001, "b": b"b"})
    assert read(written(samples)) == samples


# ── what a write gives and takes ────────────────────────────────────────────────────────


def test_fields_are_sorted_and_write_tells_their_bytes() -> None:
    stream = io.BytesIO()
    with TarWriter(stream) as sink:
        assert sink.write({"__key__": "a", "txt": "äh", "cls": 17, "_note": "no"}) == 5
    assert names(stream.getvalue()) == ["a.cls", "a.txt"]


def test_the_arguments_stand_in_the_header() -> None:
    data = written([{"__key__": "a", "txt": "x"}], user="me", group="us", mode=0o600, mtime=7)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.getmembers()[0]
    assert (member.uname, member.gname, member.mode, member.mtime) == ("me", "us", 0o600, 7)
    assert (member.uid, member.gid) == (0, 0)


def test_meta_fields_are_kept_when_asked_except_those_that_the_reader_makes() -> None:
    sample = {"__key__": "a", "__url__": "u", "__local_path__": "p", "_x": "é", "txt": b"t"}
    assert names(written([sample])) == ["a.txt"]
    assert read(written([sample], keep_meta=True)) == [
        {"__key__": "a", "_x": "é".encode(), "txt": b"t"}
    ]
    sample["_y"] = object()
    assert names(written([sample], keep_meta={"_x", "__url__"})) == ["a._x", "a.txt"]
    sample.pop("_y")
    with pytest.raises(WriteError, match="'_x' is no bytes after encoding but int"):
        written([{"__key__": "a", "_x": 5}], keep_meta=True)


def test_without_an_encoder_any_kind_of_bytes_is_written() -> None:
    sample = {"__key__": "a", "x": b"1", "y": bytearray(b"22"), "z": memoryview(b"333").cast("B")}
    assert read(written([sample], encoder=False))[0]["z"] == b"333"
    with pytest.raises(WriteError, match=r"'txt' is no bytes after encoding but str.*sample 'a'"):
        written([{"__key__": "a", "txt": "text"}], encoder=False)


def test_an_encoder_of_ones_own_gets_the_sample() -> None:
    def encode(sample: Sample) -> Sample:
        return {"__key__": sample["__key__"] + "1", "up": sample["up"].upper().encode()}

    assert read(written([{"__key__": "a", "up": "x"}], encoder=encode)) == [
        {"__key__": "a1", "up": b"X"}
    ]


def test_an_error_of_ones_own_encoder_tells_the_key() -> None:
    def encode(sample: Sample) -> Sample:
        raise KeyError("oops")

    with pytest.raises(KeyError) as caught:
        written([{"__key__": "a7", "x": 1}], encoder=encode)
    assert "sample 'a7'" in caught.value.__notes__[0]


def test_a_failed_sample_leaves_nothing_behind() -> None:
    stream = io.BytesIO()
    with TarWriter(stream) as sink:
        sink.write({"__key__": "a", "txt": "x"})
        with pytest.raises(WriteError, match="'zzz' of sample 'b'"):
            sink.write({"__key__": "b", "bin": b"fine", "zzz": object()})
        with pytest.raises(WriteError):
            sink.write({"__key__": "b", "bin": b"fine", "up/down": b"no"})
        sink.write({"__key__": "b", "txt": "y"})  # the key was not used up
    assert names(stream.getvalue()) == ["a.txt", "b.txt"]


# ── what would read back differently ────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ({"__key__": "v1.2/img.0001", "x": b""}, "write 'v1.2/img_0001', or use check=False"),
        ({"__key__": ".hidden", "x": b""}, "after its first dot"),
        ({"__key__": "d/", "x": b""}, "ends in '/'"),
        ({"__key__": "__meta__", "x": b""}, "names like __x__"),
        ({"__key__": "__meta__/a", "x": b""}, "names like __x__"),
        ({"__key__": "__a", "b__": b""}, "names like __x__"),
        ({"__key__": "/etc/a", "x": b""}, "absolute path"),
        ({"__key__": "a/../b", "x": b""}, r"remove the '\.\.'"),
        ({"__key__": "a", "JPG": b""}, "lower case: write 'jpg'"),
        ({"__key__": "a", "x/y": b""}, "part of the key"),
        ({"__key__": "a"}, "no fields"),
    ],
)
def test_what_would_read_back_differently_is_refused(sample: Sample, told: str) -> None:
    with pytest.raises(WriteError, match=told) as caught:
        written([sample])
    assert f"sample {sample['__key__']!r}" in str(caught.value)
    written([sample], check=False)


@pytest.mark.parametrize(
    ("sample", "told"),
    [
        ({"x": b""}, "needs a text as '__key__', not None"),
        ({"__key__": "", "x": b""}, "needs a text as '__key__', not ''"),
        ({"__key__": 5, "x": b""}, "needs a text as '__key__', not 5"),
        ({"__key__": "a\0b", "x": b""}, "NUL"),
        ({"__key__": "a", "x\0": b""}, "NUL"),
        ({"__key__": "\ud800", "x": b""}, "UTF-8"),
        ({"__key__": "a", 3: b""}, "the name of a field is a text, not 3"),
        ((b"a", b"b"), "a sample is a dict"),
    ],
)
def test_what_no_tar_can_hold_is_always_refused(sample: Any, told: str) -> None:
    for check in (True, False):
        with pytest.raises(WriteError, match=told):
            written([sample], check=check, encoder=False)


def test_a_key_stands_once_in_a_shard() -> None:
    samples = [{"__key__": key, "x": b""} for key in ("a", "b", "a")]
    with pytest.raises(WriteError, match="'a' would not read back: it is already in this shard"):
        written(samples)
    assert names(written(samples, check=False)) == ["a.x", "b.x", "a.x"]


def test_a_name_that_came_from_a_shard_in_another_encoding_is_written_as_it_was() -> None:
    sample = {"__key__": b"a\xff".decode("utf-8", "surrogateescape"), "x": b"1"}
    for form in (None, "gnu", "ustar"):
        assert read(written([sample], format=form)) == [sample]


def test_a_name_too_long_for_ustar_names_the_sample() -> None:
    with pytest.raises(WriteError, match=r"field 'x': the name takes 302 bytes.*sample 'nnn"):
        written([{"__key__": "n" * 300, "x": b""}], format="ustar")


# ── compression ─────────────────────────────────────────────────────────────────────────

MAGIC = {
    **{"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ", "zst": b"\x28\xb5\x2f\xfd"},
    **{"lz4": b"\x04\x22\x4d\x18"},
}
SAMPLES: list[Sample] = [{"__key__": str(i), "txt": b"hello" * i} for i in range(300)]


@pytest.mark.parametrize("kind", MAGIC)
def test_every_compression_reads_back(tmp_path: Path, kind: str) -> None:
    for shard, compress in ((tmp_path / f"x.tar.{kind}", None), (tmp_path / "x.tar", kind)):
        with TarWriter(str(shard), compress=compress) as sink:
            for sample in SAMPLES:
                sink.write(sample)
        assert shard.read_bytes().startswith(MAGIC[kind])
        assert read(shard.read_bytes()) == SAMPLES
    assert read(written([], compress=kind)) == []


def test_compression_by_choice_wins_over_the_name(tmp_path: Path) -> None:
    for name, compress, begins in (
        ("a.tar.gz", False, b"0.txt"),
        ("b.tar", True, MAGIC["gz"]),
        ("c.tgz", None, MAGIC["gz"]),
        ("d.tar.gz", "xz", MAGIC["xz"]),
        ("e.gz.tar", None, b"0.txt"),
    ):
        with TarWriter(tmp_path / name, compress=compress) as sink:
            sink.write(SAMPLES[0])
        assert (tmp_path / name).read_bytes().startswith(begins), name


def test_an_unknown_compression_is_refused_and_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="not 'rar'"):
        TarWriter(tmp_path / "a.tar", compress="rar")
    with pytest.raises(PipelineError, match="format="):
        TarWriter(tmp_path / "a.tar", format="cpio")
    assert list(tmp_path.iterdir()) == []


# ── whole or not at all ─────────────────────────────────────────────────────────────────


def test_a_shard_appears_when_it_is_closed(tmp_path: Path) -> None:
    shard = tmp_path / "x.tar"
    sink = TarWriter(shard)
    sink.write(SAMPLES[1])
    assert not shard.exists()
    sink.close()
    sink.close()
    assert read(shard.read_bytes()) == [SAMPLES[1]]
    with pytest.raises(PipelineError, match="closed"):
        sink.write(SAMPLES[2])


def test_an_exception_in_the_block_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "old.tar").write_bytes(b"old")
    for name in ("new.tar", "old.tar"):
        with pytest.raises(KeyError), TarWriter(tmp_path / name) as sink:
            sink.write(SAMPLES[1])
            raise KeyError("stop")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("old.tar", b"old")]


def test_a_stream_of_ones_own_is_left_open_and_without_an_end_after_an_exception() -> None:
    stream = io.BytesIO()
    with pytest.raises(KeyError), TarWriter(stream) as sink:
        sink.write({"__key__": "a", "bin": bytes(5_000_000)})
        raise KeyError("stop")
    assert not stream.closed
    assert len(stream.getvalue()) < 5_002_000


def test_a_writer_that_is_dropped_warns_and_leaves_no_file(tmp_path: Path) -> None:
    for target in (tmp_path / "x.tar", io.BytesIO()):
        sink = TarWriter(target)
        sink.write(SAMPLES[1])
        with pytest.warns(RuntimeWarning, match="never closed"):
            del sink  # nothing else holds it
    assert list(tmp_path.iterdir()) == []


class Trickle(io.RawIOBase):
    """A raw stream that takes a few bytes at a time, as sockets may."""

    def __init__(self) -> None:
        self.got = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.got += bytes(data[:1000])
        return min(len(data), 1000)


def test_a_stream_that_takes_less_than_it_is_given_gets_everything() -> None:
    stream = Trickle()
    with TarWriter(stream) as sink:
        for sample in SAMPLES:
            sink.write(sample)
    assert stream.got == written(SAMPLES)


class Full(io.BytesIO):
    def write(self, data: Any) -> int:
        raise OSError(28, "No space left on device")


def test_after_a_failed_write_nothing_more_is_taken() -> None:
    sink = TarWriter(Full())
    large = {"__key__": "a", "bin": bytes(5_000_000)}
    with pytest.raises(OSError, match="No space"):
        sink.write(large)
    with pytest.raises(StorageError, match="an earlier write failed"):
        sink.write({"__key__": "b", "txt": "x"})
    with pytest.raises(StorageError, match="an earlier write failed"):
        sink.close()
    sink.close()


FILL = """
import resource, sys
from penstock.errors import StorageError
from penstock.shards.writing import TarWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with TarWriter(sys.argv[1], compress=sys.argv[2] == "gz") as sink:
        for i in range(1000):
            sink.write({"__key__": str(i), "bin": (b"%d" % i ** 500)[:1000]})
except StorageError as error:
    print("told", error)
"""


@pytest.mark.parametrize("kind", ["plain", "gz"])
def test_a_full_disk_is_a_storage_error_and_nothing_is_left(tmp_path: Path, kind: str) -> None:
    shard = tmp_path / "x.tar"
    command = [sys.executable, "-c", FILL, str(shard), kind]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("told cannot write")
    assert str(shard) in ran.stdout
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from penstock.shards.writing import TarWriter
sink = TarWriter(sys.argv[1])
for i in range(5000):
    sink.write({"__key__": str(i), "bin": bytes(1000)})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_no_shard_and_keeps_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "old.tar").write_bytes(b"old")
    for name in ("new.tar", "old.tar"):
        ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], check=False)
        assert ran.returncode == -signal.SIGKILL
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["old.tar"]
    assert (tmp_path / "old.tar").read_bytes() == b"old"
