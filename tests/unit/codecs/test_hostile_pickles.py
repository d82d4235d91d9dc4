"""Pickles that crash, hang or fill the memory of a process that unpickles them carelessly."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import sys
import zipfile

import numpy as np
import pytest
import torch

from penstock.codecs.safe_pickle.unpickler import torch_loads
from penstock.errors import PenstockError
from penstock.testing.codecs import damage


def name(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


DEQUE, DEFAULTDICT = name("collections", "deque"), name("collections", "defaultdict")
UUID, FRACTION, COMPLEX = (
    name("uuid", "UUID"),
    name("fractions", "Fraction"),
    name("builtins", "complex"),
)


def nested(times, before, after, start=b"N"):
    """A value in a value, and so on: ``before`` opens one, ``after`` closes it."""
    return before * times + start + after * times


def doubled(start, step, times=36):
    """A value, and then again and again something made of the last one twice."""
    made = [step.replace(b"GET", b"h" + bytes([place])) for place in range(times)]
    return start + b"".join(b"\x94" + one for one in made)


def dtype_in_dtype(times=30):
    """The state of a type whose two fields are both the last type."""
    start = name("numpy", "dtype") + b"(U\x02V0I00\nI01\ntR"
    state = b"(K\x03U\x01|N(U\x01aU\x01bt}(U\x01a(GETK\x00tU\x01b(GETK\x00tuK\x00K\x01K\x10tb"
    return doubled(start, b"0" + start + state, times)


def integer(number):
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<I", len(data)) + data


def equal_hashes(count):
    """Integers that all have the hash 0, written as opcodes."""
    return [integer(sys.hash_info.modulus * (n + 1)) for n in range(count)]


def equal_tuples(count):
    """Pairs of integers of 64 bits that have one hash: the second undoes what the first does."""
    one, two, five = 11400714785074694791, 14029467366897019727, 2870177450012600261
    mask = (1 << 64) - 1

    def rotated(value, bits):
        return (value << bits | value >> (64 - bits)) & mask

    wanted, pairs = 12345, []
    first = 0
    while len(pairs) < count:
        first += 1
        lane = rotated((five + first * two) & mask, 31) * one & mask
        second = ((rotated(wanted, 33) - lane) * pow(two, -1, 1 << 64)) & mask
        if second < sys.hash_info.modulus:
            pairs.append((first, second))
    assert len({hash(pair) for pair in pairs}) == 1
    return pairs


def put(place):
    return b"r" + struct.pack("<I", place)


def get(place):
    return b"j" + struct.pack("<I", place)


def bulk(size=300_000, seed=1):
    return int.from_bytes(random.Random(seed).randbytes(size), "little") | 1 << 8 * size


MANY = 40_000
made_first = b"".join(DEQUE + b")R" + put(n) + b"0" for n in range(MANY))
DEEP = {
    "objects by OBJ": nested(150_000, b"(" + name("builtins", "list"), b"o") + b".",
    "objects by INST": nested(150_000, b"(", b"ibuiltins\nlist\n") + b".",
    "deque in deque": nested(MANY, DEQUE + b")R", b"a") + b".",
    "deque from a tuple": nested(MANY, DEQUE, b"\x85\x85R") + b".",
    "deque in list in deque": nested(MANY, DEQUE + b")R]", b"aa") + b".",
    "defaultdict in defaultdict": nested(MANY, DEFAULTDICT + b")RN", b"s") + b".",
    "deque in deque, then damage": nested(MANY, DEQUE + b")R", b"a"),
    "deque in deque, filled from outside": made_first
    + b"".join(get(n) + get(n + 1) + b"a0" for n in range(MANY - 1))
    + get(0)
    + b".",
    "deque in deque, all in a list": made_first
    + b"".join(get(n) + get(n + 1) + b"a0" for n in range(MANY - 1))
    + b"]("
    + b"".join(get(n) for n in reversed(range(MANY)))
    + b"e.",
    "deques in a circle": made_first
    + b"".join(get(n) + get((n + 1) % MANY) + b"a0" for n in range(MANY))
    + b"]("
    + b"".join(get(n) for n in range(MANY))
    + b"e.",
    "tuples as a key": b"\x80\x04})" + b"\x85" * 200_000 + b"Ns.",
    "tuples in a frozenset": b"\x80\x04()" + b"\x85" * 200_000 + b"\x91.",
    "tuples in a Counter": name("collections", "Counter") + b"})" + b"\x85" * 200_000 + b"Ns\x85R.",
    "tuples": b"\x80\x04)" + b"\x85" * 200_000 + b".",
    "lists": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "lists beside a name": name("collections", "OrderedDict")
    + b")R0"
    + b"]" * 100_000
    + b"a" * 99_999
    + b".",
    "marks": b"(" * 100_000 + b".",
    "dtype in dtype": nested(
        50_000,
        name("numpy", "dtype") + b"(U\x02V0I00\nI01\ntR(K\x03U\x01|(",
        b"K\x01\x85tNNK\x00K\x01K\x10tb",
        start=name("numpy", "dtype") + b"(U\x02u1I00\nI01\ntR",
    )
    + b".",
}

SLOW = {
    "integers with one hash": b"\x80\x04}("
    + b"".join(key + b"N" for key in equal_hashes(60_000))
    + b"u.",
    "integers with one hash, one by one": b"\x80\x04}"
    + b"".join(key + b"Ns" for key in equal_hashes(60_000))
    + b".",
    "integers with one hash in a set": b"\x80\x04\x8f(" + b"".join(equal_hashes(60_000)) + b"\x90.",
    "integers with one hash in a frozenset": b"\x80\x04("
    + b"".join(equal_hashes(60_000))
    + b"\x91.",
    "integers with one hash in an old set": name("builtins", "set")
    + b"("
    + b"".join(equal_hashes(60_000))
    + b"l\x85R.",
    "integers with one hash in pairs": name("collections", "OrderedDict")
    + b"("
    + b"".join(key + b"N\x86" for key in equal_hashes(60_000))
    + b"l\x85R.",
    "tuples with one hash": b"\x80\x04}("
    + b"".join(integer(a) + integer(b) + b"\x86N" for a, b in equal_tuples(60_000))
    + b"u.",
    "complex numbers with one hash": b"\x80\x04\x8f("
    + b"".join(
        COMPLEX + b"G" + struct.pack(">d", -1000003.0 * n) + b"G" + struct.pack(">d", n) + b"\x86R"
        for n in range(1, 60_000)
    )
    + b"\x90.",
    "a fraction of two large integers": FRACTION
    + integer(bulk(seed=1))
    + integer(bulk(seed=2))
    + b"\x86R.",
    "a fraction of many digits": FRACTION + b"V" + b"9" * 4000 + b"/" + b"8" * 4000 + b"\n\x85R.",
    "one fraction made again and again": FRACTION
    + b"\x94V"
    + b"9" * 1900
    + b"/"
    + b"8" * 1900
    + b"7\n\x85\x94"
    + b"\x80\x04("
    + b"h\0h\x01R" * 200_000
    + b"l.",
    "a range of large integers": name("builtins", "range")
    + b"K\0"
    + integer(bulk(600_000))
    + integer(bulk(300_000))
    + b"\x87R.",
    "key of a dict": b"\x80\x04}" + doubled(b")", b"GET\x86") + b"Ns.",
    "keys of a dict": b"\x80\x04}(" + doubled(b")", b"GET\x86") + b"Nu.",
    "member of a set": b"\x80\x04\x8f(" + doubled(b")", b"GET\x86") + b"\x90.",
    "member of a frozenset": b"\x80\x04(" + doubled(b")", b"GET\x86") + b"\x91.",
    "set of a list": name("builtins", "set") + b"]" + doubled(b")", b"GET\x86") + b"a\x85R.",
    "pairs": name("collections", "OrderedDict")
    + b"](]("
    + doubled(b")", b"GET\x86")
    + b"Nee\x85R.",
    "top of the stack again": b"\x80\x04})" + b"2\x86" * 40 + b"Ns.",
    "tuple of a list": b"\x80\x04}"
    + doubled(b"]Na", b"0](" + (name("builtins", "tuple") + b"GET\x85R") * 2 + b"e")
    + b"\x940"
    + name("builtins", "tuple")
    + b"h\x24\x85RNs.",
    "uuid": b"\x80\x04}" + doubled(b")", b"0" + UUID + b")\x81}U\x03intGETGET\x86sb") + b"Ns.",
    "path": b"\x80\x04}"
    + doubled(
        b")",
        b"0"
        + name("pathlib", "PurePosixPath")
        + b"U\x01a\x85RN}U\x0e_cached_cpartsGETGET\x86s\x86b",
    )
    + b"Ns.",
    "type in type": b"\x80\x04" + dtype_in_dtype() + b".",
}

MEGABYTE = b"B" + struct.pack("<I", 1 << 20) + bytes(1 << 20)
ARRAY = name("numpy._core.numeric", "_frombuffer")
U1 = (
    name("numpy", "dtype")
    + b"(U\x02u1I00\nI01\ntR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
LARGE = {
    "arrays of the same bytes": MEGABYTE
    + b"\x94"
    + U1
    + b"\x94"
    + ARRAY
    + b"\x94"
    + b"("
    + b"h\x02(h\0h\x01J\0\0\x10\0\x85tR" * 20_000
    + b"l.",
    "copies of a bytearray": MEGABYTE
    + b"\x94"
    + name("builtins", "bytearray")
    + b"\x94"
    + b"("
    + b"h\x01h\0\x85R" * 20_000
    + b"l.",
    "bytes of the same text": b"X"
    + struct.pack("<I", 1 << 20)
    + b"a" * (1 << 20)
    + b"\x94"
    + name("_codecs", "encode")
    + b"\x94("
    + b"h\x01h\0\x85R" * 20_000
    + b"l.",
    "copies of a list": b"("
    + b"N" * 1_000_000
    + b"l\x94"
    + name("builtins", "list")
    + b"\x94"
    + b"("
    + b"h\x01h\0\x85R" * 20_000
    + b"l.",
}


def older_torch_file(value):
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


storage = older_torch_file(torch.zeros(1 << 18).untyped_storage())
LARGE["storages of the same bytes"] = (
    b"\x80\x04B"
    + struct.pack("<I", len(storage))
    + storage
    + b"\x94"
    + name("torch.storage", "_load_from_bytes")
    + b"\x94("
    + b"h\x01h\0\x85R" * 20_000
    + b"l."
)


@pytest.mark.parametrize("case", [*DEEP, *SLOW])
def test_a_pickle_that_would_crash_or_never_end_is_an_error(case, decode_apart):
    outcome = decode_apart("pyd", {**DEEP, **SLOW}[case])
    assert outcome.text.startswith("DecodingError: decode: cannot read 'pyd': "), outcome
    assert outcome.seconds < 5, outcome
    assert len(outcome.text) < 500


def torch_file(pickled, **records):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, data in records.items():
            archive.writestr(f"archive/data/{key}", data)
    return stream.getvalue()


@pytest.mark.parametrize("case", [*DEEP, *SLOW])
def test_a_torch_file_that_would_crash_or_never_end_is_an_error(case, decode_apart):
    outcome = decode_apart("pth", torch_file({**DEEP, **SLOW}[case]))
    assert outcome.text.startswith("DecodingError: decode: cannot read 'pth': "), outcome
    assert outcome.seconds < 5, outcome


@pytest.mark.parametrize("case", list(LARGE))
def test_a_pickle_cannot_take_many_times_its_size(case, decode_apart):
    outcome = decode_apart("pyd", LARGE[case])
    assert outcome.taken < 200 << 20, outcome
    assert "more work than its size justifies" in outcome.text, outcome


def test_a_tensor_cannot_repeat_a_few_bytes_without_end(decode_apart):
    honest = io.BytesIO()
    torch.save(torch.zeros(1).expand(77), honest)
    with zipfile.ZipFile(honest) as archive:
        pickled = archive.read("archive/data.pkl").replace(b"KM\x85", integer(10**15) + b"\x85")
    outcome = decode_apart("pth", torch_file(pickled, **{"0": bytes(4)}))
    assert "the tensor unpacks to more than" in outcome.text, outcome


def test_records_of_a_torch_file_cannot_overlap(decode_apart):
    honest = io.BytesIO()
    torch.save([torch.zeros(1000, dtype=torch.uint8) for _ in range(9)], honest)
    data = bytearray(honest.getvalue())
    first = data.find(b"PK\x01\x02", data.find(b"archive/data/0"))
    while (entry := data.find(b"PK\x01\x02", first)) >= 0:  # sizes in the central directory
        data[entry + 20 : entry + 28] = struct.pack("<II", 1 << 20, 1 << 20)
        first = entry + 4
    outcome = decode_apart("pth", bytes(data))
    assert outcome.text.startswith("DecodingError"), outcome


def test_memo_indices_cannot_share_a_hash(decode_apart):
    places = b"".join(b"p%d\n" % (sys.hash_info.modulus * (n + 1)) for n in range(60_000))
    outcome = decode_apart("pyd", b"]" + places + b".")
    assert "a memo index" in outcome.text, outcome
    assert outcome.seconds < 1


def test_damaged_torch_files_are_decoding_errors():
    whole = io.BytesIO()
    torch.save({"a": torch.arange(3), "b": np.arange(4)}, whole)
    for data in (whole.getvalue(), older_torch_file([torch.arange(3), {"x": torch.ones(2)}])):
        for damaged in damage(data, 150):
            with contextlib.suppress(PenstockError):
                torch_loads(damaged)
