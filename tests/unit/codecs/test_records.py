from __future__ import annotations

import json

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.codecs import records
from penstock.errors import WriteError
from penstock.testing.codecs import measured

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
    with measured() as peak, pytest.raises((ValueError, msgpack.OutOfData)):
        records.msgpack_loads(hostile)
    assert peak[0] < 8 << 20
