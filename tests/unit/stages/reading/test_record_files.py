"""Shards that are streams of records."""

from __future__ import annotations

import struct
import sys
import tracemalloc

import pytest

import penstock as wds
from penstock.errors import MissingPackage, ShardError, StorageError

cbor2 = pytest.importorskip("cbor2")
msgpack = pytest.importorskip("msgpack")

KINDS = {
    "cbor": (wds.cbors_to_samples, cbor2.dumps),
    "msgpack": (wds.msgpacks_to_samples, msgpack.packb),
}
BOTH = pytest.mark.parametrize("kind", KINDS)
RECORDS = [{"__key__": "a", "n": 1, "data": bytes(1000)}, {"__key__": "b"}, [1, 2.5, "x", None]]


def write(path, kind, records=RECORDS, rest=b""):
    path.write_bytes(b"".join(map(KINDS[kind][1], records)) + rest)
    return str(path)


def read(urls, kind, *stages, **options):
    return wds.DataPipeline(wds.SimpleShardList(urls), KINDS[kind][0](**options), *stages)


@BOTH
def test_records_come_one_after_another_from_shard_to_shard(tmp_path, kind):
    urls = [write(tmp_path / "1", kind), write(tmp_path / "2", kind)]
    assert list(read(urls, kind)) == RECORDS * 2
    assert list(read(f"pipe:cat {urls[0]}", kind)) == RECORDS


@BOTH
def test_an_empty_shard_has_no_records(tmp_path, kind):
    assert list(read(write(tmp_path / "1", kind, []), kind)) == []


@BOTH
def test_a_shard_cut_at_any_byte_gives_whole_records_and_then_an_error(tmp_path, kind):
    url = write(tmp_path / "1", kind)
    data = (tmp_path / "1").read_bytes()
    ends = [len(b"".join(map(KINDS[kind][1], RECORDS[:n]))) for n in range(len(RECORDS) + 1)]
    for cut in (*range(30), *range(len(data) - 30, len(data))):
        (tmp_path / "1").write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends) - 1
        found = []
        if cut in ends:
            found.extend(read(url, kind))
        else:
            with pytest.raises(ShardError, match=rf"1, byte {ends[whole]}\)"):
                found.extend(read(url, kind))
        assert found == RECORDS[:whole]


@BOTH
def test_records_larger_than_a_window_are_read_and_told_by_their_beginning(tmp_path, kind):
    records = [{"n": n, "data": bytes([n]) * 400_000} for n in range(4)]
    url = write(tmp_path / "1", kind, records)
    run = read(url, kind).start(wds.DataPipeline().context())
    places = [(record, run.origin(run.ticket).offset) for record in run]
    size = len(KINDS[kind][1](records[0]))
    assert places == [(record, n * size) for n, record in enumerate(records)]


@BOTH
def test_handlers_decide_about_damaged_and_missing_shards(tmp_path, kind):
    broken = write(tmp_path / "1", kind, rest=b"\xc1\xff\xff")
    urls = [broken, str(tmp_path / "missing"), write(tmp_path / "2", kind)]
    with pytest.raises(ShardError, match="a damaged record"):
        list(read(urls, kind))
    with pytest.raises(StorageError, match="missing"):
        list(read(urls[1:], kind))
    pipeline = read(urls, kind, handler=wds.ignore_and_continue)
    assert list(pipeline) == RECORDS * 2
    assert sum(pipeline.skipped.values()) == 2
    assert list(read(urls, kind, handler=wds.ignore_and_stop)) == RECORDS


@BOTH
def test_an_error_further_on_says_shard_and_byte(tmp_path, kind):
    urls = [write(tmp_path / "1", kind), write(tmp_path / "2", kind)]
    seen = []

    def fail(item):
        seen.append(item)
        raise KeyError

    pipeline = read(urls, kind, wds.shuffle(100, initial=100), wds.slice(1), wds.map(fail))
    with pytest.raises(KeyError) as caught:
        list(pipeline)
    run = read(urls, kind).start(pipeline.context())
    places = [str(run.origin(run.ticket)) for item in run if item == seen[0]]
    assert len(places) == 2
    assert caught.value.__notes__[0].removeprefix("in map: ").split(", sample")[0] in str(places)


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        ("msgpack", b"\xdd\x3f\xff\xff\xff"),
        ("msgpack", b"\xdf\x3f\xff\xff\xff"),
        ("msgpack", b"\xc6\x3f\xff\xff\xff"),
        ("msgpack", b"\x91" * 100_000),
        ("cbor", b"\x9a\xff\xff\xff\xff"),
        ("cbor", b"\x5b\x00\x00\x01" + b"\xff" * 5),
        ("cbor", b"\x81" * 100_000),
    ],
)
def test_a_lying_record_takes_no_memory(tmp_path, kind, claim):
    url = write(tmp_path / "1", kind, [], claim)
    tracemalloc.start()
    try:
        with pytest.raises(ShardError):
            list(read(url, kind))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("kind", "package"), [("cbor", "cbor2"), ("msgpack", "msgpack")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, kind, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=package):
        list(read(write(tmp_path / "1", kind), kind))


def equal_timestamps(count):
    """Keys of MessagePack whose hashes are equal: the seconds undo what the nanoseconds do."""
    one, two, five = 11400714785074694791, 14029467366897019727, 2870177450012600261  # xxHash
    mask, inverses = (1 << 64) - 1, [pow(number, -1, 1 << 64) for number in (one, two)]
    keys, hashes = [], set()
    for nanoseconds in range(10**9):
        sum = 12345 - nanoseconds * two & mask
        turned = sum * inverses[0] & mask
        turned = (turned >> 31 | turned << 33) & mask
        seconds = (turned - five) * inverses[1] & mask
        if seconds < sys.hash_info.modulus:
            keys.append(b"\xc7\x0c\xff" + struct.pack(">Iq", nanoseconds, seconds) + b"\x00")
            hashes.add(hash(msgpack.Timestamp(seconds, nanoseconds)))
        if len(keys) == count:
            assert len(hashes) == 1
            return b"".join(keys)
    return None


def equal_integers(count):
    keys = (sys.hash_info.modulus * (n + 1) << 61 for n in range(count))
    return b"".join(cbor2.dumps(key) + b"\x00" for key in keys)


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        ("msgpack", b"\xde\x0f\xa0" + equal_timestamps(4000)),
        ("cbor", b"\xb9\x0f\xa0" + equal_integers(4000)),
        ("cbor", b"\xa1\x82\xd8\x1c\x81\x00\xd8\x1d\x00\x00"),
    ],
)
def test_a_record_whose_keys_take_long_is_refused(tmp_path, kind, record):
    with pytest.raises(ShardError, match=r"share a hash|refers to other values"):
        list(read(write(tmp_path / "1", kind, [], record), kind))


def test_records_with_keys_of_every_kind_are_read(tmp_path):
    value = {1: "a", 2.5: "b", b"x": "c", "y": {(1, 2): "d"}, **{n: n for n in range(5, 300)}}
    assert list(read(write(tmp_path / "1", "cbor", [value]), "cbor")) == [value]
    del value["y"]
    assert list(read(write(tmp_path / "2", "msgpack", [value]), "msgpack")) == [value]


def test_records_that_reach_over_many_windows_are_read_at_their_places(tmp_path):
    times = [msgpack.Timestamp(10**12 + n, 7) for n in range(40_000)]  # 600 kB
    records = {
        "msgpack": [{"a": 1}, times, {"b": times, **dict.fromkeys(times[:2000])}, {"c": 2}, "end"],
        "cbor": [
            {"x": bytes(900_000)},
            list(range(300_000)),
            {(n, n): 1 for n in range(99)},
            "end",
        ],
    }
    for kind, wanted in records.items():
        url = write(tmp_path / kind, kind, wanted)
        run = read(url, kind).start(read(url, kind).context())
        tickets = [(run.ticket, item) for item in run]
        assert [item for _, item in tickets] == wanted
        assert [run.fetch(ticket) for ticket, _ in reversed(tickets)] == wanted[::-1]
