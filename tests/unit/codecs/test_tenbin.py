from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.codecs import tenbin
from penstock.errors import DecodingError, WriteError

ten_arrays = hnp.arrays(
    st.sampled_from(sorted(tenbin.long_to_short)).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=9, min_side=0, max_side=3),
)


@given(st.lists(ten_arrays, max_size=3))
def test_any_arrays_come_back(arrays):
    found = tenbin.decode_buffer(tenbin.encode_buffer(arrays))
    assert len(found) == len(arrays)
    for new, old in zip(found, arrays):
        assert (new.dtype, new.shape, new.tobytes()) == (old.dtype, old.shape, old.tobytes())
        assert not new.flags.writeable


def test_the_layout_is_magic_length_payload_padding():
    data = tenbin.encode_buffer([np.arange(3, dtype=np.int16)], infos=["ab"])
    assert data[:8] == b"~TenBin~"
    assert data[8:16] == (32).to_bytes(8, "little")
    assert data[16:48] == b"i2\0\0\0\0\0\0ab\0\0\0\0\0\0" + bytes([1, *[0] * 7, 3, *[0] * 7])
    assert data[80:96] == b"~TenBin~" + (6).to_bytes(8, "little")
    assert data[96:102] == b"\0\0\1\0\2\0"
    assert len(data) == 2 * (16 + 64)


def test_files_are_those_of_webdataset():
    theirs = pytest.importorskip("webdataset.tenbin")
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(16, np.uint8)]
    assert tenbin.encode_buffer(arrays) == bytes(theirs.encode_buffer(arrays))
    for new, old in zip(theirs.decode_buffer(tenbin.encode_buffer(arrays)), arrays):
        assert np.array_equal(new, old)
    assert tenbin.magic == theirs.magic


def test_uint32_and_big_endian_arrays_are_written():
    (found, other) = tenbin.decode_buffer(
        tenbin.encode_buffer([np.arange(3, dtype=np.uint32), np.arange(3, dtype=">i4")])
    )
    assert found.dtype == np.uint32
    assert other.tolist() == [0, 1, 2]


def test_infos_are_returned_or_checked():
    data = tenbin.encode_buffer([np.zeros(1)], infos=["x"])
    assert tenbin.decode_buffer(data, infos=True)[1] == ["x"]
    assert len(tenbin.decode_buffer(data, infos=["x"])) == 1
    with pytest.raises(DecodingError, match="infos"):
        tenbin.decode_buffer(data, infos=["y"])


def test_streams_and_files_hold_arrays(tmp_path):
    stream = io.BytesIO()
    tenbin.write(stream, [np.zeros(2), np.ones(3)])
    stream.seek(0)
    assert [len(a) for a in tenbin.read(stream, 1)] == [2]
    assert [len(a) for a in tenbin.read(stream)] == [3]
    tenbin.save(tmp_path / "a.ten", np.zeros(2), np.ones(3))
    assert [len(a) for a in tenbin.load(tmp_path / "a.ten")] == [2, 3]
    with pytest.raises(WriteError, match="nocheck"):
        tenbin.save(tmp_path / "a.bin", np.zeros(2))


@pytest.mark.parametrize("value", [np.array(["a"]), np.zeros((1,) * 10), np.array([None])])
def test_arrays_that_do_not_fit_the_format_are_refused(value):
    with pytest.raises(WriteError):
        tenbin.encode_buffer([value])


def test_a_chunk_that_claims_too_much_is_refused():
    huge = b"~TenBin~" + (1 << 50).to_bytes(8, "little") + bytes(64)
    with pytest.raises(DecodingError):
        tenbin.decode_buffer(huge)
    with pytest.raises(DecodingError):
        tenbin.read(io.BytesIO(huge))


def test_a_buffer_cut_inside_its_chunks_is_refused():
    data = tenbin.encode_buffer([np.arange(3)])
    for cut in [*range(1, 56), *range(81, 120)]:
        with pytest.raises(DecodingError):
            tenbin.decode_buffer(data[:cut])
