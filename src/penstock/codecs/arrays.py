"""Decode and encode ``.npy``, ``.npz`` and ``.ten``; sizes are checked before allocating."""

from __future__ import annotations

import ast
import contextlib
import io
import math
import re
import zipfile
from typing import Any

import numpy as np

from penstock import limits
from penstock.codecs import tenbin
from penstock.errors import DecodingError, UnsafeError, WriteError

Array = np.ndarray[Any, np.dtype[Any]]

_NPY_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  # numpy's own limit: the header is parsed as Python source
_USUAL = re.compile(
    r"\{'descr': '([^'\\]+)', 'fortran_order': (True|False), "
    r"'shape': \(((?:(?:\d+, ?)+\d*)?)\), \}\s*"
)
"""The header that numpy writes for all dtypes but records: nearly every header."""
_TRIES = 10
"""Python 3.11 sometimes raises SystemError if several threads parse source at the same time."""


def numpy_dumps(data: Any) -> bytes:
    """Return the array (or tensor, or list of numbers) as a ``.npy`` file."""
    array = as_array(data)
    if array.dtype.hasobject:
        raise WriteError("npy: arrays of Python objects cannot be written: use pyd for them")
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def npy_loads(data: bytes) -> Array:
    """Read the array in a ``.npy`` file. Arrays of Python objects are refused.

    >>> npy_loads(numpy_dumps([1.5, 2.5]))
    array([1.5, 2.5])
    """
    dtype, fortran, shape, start = _read_npy_header(data)
    if dtype.hasobject:
        raise UnsafeError("npy: arrays of Python objects are pickles and are not read")
    count = math.prod(shape)
    if not dtype.itemsize or count * dtype.itemsize > len(data) - start:
        raise DecodingError(
            f"npy: {dtype} of shape {shape} does not fit in {len(data) - start} bytes"
        )
    flat = np.frombuffer(data, dtype, count, start).copy()  # the caller may write into it
    return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)


def _read_npy_header(data: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Return the dtype, order, shape and the offset of the numbers."""
    width = 2 if data[6:7] == b"\1" else 4
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if not data.startswith(_NPY_MAGIC) or data[6:7] not in (b"\1", b"\2", b"\3"):
        raise DecodingError("npy: the data does not begin as a .npy file")
    if start > min(len(data), _MAX_HEADER):
        raise DecodingError(f"npy: a header up to byte {start} of {len(data)} is too long")
    text = data[8 + width : start].decode("latin1" if width == 2 else "utf-8")
    try:
        header = _parse_npy_header(text)
        dtype = np.lib.format.descr_to_dtype(header["descr"])
        shape, fortran = header["shape"], header["fortran_order"]
    except (
        ValueError,
        SyntaxError,
        TypeError,
        KeyError,
        IndexError,
        RecursionError,
        MemoryError,  # Python's parser raises it for deep nesting; the header is short
    ) as error:
        raise DecodingError(f"npy: cannot understand the header {text[:80]!r}") from error
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise DecodingError(f"npy: {shape!r} is no shape")
    return dtype, bool(fortran), shape, start


def _parse_npy_header(text: str) -> Any:
    """Return the dict of a header."""
    if usual := _USUAL.fullmatch(text):
        descr, fortran, shape = usual.groups()
        extents = tuple(int(extent) for extent in shape.replace(",", " ").split())
        return {"descr": descr, "fortran_order": fortran == "True", "shape": extents}
    for _ in range(_TRIES - 1):
        with contextlib.suppress(SystemError):
            return ast.literal_eval(text.strip())
    return ast.literal_eval(text.strip())


def numpy_npz_dumps(data: dict[str, Any]) -> bytes:
    """Return the arrays of a dict as a compressed ``.npz`` file."""
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise WriteError(f"npz: a dict of arrays by name is needed, not {type(data).__name__}")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in data.items():
            # A ZipInfo made from the name alone has a fixed date: same arrays, same bytes.
            info = zipfile.ZipInfo(f"{name}.npy")
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, numpy_dumps(value))
    return stream.getvalue()


def npz_loads(data: bytes) -> dict[str, Array]:
    """Read the arrays in a ``.npz`` file, by name.

    >>> npz_loads(numpy_npz_dumps({"a": [1, 2]}))
    {'a': array([1, 2])}
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        # For these two methods, the only ones that numpy writes, zipfile unpacks no more than the
        # claimed size.
        kinds = {member.compress_type for member in members}
        if not kinds <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise DecodingError("npz: a compression that numpy does not write: save it with numpy")
        if sum(member.file_size for member in members) > limits.MAX_DECODED_BYTES:
            raise limits.too_large("the .npz field")
        return {
            member.filename.removesuffix(".npy"): npy_loads(archive.read(member))
            for member in members
        }


def tenbin_dumps(data: Any) -> bytes:
    """Return an array or a list of arrays as a ``.ten`` file."""
    items = data if isinstance(data, (list, tuple)) else [data]
    return tenbin.encode_buffer([as_array(item) for item in items])


def tenbin_loads(data: bytes) -> list[Array]:
    """Read the arrays in a ``.ten`` file. They are read-only."""
    arrays: list[Array] = tenbin.decode_buffer(data)
    return arrays


def as_array(value: Any) -> Array:
    """Return the value as an array. A torch tensor may have a gradient and be on any device."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
