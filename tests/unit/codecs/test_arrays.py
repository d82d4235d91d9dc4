from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp

from penstock import limits
from penstock.codecs import arrays
from penstock.errors import DecodingError, UnsafeError, WriteError

any_array = hnp.arrays(
    hnp.scalar_dtypes() | hnp.array_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=4)
)


def identical(found, value):
    return (
        found.dtype == value.dtype
        and found.shape == value.shape
        and found.tobytes() == value.tobytes()
    )


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@given(any_array)
def test_any_array_comes_back_from_npy_and_numpy_reads_it_too(value):
    if not value.dtype.itemsize:
        return
    data = arrays.numpy_dumps(value)
    assert identical(arrays.npy_loads(data), value)
    assert identical(np.load(io.BytesIO(data)), value)


def test_what_numpy_writes_is_read():
    for value in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((2, 3))), np.array("ü")):
        stream = io.BytesIO()
        np.save(stream, value)
        assert identical(arrays.npy_loads(stream.getvalue()), value)
    stream = io.BytesIO()
    np.savez(stream, a=np.arange(3), b=np.ones(2))
    assert list(arrays.npz_loads(stream.getvalue())) == ["a", "b"]


def test_arrays_that_are_read_can_be_written_into():
    found = arrays.npy_loads(arrays.numpy_dumps(np.zeros(3)))
    found += 1


def test_tensors_and_lists_are_written_as_arrays():
    tensor = torch.ones(2, 3, requires_grad=True)
    assert arrays.npy_loads(arrays.numpy_dumps(tensor)).shape == (2, 3)
    assert arrays.tenbin_loads(arrays.tenbin_dumps([tensor, [1, 2]]))[0].shape == (2, 3)
    assert arrays.npz_loads(arrays.numpy_npz_dumps({"a": tensor}))["a"].sum() == 6


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': 3}",
        "{'descr': '<f8', 'fortran_order': False}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,)}",
        "__import__('os').system('true')",
        "(" * 500,
    ],
)
def test_a_header_that_lies_is_refused(text):
    with pytest.raises(DecodingError):
        arrays.npy_loads(header(text) + bytes(64))


def test_arrays_of_objects_are_neither_read_nor_written():
    stream = io.BytesIO()
    np.save(stream, np.array([None, {}]), allow_pickle=True)
    with pytest.raises(UnsafeError, match="objects"):
        arrays.npy_loads(stream.getvalue())
    with pytest.raises(WriteError, match="objects"):
        arrays.numpy_dumps(np.array([None]))


def test_an_npz_that_unpacks_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", 5000)
    with pytest.raises(DecodingError, match="more than 5,000"):
        arrays.npz_loads(arrays.numpy_npz_dumps({"a": np.zeros(1000)}))


def test_an_npz_takes_a_dict():
    with pytest.raises(WriteError, match="dict"):
        arrays.numpy_npz_dumps([1])


def test_a_usual_header_is_no_source_for_python_to_parse(monkeypatch):
    """On Python 3.11 threads that parse at the same time get a SystemError now and then."""
    monkeypatch.setattr(arrays.ast, "literal_eval", None)
    for value in (np.float32(2.5), np.arange(3), np.zeros((2, 0, 3), "<U2"), np.ones((2, 3)).T):
        assert identical(arrays.npy_loads(arrays.numpy_dumps(value)), np.asarray(value))


def test_the_header_of_records_is_parsed_again_where_another_thread_was_in_the_way(monkeypatch):
    parse, calls = arrays.ast.literal_eval, []

    def disturbed(text):
        calls.append(text)
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch")
        return parse(text)

    monkeypatch.setattr(arrays.ast, "literal_eval", disturbed)
    value = np.zeros(2, [("a", "i4"), ("b", "f8")])
    assert identical(arrays.npy_loads(arrays.numpy_dumps(value)), value)


def test_a_header_that_is_nearly_usual_is_told_at_once():
    for shape in ("(3)", "(" + "1" * 60 + "x)", "(" + "1, " * 60 + "x)", "(1, -1)"):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode(
            "latin1"
        )
        data = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(64)
        with pytest.raises(DecodingError):
            arrays.npy_loads(data)


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_that_is_packed_as_numpy_does_not_is_refused(kind, decode_apart):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive, archive.open("a.npy", "w") as member:
        member.write(arrays.numpy_dumps(np.zeros(0))[:128])
        for _ in range(60):
            member.write(bytes(1 << 20))
    data = stream.getvalue()
    assert len(data) < 100_000
    outcome = decode_apart("npz", data)
    assert "a compression that numpy does not write" in outcome.text, outcome
    assert outcome.taken < 50 << 20


def test_an_npz_of_zeros_beyond_the_limit_is_refused(decode_apart):
    stream = io.BytesIO()
    archive = zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open("a.npy", "w", force_zip64=True) as member:
        member.write(arrays.numpy_dumps(np.zeros(0))[:128])
        for _ in range(65):
            member.write(bytes(1 << 20))
    outcome = decode_apart("npz", stream.getvalue())
    assert "unpacks to more than 67,108,864 bytes" in outcome.text, outcome
    assert outcome.taken < 50 << 20


@pytest.mark.parametrize("descr", ["-" * 9000 + "1", "1+" * 4000 + "1", "(" * 5000, "[" * 50])
def test_a_deep_npy_header_is_a_decoding_error_and_no_lack_of_memory(descr):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (0,), }}".encode()
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(DecodingError, match="cannot understand the header"):
        arrays.npy_loads(data)
