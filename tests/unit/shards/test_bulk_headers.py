"""Tiny samples that are taken by the hundred: what comes is what comes one by one."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.handlers import ignore_and_continue
from penstock.shards import bulk_headers as stretch
from penstock.shards import byte_windows as window
from penstock.shards.open_shard import tape_of
from penstock.shards.sample_reader import Samples

MANY = 120


def shard(members, format=tarfile.USTAR_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=format) as archive:
        for name, data, *fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in dict(*fields).items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def pairs(count=MANY, key="{:05d}", first="json", second="cls"):
    for number in range(count):
        yield f"{key.format(number)}.{first}", b'{"n": %d}' % number
        yield f"{key.format(number)}.{second}", b"%d" % (number % 7)


def read(data: bytes, together: bool, handler=None, start=0):
    """What comes of a shard: samples with their offsets, the last error, and what was skipped."""
    found, skipped = [], []
    tape = tape_of(io.BytesIO(data), "x.tar", start=start)
    options = {"local_path": "x.tar", "on_skip": lambda: skipped.append(len(found))}
    samples = Samples(tape, *([handler] if handler else []), **options)
    if not together:
        samples._stretch = lambda *place: None
    try:
        for sample in samples:
            found += [(list(sample.items()), samples.offset, samples.next_offset)]
    except PenstockError as error:
        return found, str(error), skipped
    return found, None, skipped


@pytest.fixture
def together(monkeypatch):
    """How many samples came together."""
    found = []
    sound = stretch.stretch

    def counted(*words):
        result = sound(*words)
        found.extend(result.samples if result is not None else [])
        return result

    monkeypatch.setattr(stretch, "stretch", counted)
    monkeypatch.setattr(window, "WINDOW_BYTES", 40 << 10)
    return found


def nested() -> list:
    inside = shard(pairs(3))
    return [*pairs(40), ("00040.json", inside), ("00040.cls", b"1"), *pairs(60, "1{:04d}")]


ALIKE = {
    "two fields": list(pairs()),
    "one field": [(f"{n:05d}.txt", b"x" * n) for n in range(MANY)],
    "five fields": [(f"{n:03d}.{f}", b"abc") for n in range(MANY) for f in "abcde"],
    "folders": list(pairs(key="train/a{:05d}")),
    "upper case": list(pairs(first="JSON", second="x.Cls")),
    "other letters": list(pairs(key="Tür{:05d}")),
    "names as long as they may be": list(pairs(key="k" * 84 + "{:05d}")),
    "empty and larger ones": [(f"{n:05d}.bin", b"y" * (n * 97 % 1500)) for n in range(MANY)],
    "something else at the end": [*pairs(), ("zz.jpg", b"1"), ("zz.cls", b"2")],
}
UNLIKE = {
    "a field is missing now and then": [m for n, m in enumerate(pairs()) if n % 31 != 1],
    "a field more now and then": [
        m
        for n, (name, data) in enumerate(pairs())
        for m in [(name, data), *([(name + "x", data)] if n % 31 == 1 else [])]
    ],
    "another field now and then": [
        (f"{n:05d}.{'x.' if n % 50 == 9 else ''}txt", b"1") for n in range(MANY)
    ],
    "keys that descend": list(pairs())[::-1],
    "a key twice": [*pairs(60), *pairs(60)],
    "a field twice": [*pairs(40), ("00039.CLS", b"1"), *pairs(40, "1{:04d}")],
    "fields that differ by case alone": list(pairs(first="cls", second="CLS")),
    "folders with dots": list(pairs(key="a.b/{:05d}")),
    "hidden ones": list(pairs(key="a/.{:05d}")),
    "meta": list(pairs(key="__{:05d}__/x")),
    "meta between": [*pairs(50), ("__meta__", b"1"), ("__x__.cls", b"1"), *pairs(50, "1{:04d}")],
    "no field": [(f"{n:05d}", b"1") for n in range(MANY)],
    "an empty field": [(f"{n:05d}.", b"1") for n in range(MANY)],
    "lines in keys": list(pairs(key="{:05d}\nx")),
    "lines in fields": list(pairs(first="js\non")),
    "keys that are meta fields": list(pairs(first="__url__")),
    "a shard in a shard": nested(),
    "a large one between": [*pairs(50), ("00050.json", b"z" * 90_000), *pairs(50, "1{:04d}")],
    "owners that change": [(*m, {"uid": n, "uname": f"u{n // 70}"}) for n, m in enumerate(pairs())],
    "times that change": [(*m, {"mtime": n * 1000}) for n, m in enumerate(pairs())],
    "links between": [(*m, {"type": b"2"} if n % 50 == 9 else {}) for n, m in enumerate(pairs())],
}


@pytest.mark.parametrize("kind", ALIKE)
def test_samples_of_one_kind_come_together_as_they_come_one_by_one(kind, together):
    data = shard(ALIKE[kind])
    assert read(data, True) == read(data, False)
    assert len(together) >= 20


@pytest.mark.parametrize("handler", [None, ignore_and_continue])
@pytest.mark.parametrize("kind", UNLIKE)
def test_whatever_else_a_shard_has_comes_as_it_comes_one_by_one(kind, handler, together):
    data = shard(UNLIKE[kind])
    assert read(data, True, handler) == read(data, False, handler)


@pytest.mark.parametrize("count", range(40, 62, 3))
def test_a_field_more_at_the_end_is_the_last_samples(count, together):
    data = shard([*pairs(count), (f"{count - 1:05d}.txt", b"1")])
    assert read(data, True) == read(data, False)
    assert "txt" in dict(read(data, True)[0][-1][0])


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_other_forms_of_tar_come_as_they_come_one_by_one(format, together):
    members = [*pairs(60), (f"{'k' * 150}.json", b"1"), *pairs(60, "l{:04d}")]
    data = shard(members, format)
    assert read(data, True) == read(data, False)
    assert together


@pytest.mark.parametrize(
    "form", [b"%06o\0 ", b"%06o \0", b"%07o\0", b"%6o\0 ", b"%06o  "], ids=repr
)
def test_checksums_in_any_form_are_right(form, together):
    data = bytearray(shard(pairs()))
    for at in range(0, len(data) - 10240, 1024):
        checksum = int(data[at + 148 : at + 154], 8)
        data[at + 148 : at + 156] = form % checksum
    assert read(bytes(data), True) == read(bytes(data), False)
    assert len(read(bytes(data), True)[0]) == MANY


def test_what_stands_behind_the_nul_of_a_name_is_not_its_name(together):
    data = bytearray(shard(pairs()))
    for at in (1024 * 60, 1024 * 61):
        data[at + 50] = 65
        checksum = int(data[at + 148 : at + 154], 8) + 65
        data[at + 148 : at + 154] = b"%06o" % checksum
    assert read(bytes(data), True) == read(bytes(data), False)
    assert read(bytes(data), True)[1] is None


@given(place=st.integers(0, 1023), member=st.integers(0, 119), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_is_found_as_it_is_found_one_by_one(place, member, value):
    data = bytearray(shard(pairs(60)))
    data[member * 1024 + place] = value
    assert read(bytes(data), True) == read(bytes(data), False)


@given(cut=st.integers(0, 140_000))
@settings(max_examples=60, deadline=None)
def test_a_shard_cut_anywhere_gives_the_same_samples_and_the_same_error(cut):
    data = shard(pairs(60))[:cut]
    assert read(data, True) == read(data, False)


def test_reading_goes_on_behind_any_sample(together):
    data = shard(pairs())
    whole, _, _ = read(data, False)
    for number, (_, _, following) in enumerate(whole[:-1]):
        assert read(data, True, start=following)[0] == whole[number + 1 :]


def test_large_samples_are_not_looked_at_together(monkeypatch):
    monkeypatch.setattr(stretch, "stretch", None)  # a call would be an error
    found, error, _ = read(shard((f"{n:05d}.jpg", bytes(30_000)) for n in range(40)), True)
    assert len(found) == 40
    assert error is None


def test_a_shard_of_many_kinds_is_soon_left_in_peace(monkeypatch):
    tried = []
    monkeypatch.setattr(stretch, "stretch", lambda *words: tried.append(1))
    monkeypatch.setattr(window, "WINDOW_BYTES", 40 << 10)
    assert len(read(shard(pairs(2000)), True)[0]) == 2000
    assert len(tried) <= 8
