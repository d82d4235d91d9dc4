"""``verify --for``: the rules agree with what the readers really do."""

from __future__ import annotations

import gzip
import os
import tarfile
import warnings

import pytest
from tool_shards import picture, tar

from penstock import tools
from penstock.shards.writing.compression import COMPRESSORS

INSTALL = "pip install -e '.[readers]'"
JPG = picture(1)
GOOD = [("a.jpg", JPG), ("a.cls", b"1"), ("b.jpg", JPG), ("b.cls", b"2")]


def link(name):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "a.jpg"
    return info


def folder(name):
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


def many(first, last, count=8):
    """Samples of one txt each; the last one has another field."""
    return [(f"k{n}.txt", b"x") for n in range(count)][:first] + last


def cut(length):
    def change(path, offsets):
        os.truncate(path, offsets[2] + length)

    return change


def flip(path, offsets):
    data = bytearray(path.read_bytes())
    data[offsets[2] + 5] ^= 1
    path.write_bytes(data)


def cut_end_marker(path, offsets):
    os.truncate(path, offsets[-1] + 1024)


def append(path, offsets):
    path.write_bytes(path.read_bytes() + b"x" * 600)


def join(path, offsets):
    first = path.read_bytes()
    tar(path, [("c.jpg", JPG), ("c.cls", b"1")])
    path.write_bytes(first + path.read_bytes())


def compress(path, offsets):
    path.write_bytes(gzip.compress(path.read_bytes()))


def compress_with_zstd(path, offsets):
    packer = COMPRESSORS["zst"]()
    path.write_bytes(packer.compress(path.read_bytes()) + packer.flush())


def cut_compressed(path, offsets):
    compress(path, offsets)
    os.truncate(path, path.stat().st_size // 2)


CASES = {
    "good": (GOOD, None),
    "folders": ([folder("d"), ("d/a.jpg", JPG), ("d/b.jpg", JPG)], None),
    "gzip": (GOOD, compress),
    "zstd": (GOOD, compress_with_zstd),
    "no end marker": (GOOD, cut_end_marker),
    "meta": ([*GOOD, ("__meta__/x.json", b"{}"), ("__info__", b"x")], None),
    "upper case": ([("a.JPG", JPG), ("b.jpg", JPG)], None),
    "nested extension": ([("a.seg.png", b"x"), ("b.seg.png", b"x")], None),
    "no extension": ([*GOOD, ("README", b"x")], None),
    "hidden file": ([*GOOD, (".hidden", b"x")], None),
    "hidden file of a folder": ([*GOOD, ("d/.txt", b"x")], None),
    "newline in a folder": ([*GOOD, ("d\nd/c.txt", b"x")], None),
    "link": ([*GOOD, link("c.jpg")], None),
    "not adjacent": ([*GOOD, ("a.txt", b"x")], None),
    "sample twice": ([*GOOD, *GOOD], None),
    "field twice": ([*GOOD, ("b.cls", b"3")], None),
    "field twice at once": ([("a.cls", b"1"), ("a.cls", b"1")], None),
    "field by case twice": ([("a.jpg", JPG), ("a.JPG", JPG)], None),
    "field __key__": ([*GOOD, ("b.__key__", b"x")], None),
    "field __bad__": ([*GOOD, ("b.__bad__", b"x")], None),
    "empty field __bad__": ([*GOOD, ("b.__bad__", b"")], None),
    "cut in data": (GOOD, cut(520)),
    "cut in a header": (GOOD, cut(100)),
    "cut in padding": ([(n, d[:100]) for n, d in GOOD], cut(512 + 200)),
    "wrong checksum": (GOOD, flip),
    "data after the end": (GOOD, append),
    "joined tars": (GOOD, join),
    "cut gzip": ([(f"{n}.bin", os.urandom(9000)) for n in range(9)], cut_compressed),
    "empty": ([], None),
    "only a readme": ([("README", b"x")], None),
    "other field in the fifth": (many(4, [("z.json", b"1")]), None),
    "other field in the sixth": (many(5, [("z.json", b"1")]), None),
    "label as JSON": ([("a.cls", b'{"label": 1}'), ("b.cls", b"1")], None),
    "bad JSON": ([("a.json", b"{"), ("b.json", b"{}")], None),
    "bad JSON in the seventh": ([*[(f"{n}.json", b"1") for n in range(6)], ("z.json", b"{")], None),
    "text in Latin-1": ([("a.txt", b"\xe9")], None),
    "number and text": ([("a.json", b"1"), ("b.json", b'"x"')], None),
    "number and null": ([("a.json", b"1"), ("b.json", b"null")], None),
    "integer and float": ([("a.json", b"1"), ("b.json", b"1.5")], None),
    "objects with other keys": ([("a.json", b'{"x": 1}'), ("b.json", b'{"y": 1}')], None),
    "same objects": ([("a.json", b'{"x": 1}'), ("b.json", b'{"x": 2}')], None),
    "lists and scalars": ([("a.json", b"[1]"), ("b.json", b"1")], None),
    "a number too large": ([("a.json", b"9" * 30)], None),
    "packed JSON": ([("a.json.gz", gzip.compress(b"1")), ("b.json.gz", gzip.compress(b"2"))], None),
}


def make(tmp_path, case):
    members, change = CASES[case]
    path = tmp_path / ("x.tar.gz" if "gzip" in case else "x.tar")
    offsets = tar(path, members)
    if change is not None:
        change(path, offsets)
    return str(path)


def flagged(path, reader, code):
    return [one for one in tools.verify(path, reader=reader) if one.code == code]


def intended(members):
    """The samples that whoever made the shard meant: members of one key are one sample."""
    found = {}
    for member in members:
        if isinstance(member, tuple):
            name = os.path.basename(member[0])
            key = member[0][: len(member[0]) - len(name) + name.find(".")]
            if not member[0].startswith("__"):
                found.setdefault(key, set()).add(name[name.find(".") + 1 :].lower())
        elif not member.isdir():
            found.setdefault(member.name, set())
    return found


@pytest.mark.parametrize("case", CASES)
def test_webdataset_fails_or_skips_where_ps501_says_so(case, tmp_path) -> None:
    webdataset = pytest.importorskip("webdataset", reason=f"NO WEBDATASET: {INSTALL}")
    assert webdataset.__version__ == "1.0.2"
    path = make(tmp_path, case)
    seen: dict[str, set[str]] = {}
    fine = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in webdataset.WebDataset(path, shardshuffle=False):
                fields = set(sample) - {"__key__", "__url__", "__local_path__"}
                fine &= seen.setdefault(sample["__key__"], fields) == fields
    except Exception:
        fine = False
    more = [("c.jpg", JPG), ("c.cls", b"1")] if case == "joined tars" else []
    fine &= seen == intended([*CASES[case][0], *more])
    found = flagged(path, "webdataset", "PS501")
    assert bool(found) != fine, (found, seen)


@pytest.mark.parametrize("case", CASES)
def test_the_hub_refuses_where_ps503_says_so(case, tmp_path, monkeypatch) -> None:
    reason = f"NO HUGGING FACE DATASETS: {INSTALL}"
    datasets = pytest.importorskip("datasets", reason=reason)
    if not hasattr(datasets, "load_dataset"):  # a folder of our own tests
        pytest.skip(reason)
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "hub"))
    path = make(tmp_path, case)
    try:
        loaded = datasets.load_dataset(
            "webdataset", data_files={"train": [path]}, split="train", streaming=True
        )
        columns = loaded.features
        if columns is None:
            next(iter(loaded))
        fine, why = True, ""
    except Exception as error:
        fine, why = False, f"{type(error).__name__}: {error}"
    found = flagged(path, "hub", "PS503")
    assert bool(found) != fine, (found, why)


def accepted_by_open_clip(sample):
    """``filter_no_caption_or_no_image`` of open_clip."""
    return "txt" in sample and any(field in sample for field in ("png", "jpg", "jpeg", "webp"))


@pytest.mark.parametrize(
    "fields", ["jpg txt", "JPEG txt", "webp txt json", "jpg json", "gif txt", "txt", "image text"]
)
def test_open_clip_skips_where_ps502_says_so(fields, tmp_path) -> None:
    tar(tmp_path / "x.tar", [(f"a.{field}", JPG) for field in fields.split()])
    found = flagged(str(tmp_path / "x.tar"), "open_clip", "PS502")
    assert bool(found) != accepted_by_open_clip(fields.lower().split())


def test_an_unknown_reader_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'webdataset'"):
        list(tools.verify("x.tar", reader="webdatset"))
