from __future__ import annotations

import contextlib
import datetime
import json
import random
import sys

import cbor2
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs import records
from penstock.codecs.cbor_scan import end_of_item
from penstock.errors import WriteError
from penstock.testing.codecs import measure_memory

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_from_every_record_format(value):
    assert records.json_loads(records.json_dumps(value)) == value
    assert records.msgpack_loads(records.mp_dumps(value)) == value
    assert records.cbor_loads(records.cbor_dumps(value)) == value


def test_numbers_of_numpy_and_torch_are_written_as_plain_ones():
    value = {"a": np.float32(0.5), "b": np.arange(2), "c": torch.tensor([1.5]), "d": np.int64(3)}
    wanted = {"a": 0.5, "b": [0, 1], "c": [1.5], "d": 3}
    assert json.loads(records.json_dumps(value)) == wanted
    assert records.msgpack_loads(records.mp_dumps(value)) == wanted
    assert records.cbor_loads(records.cbor_dumps(value)) == wanted


def test_what_is_no_plain_value_is_not_written():
    for write in (records.json_dumps, records.mp_dumps, records.cbor_dumps):
        with pytest.raises(Exception, match="object"):
            write({"a": object()})


@pytest.mark.parametrize("number", [3, np.int64(3), np.array(3), torch.tensor(3)])
def test_classes_are_written_in_digits(number):
    assert records.int_dumps(number) == b"3"
    assert records.int_dumps(True) == b"1"


def test_text_must_be_text():
    with pytest.raises(WriteError, match="takes str, not int"):
        records.text_dumps(3)


def test_messagepack_arrays_that_claim_more_than_is_there_are_refused_before_memory_is_taken():
    hostile = (b"\xdd" + (100_000).to_bytes(4, "big")) * 400 + bytes(100_000)
    with measure_memory() as peak, pytest.raises((ValueError, msgpack.OutOfData)):
        records.msgpack_loads(hostile)
    assert peak[0] < 8 << 20


def cbor_map(keys):
    return b"\xba" + len(keys).to_bytes(4, "big") + b"".join(key + b"\x00" for key in keys)


def cbor_set(keys):
    return b"\xd9\x01\x02\x9a" + len(keys).to_bytes(4, "big") + b"".join(keys)


def doubled(times):
    """An array whose every item is an array of the one before, twice, by reference."""
    items = [b"\xd8\x1c\x81\x00"]
    items += [
        b"\xd8\x1c\x82" + b"\xd8\x1d\x18" + bytes([n]) + b"\xd8\x1d\x18" + bytes([n])
        for n in range(times)
    ]
    return b"\x98" + bytes([len(items)]) + b"".join(items)


def equal_integers(count):
    return [cbor2.dumps(sys.hash_info.modulus * (n + 1) << 61) for n in range(count)]


LARGE = [int.from_bytes(random.Random(seed).randbytes(300_000), "big") for seed in range(2)]
SLOW_CBOR = {
    "bignums with one hash": cbor_map(equal_integers(60_000)),
    "bignums with one hash in a set": cbor_set(equal_integers(60_000)),
    "bignums with one hash, of no known number": b"\xbf"
    + b"".join(key + b"\x00" for key in equal_integers(60_000))
    + b"\xff",
    "arrays of bignums with one hash": cbor_map([b"\x81" + key for key in equal_integers(60_000)]),
    "a fraction": b"\xd8\x1e\x82" + cbor2.dumps(LARGE[0]) + cbor2.dumps(LARGE[1]),
    "a fraction by reference": b"\x83\xd8\x1c"
    + cbor2.dumps(LARGE[0])
    + b"\xd8\x1c"
    + cbor2.dumps(LARGE[1])
    + b"\xd8\x1e\x82\xd8\x1d\x00\xd8\x1d\x01",
    "shared arrays as a key": b"\xa1" + doubled(40) + b"\x00",
    "shared arrays in a set": b"\xd9\x01\x02\x81" + doubled(40),
    "nested arrays": b"\x81" * 200_000 + b"\x00",
    "nested tags": b"\xc6" * 200_000 + b"\x00",
    "a list of a claimed size": b"\x9b" + (1 << 40).to_bytes(8, "big") + bytes(100_000),
    "a string of a claimed size": b"\x5b" + (1 << 40).to_bytes(8, "big") + bytes(100_000),
}


@pytest.mark.parametrize("case", list(SLOW_CBOR))
def test_a_cbor_field_that_would_take_for_ever_is_an_error(case, decode_apart):
    outcome = decode_apart("cbor", SLOW_CBOR[case])
    assert outcome.text.startswith("DecodingError: decode: cannot read 'cbor': "), outcome
    assert outcome.seconds < 4, outcome
    assert outcome.taken < 100 << 20


cbor_keys = st.recursive(
    st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False)
    | st.fractions()
    | st.uuids(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=3,
)
cbor_values = st.recursive(
    cbor_keys | st.booleans() | st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    lambda inner: st.lists(inner) | st.dictionaries(cbor_keys, inner) | st.sets(cbor_keys),
    max_leaves=12,
)


@given(cbor_values, st.booleans(), st.binary(max_size=5))
def test_items_of_cbor_end_where_cbor2_says(value, sharing, rest):
    data = cbor2.dumps(value, value_sharing=sharing)
    if sharing and b"\xd8\x1d" in data:
        return  # it may be a key that is in it twice, which is refused
    assert end_of_item(data + rest) == len(data)
    assert end_of_item(b"ab" + data + rest, 2) == len(data) + 2
    for cut in range(len(data)):
        with contextlib.suppress(IndexError):
            assert end_of_item(data[:cut]) > cut


@given(st.lists(st.tuples(st.integers(), st.integers()), min_size=65, max_size=80, unique=True))
def test_many_honest_keys_of_cbor_pass(keys):
    value = dict.fromkeys(keys, 1)
    data = cbor2.dumps(value)
    assert end_of_item(data) == len(data)


def test_a_large_cbor_field_is_read():
    value = {"rows": [{"id": n, "box": [0.5, n], "name": str(n)} for n in range(5000)]}
    data = records.cbor_dumps(value)
    assert len(data) > 100_000
    assert records.cbor_loads(data) == value
