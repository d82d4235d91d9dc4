from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.codecs import Decoder
from penstock.codecs.gzip_fields import gunzip, gzip_bytes
from penstock.errors import DecodingError


@given(st.binary(max_size=300))
def test_packing_and_unpacking_is_the_identity(data):
    assert gunzip(gzip_bytes(data)) == data
    assert gzip.decompress(gzip_bytes(data)) == data


def test_members_follow_each_other_and_zeros_may_follow_them():
    assert gunzip(gzip.compress(b"a") + gzip.compress(b"b") + b"\0" * 20) == b"ab"


def test_a_gzip_field_cut_anywhere_is_a_decoding_error():
    data = gzip_bytes(b"hello")
    for cut in range(1, len(data)):
        with pytest.raises(DecodingError):
            gunzip(data[:cut])


def test_a_field_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", 1000)
    assert gunzip(gzip_bytes(bytes(1000))) == bytes(1000)
    with pytest.raises(DecodingError, match="more than 1,000 bytes"):
        gunzip(gzip_bytes(bytes(1001)))
    with pytest.raises(DecodingError, match=r"'txt.gz'.*more than 1,000 bytes"):
        Decoder()({"txt.gz": gzip_bytes(bytes(600)) * 2})


def test_packed_bytes_hold_no_time():
    assert gzip_bytes(b"x")[4:8] == b"\0\0\0\0"


def test_unpacking_takes_the_memory_of_what_it_gives_not_twice_that():
    size = 32 << 20
    data = gzip_bytes(bytes(size // 2)) * 2
    tracemalloc.start()
    try:
        assert len(gunzip(data)) == size
        assert tracemalloc.get_traced_memory()[1] < 1.3 * size
    finally:
        tracemalloc.stop()


def test_a_field_may_unpack_to_a_gibibyte():
    assert limits.MAX_DECODED_BYTES == 1 << 30


def test_the_limit_is_set_by_a_variable():
    program = "from penstock import limits; print(limits.MAX_DECODED_BYTES)"
    environment = {**os.environ, "PENSTOCK_MAX_DECODED_BYTES": "5e3"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert done.stdout == b"5000\n", done.stderr
