"""Compressed shards that unpack to much and hold no samples."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock as wds
from penstock import limits, tools
from penstock.shards.index import build_index

LIMIT = 1 << 20
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", LIMIT)


def tar(members: Iterator[tuple[str, bytes, bytes]], **options: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **options) as out:  # type: ignore[call-overload]
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(data)
            out.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def many(name: str, kind: bytes, data: bytes, count: int) -> Iterator[tuple[str, bytes, bytes]]:
    yield "a.txt", tarfile.REGTYPE, b"first"
    for number in range(count):
        yield name.format(number), kind, data


PAX = tarfile.PAX_FORMAT
JUNK = {
    "zeros": tar(many("", b"0", b"", 0)) + bytes(3 * LIMIT),
    "only zeros": bytes(3 * LIMIT),
    "folders": tar(many("d{}", tarfile.DIRTYPE, b"", 5000)),
    "links": tar(many("d{}", tarfile.SYMTYPE, b"", 5000)),
    "long names": tar(many("d" * 500 + "{}", tarfile.DIRTYPE, b"", 1500), format=PAX),
    "no extension": tar(many("x{}", tarfile.REGTYPE, b"x", 3000)),
    "large without extension": tar(many("x{}", tarfile.REGTYPE, bytes(300_000), 12)),
    "reserved names": tar(many("__x{}__", tarfile.REGTYPE, b"x" * 2000, 1500)),
    "one member": tar(many("x", tarfile.REGTYPE, bytes(3 * LIMIT), 1)),
}


def samples(path: str) -> list[str]:
    return [sample["__key__"] for sample in wds.WebDataset(path, empty_check=False)]


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("junk", JUNK)
def test_bytes_without_samples_are_an_error_after_the_limit(
    junk: str, pack: str, tmp_path: Path
) -> None:
    path = tmp_path / f"x.tar.{pack}"
    path.write_bytes(PACK[pack](JUNK[junk]))
    words = r"more than 1,048,576 bytes|at most 1,048,576 are unpacked"
    with pytest.raises(wds.ShardError, match=rf"({words}).*MAX_DECODED_BYTES.*x\.tar.* byte \d+"):
        samples(str(path))
    with pytest.raises(wds.ShardError, match=words):
        build_index(str(path), tmp_path / "i.parquet")
    found = [finding.message for finding in tools.verify(str(path))]
    assert any("1,048,576" in message for message in found)
    plain = tmp_path / "x.tar"
    plain.write_bytes(JUNK[junk])
    assert samples(str(plain)) == ["a"] * (junk != "only zeros")


LARGE = {
    "small members": tar(many("k{:05}.txt", tarfile.REGTYPE, b"x" * 700, 5000)),
    "large members": tar(many("k{:05}.bin", tarfile.REGTYPE, bytes(LIMIT - 512), 6)),
    "one sample": tar(many("a.b{}", tarfile.REGTYPE, bytes(300_000), 12)),
    "folders between": tar(
        member
        for number in range(2000)
        for member in (
            (f"d{number}", tarfile.DIRTYPE, b""),
            (f"d{number}/README", tarfile.REGTYPE, b"x" * 1000),
            (f"d{number}/a.txt", tarfile.REGTYPE, b"x"),
        )
    ),
    "large junk between": tar(
        member
        for number in range(12)
        for member in (
            (f"k{number:02}.txt", tarfile.REGTYPE, b"x"),
            (f"d{number}/README", tarfile.REGTYPE, bytes(600_000)),
        )
    ),
}


@pytest.mark.parametrize("kind", LARGE)
def test_compressed_shards_larger_than_the_limit_are_read(kind: str, tmp_path: Path) -> None:
    plain, path = tmp_path / "x.tar", tmp_path / "y.tar.gz"
    plain.write_bytes(LARGE[kind])
    path.write_bytes(gzip.compress(LARGE[kind], 1))
    assert samples(str(path)) == samples(str(plain))
    index = build_index(str(path), tmp_path / "i.parquet")
    assert len(index) == len(samples(str(plain)))
    found = [finding.message for finding in tools.verify(str(path))]
    assert not any("1,048,576" in message for message in found)
