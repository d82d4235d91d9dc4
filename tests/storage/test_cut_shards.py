"""A shard that was cut: every reader and command comes to the same result."""

from __future__ import annotations

import gzip
import random
import tarfile
import warnings

import pytest
from range_server import serving

import penstock as wds
from penstock import tools
from penstock.shards.index import build_index
from tar_files import tar_bytes

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WDS_CACHE", raising=False)
    folder = tmp_path / "served"
    folder.mkdir()
    with serving(folder) as running:
        yield running


def random_members(draw):
    """Samples of one to three fields, some empty, some with a name of several headers."""
    members = []
    for number in range(draw.randint(2, 4)):
        folder = "d" * 120 + "/" if draw.random() < 0.3 else ""
        for field in ("cls", "json", "txt")[: draw.randint(1, 3)]:
            data = draw.randbytes(draw.choice((0, 1, 511, 512, 513, 1500)))
            members.append((f"{folder}k{number}.{field}", data))
    return members


def places_of(path):
    """The first header, the data and the end of each member, from the standard library."""
    with tarfile.open(path) as tar:
        return [
            (one.name, one.offset, one.offset_data, one.offset_data + -(-one.size // 512) * 512)
            for one in tar.getmembers()
        ]


def expect(places, cut):
    """How many members of which samples must come, and ``""``, ``"notice"`` or ``"error"``."""
    end = places[-1][3]
    if cut >= end + 512:
        how = ""
    elif cut in (stop for *_, stop in places):
        how = "notice"
    else:
        how = "error"
    whole = [(name.split(".")[0], stop) for name, _, _, stop in places]
    counts = {key: sum(k == key and s <= cut for k, s in whole) for key, _ in whole}
    if how == "error":  # a sample is complete when the next one's header was read
        first = {name.split(".")[0]: data for name, _, data, _ in reversed(places)}
        following = list(first.values())[::-1][1:]
        known = sum(data <= cut for data in following)
        counts = dict(list(counts.items())[:known])
    return {key: count for key, count in counts.items() if count}, how


def outcome(read):
    """Run a reader: its samples, and the notice or error with its byte."""
    found, how = {}, ""
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        try:
            for sample in read():
                found[sample["__key__"]] = sum(not field.startswith("__") for field in sample)
        except wds.ShardError as error:
            how = f"error {error.origin.offset}"
    notices = [str(one.message) for one in noticed if one.category is wds.ShardWarning]
    if notices:
        assert how == ""
        assert "end-of-archive" in notices[0]
        how = "notice " + notices[0].partition(", byte ")[2].partition(";")[0]
    return found, how


def by_command(command, path, out):
    def read():
        if command == "cat":
            tools.cat(path, out, force=True)
            return wds.WebDataset(out, empty_check=False)
        out.unlink(missing_ok=True)
        index = build_index(path, out)
        return [{"__key__": key, **index.fields_of(n)} for n, key in enumerate(index.keys)]

    return read


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_a_shard_cut_anywhere_is_the_same_to_every_reader(server, tmp_path, format, seed):
    draw = random.Random(f"{format} {seed}")
    path = server.folder / "x.tar"
    data = tar_bytes(random_members(draw), FORMATS[format])
    path.write_bytes(data)
    places = places_of(path)
    end = places[-1][3]
    cuts = {*range(512, end + 1025, 512), *(draw.randrange(1, end) for _ in range(5)), end + 100}
    local, packed = str(path), tmp_path / "x.tar.gz"
    options = {"empty_check": False, "shardshuffle": False}
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        packed.write_bytes(gzip.compress(data[:cut], mtime=0))
        readers = {
            "plain": lambda: wds.WebDataset(local, **options),
            "http": lambda: wds.WebDataset(server.url("x.tar"), **options),
            "pipe": lambda: wds.WebDataset(f"pipe:cat {local}", **options),
            "gz": lambda: wds.WebDataset(str(packed), **options),
        }
        indexed = {
            "indexed": lambda: wds.WebDataset(local, index=True, **options),
            "cat": by_command("cat", local, tmp_path / "out.tar"),
            "index": by_command("index", local, tmp_path / "out.parquet"),
            "remote index": by_command("index", server.url("x.tar"), tmp_path / "out.parquet"),
        }
        samples, how = expect(places, cut)
        found = outcome(readers["plain"])
        assert (found[0], found[1].partition(" ")[0]) == (samples, how), cut
        for name, read in readers.items():
            assert outcome(read) == found, (name, cut)
        (path.parent / "x.index.parquet").unlink(missing_ok=True)
        for name, read in indexed.items():
            assert outcome(read) == (found if how != "error" else ({}, found[1])), (name, cut)
        (path.parent / "x.index.parquet").unlink(missing_ok=True)
        codes = {one.code: one.severity for one in tools.verify(local) if one.code[:3] == "PS1"}
        if how == "error":
            assert set(codes.values()) == {"error"}, cut
        else:
            assert codes == ({"PS106": "note"} if how else {}), cut


def test_a_cut_inside_a_member_names_shard_key_and_byte(server):
    path = server.folder / "x.tar"
    path.write_bytes(tar_bytes([("a.txt", b"x" * 600), ("b.txt", b"y" * 600)])[: 4 * 512 + 50])
    for url in (str(path), server.url("x.tar"), f"pipe:cat {path}"):
        with pytest.raises(wds.ShardError) as caught:
            list(wds.WebDataset(url, shardshuffle=False))
        origin = caught.value.origin
        assert (origin.url, origin.key, origin.offset) == (url, "b", 4 * 512 + 50)
