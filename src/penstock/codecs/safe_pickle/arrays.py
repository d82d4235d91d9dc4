"""Read the arrays and tensors in a pickle, and the files that ``torch.save`` writes.

The functions here replace those that numpy and torch name in pickles. They compare sizes, dtypes
and strides with the bytes that are present before they create an array or tensor.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import reprlib
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock import limits
from penstock.codecs.safe_pickle.interpreter import Budget, Internal, Name, PickleReader, Unfinished
from penstock.errors import (
    DecodingError,
    PenstockError,
    UnsafeError,
    optional,
    ran_out,
)

Array = np.ndarray[Any, np.dtype[Any]]
Find = Callable[[str, str], Any]

_CODE = re.compile(r"[biufcSUVMm?]\d{0,9}")
_MAX_FIELDS = 10_000  # of a dtype: nested dtypes can double the number at each level
_TORCH_DTYPE = re.compile(r"bool|(u?int|b?float|complex)\d+(_e\dm\d\w*)?")
_UNIT = re.compile(r"[A-Za-z]{1,7}")


class _Dtype(Unfinished):
    """``numpy.dtype(code, align, copy)``, before its state is set."""

    __slots__ = ("code",)

    def __init__(self, code: Any) -> None:
        super().__init__()
        self.code = code

    def finish(self, reader: PickleReader, state: Any) -> np.dtype[Any]:
        _, order, subarray, names, fields, itemsize, _, flags = state[:8]
        if subarray is not None:
            return np.dtype((_dtype(subarray[0]), _shape(subarray[1])))
        if names is not None:
            return _structure(names, fields, itemsize, flags)
        if order not in ("<", ">", "|", "="):
            raise DecodingError(f"pickle: {reprlib.repr(order)} is no byte order")
        code = self.code
        if code in ("M8", "m8") and len(state) == 9:
            unit, count = state[8][1][:2]
            unit = unit.decode("ascii")
            if type(count) is not int or not _UNIT.fullmatch(unit):
                raise DecodingError("pickle: cannot understand the unit of a time")
            code += "" if unit == "generic" else f"[{count}{unit}]"
        dtype: np.dtype[Any] = np.dtype(code)
        return dtype.newbyteorder(order)


def _begin_dtype(reader: PickleReader, code: Any, align: Any = False, copy: Any = True) -> _Dtype:
    if isinstance(code, str) and code.startswith("O"):
        raise UnsafeError(
            "pickle: an array of Python objects; reading it needs allow_pickle=True in code"
        )
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        raise DecodingError(f"pickle: {reprlib.repr(code)} is no type of array")
    return _Dtype(code)


def _structure(names: Any, fields: Any, itemsize: Any, flags: Any) -> np.dtype[Any]:
    """Return a dtype with named fields; numpy checks their offsets."""
    layout = [fields[name] for name in names]
    if sum(_count_fields(_dtype(entry[0])) for entry in layout) > _MAX_FIELDS:
        raise DecodingError(f"pickle: a type of array with more than {_MAX_FIELDS} fields")
    return np.dtype(
        {
            "names": list(names),
            "formats": [entry[0] for entry in layout],
            "offsets": [entry[1] for entry in layout],
            "titles": [entry[2] if len(entry) > 2 else None for entry in layout],
            "itemsize": itemsize,
            "aligned": bool(flags & 0x80),
        }
    )


def _count_fields(dtype: np.dtype[Any]) -> int:
    """Return the number of fields in a dtype, including nested ones."""
    if dtype.subdtype is not None:
        return _count_fields(dtype.subdtype[0])
    return sum(_count_fields(field[0]) for field in (dtype.fields or {}).values()) or 1


def _dtype(value: Any) -> np.dtype[Any]:
    if not isinstance(value, np.dtype):
        raise DecodingError(f"pickle: {type(value).__name__} in place of a type of array")
    return value


def _shape(shape: Any) -> tuple[int, ...]:
    shape = (shape,) if type(shape) is int else shape
    if not isinstance(shape, tuple) or len(shape) > 64:
        raise DecodingError("pickle: cannot understand a shape")
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise DecodingError(f"pickle: {reprlib.repr(shape)} is no shape")
    return shape


class _Array(Unfinished):
    """An array, before its state is set."""

    __slots__ = ()

    def finish(self, reader: PickleReader, state: Any) -> Array:
        _, shape, dtype, fortran, raw = state
        if isinstance(raw, (bytes, str)):
            reader.budget.charge(len(raw))
        return _array(reader, raw, dtype, shape, "F" if fortran else "C")


def _array(reader: PickleReader, raw: Any, dtype: Any, shape: Any, order: Any = "C") -> Array:
    """Replace ``numpy…_frombuffer(bytes, dtype, shape, order)``."""
    shape, dtype = _shape(shape), _dtype(dtype)
    if isinstance(raw, str):  # pickles of Python 2 hold bytes as text
        raw = raw.encode("latin1")
    if not isinstance(raw, (bytes, bytearray)):
        raise DecodingError("pickle: an array without its bytes")
    if dtype.itemsize * math.prod(shape) != len(raw) or not dtype.itemsize:
        raise DecodingError(f"pickle: {len(raw)} bytes are no {dtype} array of shape {shape}")
    flat = np.frombuffer(raw, dtype).copy()  # the caller may write into it
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _begin_array(reader: PickleReader, kind: Any, *_: Any) -> _Array:
    """Replace ``numpy…_reconstruct(ndarray, (0,), b"b")``."""
    if getattr(kind, "kind", None) is not np.ndarray:
        raise UnsafeError("pickle: only plain arrays are read; others need allow_pickle=True")
    return _Array()


def _scalar(reader: PickleReader, dtype: Any, raw: Any = b"") -> Any:
    """Replace ``numpy…scalar(dtype, bytes)``."""
    return _array(reader, raw, dtype, ())[()]


class Storage(Internal):
    """The bytes of which one or more tensors are views."""

    __slots__ = ("bytes", "dtype")

    def __init__(self, reader: PickleReader, kind: Any, count: Any) -> None:
        torch = _torch()
        name = getattr(kind, "kind", None)
        if not isinstance(name, str) or type(count) is not int or count < 0:
            raise DecodingError("pickle: cannot understand the storage of a tensor")
        self.dtype = getattr(torch, name)
        size = count * self.dtype.itemsize
        if size > reader.budget.size:
            raise DecodingError(f"pickle: {reader.budget.size} bytes hold no storage of {size}")
        reader.budget.charge(size)
        self.bytes: Any = torch.zeros(size, dtype=torch.uint8)

    def fill(self, raw: Any) -> None:
        """Copy the bytes. Raise DecodingError if their number differs from the announced one."""
        if len(raw) != len(self.bytes):
            raise DecodingError(f"pickle: {len(raw)} bytes for a storage of {len(self.bytes)}")
        self.bytes.numpy()[:] = np.frombuffer(raw, np.uint8)


def _tensor(
    reader: PickleReader,
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any = None,
    *more: Any,
) -> Any:
    """Replace ``torch._utils._rebuild_tensor_v2``, or v3, which has a dtype before the metadata."""
    torch = _torch()
    if not isinstance(storage, Storage):
        raise DecodingError("pickle: a tensor without its storage")
    dtype = more[0] if more and isinstance(more[0], torch.dtype) else storage.dtype
    if any(entry is not dtype and entry for entry in more):
        raise UnsafeError("pickle: a tensor that is not plain; needs allow_pickle=True in code")
    size, stride = _shape(size), _shape(stride)
    if len(size) != len(stride) or type(offset) is not int or offset < 0:
        raise DecodingError("pickle: cannot understand a tensor")
    count = math.prod(size)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    if count and (last + 1) * dtype.itemsize > len(storage.bytes):
        raise DecodingError(f"pickle: a tensor of size {size} beyond its storage")
    # With a stride of 0, a few bytes can be a tensor of any size.
    if count * dtype.itemsize > max(limits.MAX_DECODED_BYTES, reader.budget.size):
        raise limits.too_large("the tensor")
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(storage.bytes.untyped_storage(), offset, size, stride)
    return tensor.requires_grad_() if requires_grad is True else tensor


def _layout(reader: PickleReader, name: Any) -> Any:
    """Replace ``torch.serialization._get_layout("torch.sparse_coo")``."""
    if name not in ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc"):
        raise DecodingError("pickle: cannot understand the layout of a tensor")
    return getattr(_torch(), name.removeprefix("torch."))


def _sparse_tensor(reader: PickleReader, layout: Any, parts: Any) -> Any:
    """Replace ``torch._utils._rebuild_sparse_tensor``; torch checks the indices."""
    torch = _torch()
    if layout is torch.sparse_coo:
        *tensors, size, coalesced = parts if len(parts) == 4 else (*parts, False)
        options = {"is_coalesced": coalesced is True}
        make = torch.sparse_coo_tensor
    else:
        *tensors, size = parts
        make, options = torch.sparse_compressed_tensor, {"layout": layout}
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise DecodingError("pickle: a sparse tensor without its parts")
    return make(*tensors, _shape(size), check_invariants=True, **options)


def _parameter(reader: PickleReader, tensor: Any, requires_grad: Any, hooks: Any = None) -> Any:
    """Replace ``torch._utils._rebuild_parameter``."""
    torch = _torch()
    if not isinstance(tensor, torch.Tensor):
        raise DecodingError("pickle: a parameter without its tensor")
    return torch.nn.Parameter(tensor.detach(), bool(requires_grad))


def _size(reader: PickleReader, shape: Any) -> Any:
    return _torch().Size(_shape(shape))


def _device(reader: PickleReader, *arguments: Any) -> Any:
    return _torch().device(*arguments)


def _torch() -> Any:
    return optional("torch", "torch", "reading tensors")


NAMES: dict[tuple[str, str], Name] = {
    ("numpy", "ndarray"): Name(None, np.ndarray),
    ("numpy", "dtype"): Name(_begin_dtype),
    **{
        (f"{core}.{module}", name): Name(call)
        for core in ("numpy.core", "numpy._core")  # before and since numpy 2
        for module, name, call in (
            ("multiarray", "_reconstruct", _begin_array),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _array),
        )
    },
    ("torch", "Size"): Name(_size),
    ("torch", "device"): Name(_device),
    ("torch._utils", "_rebuild_tensor_v2"): Name(_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): Name(_tensor),
    ("torch._utils", "_rebuild_parameter"): Name(_parameter),
    ("torch._utils", "_rebuild_sparse_tensor"): Name(_sparse_tensor),
    ("torch.serialization", "_get_layout"): Name(_layout),
    ("torch.storage", "UntypedStorage"): Name(None, "uint8"),
    **{
        ("torch", f"{storage}Storage"): Name(None, dtype)
        for storage, dtype in {
            "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
            "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
            "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
        }.items()
    },
}  # fmt: skip


def find(module: str, name: str) -> Any:
    """Return the replacement of a name of numpy or torch, or None if it is unknown."""
    if module == "torch" and _TORCH_DTYPE.fullmatch(name):
        return getattr(_torch(), name, None)
    return NAMES.get((module, name))


def read_torch_file(data: bytes, find: Find) -> Any:
    """Read a file that ``torch.save`` wrote, on the CPU."""
    if data.startswith(b"PK"):
        return _read_zip(data, find)
    return _read_legacy(data, find, Budget(len(data)))


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # zipfile raises many types
        if ran_out(error):
            raise
        raise DecodingError(f"torch: a damaged archive: {error}") from error


def _read_zip(data: bytes, find: Find) -> Any:
    """Read a zip archive: ``NAME/data.pkl`` is the pickle, ``NAME/data/KEY`` its storages."""
    with _translate_errors(), zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > len(data) or any(
            member.compress_type != zipfile.ZIP_STORED for member in members
        ):
            raise DecodingError("torch: records that are compressed, or larger than the file")
        records = {member.filename.partition("/")[2]: member for member in members}
        if "data.pkl" not in records:
            raise DecodingError("torch: an archive without data.pkl: torch.save did not write it")
        if "byteorder" in records and archive.read(records["byteorder"]) != b"little":
            raise DecodingError("torch: a big-endian file is not supported")
        storages: dict[str, Storage] = {}

        def storage_of(reader: PickleReader, reference: Any) -> Storage:
            _, kind, key, _, count = reference
            if not isinstance(key, str):
                raise DecodingError("torch: cannot understand the storage of a tensor")
            if key not in storages:
                storages[key] = storage = Storage(reader, kind, count)
                storage.fill(archive.read(records[f"data/{key}"]))
            return storages[key]

        pickled = archive.read(records["data.pkl"])
        budget = Budget(len(data))
        return PickleReader(pickled, find, persistent=storage_of, budget=budget).load()


def read_storage(reader: PickleReader, raw: Any) -> Storage:
    """Replace ``torch.storage._load_from_bytes(bytes)``: the bytes are a torch file."""
    if not isinstance(raw, bytes):
        raise DecodingError("pickle: a tensor without its bytes")
    storage = _read_legacy(raw, _find_storage, reader.budget)
    if not isinstance(storage, Storage):
        raise DecodingError("pickle: cannot understand the storage of a tensor")
    return storage


def _find_storage(module: str, name: str) -> Name:
    found = NAMES.get((module, name))
    if found is None or not isinstance(found.kind, str):
        raise UnsafeError(f"pickle: '{module:.80}.{name:.80}' is no storage of a tensor")
    return found


def _read_legacy(data: bytes, find: Find, budget: Budget) -> Any:
    """Read the older format: five pickles, then for each storage a count and its numbers.

    The pickles are a magic number, a version, the system, the value, the list of storages.
    """
    storages: dict[str, Storage] = {}

    def storage_of(reader: PickleReader, reference: Any) -> Storage:
        _, kind, key, _, count, *view = reference
        if not isinstance(key, str) or any(view):
            raise DecodingError("torch: cannot understand the storage of a tensor")
        if key not in storages:
            storages[key] = Storage(reader, kind, count)
        return storages[key]

    at, found = 0, []
    for _ in range(5):
        reader = PickleReader(data, find, persistent=storage_of, budget=budget, at=at)
        found.append(reader.load())
        at = reader.at
    _, _, system, value, keys = found
    if type(keys) is not list or type(system) is not dict or not system.get("little_endian"):
        raise DecodingError("torch: cannot understand the file")
    for key in keys:
        storage = storages.pop(key, None) if type(key) is str else None
        if storage is None:
            raise DecodingError("torch: numbers that belong to no tensor")
        end = at + 8 + len(storage.bytes)
        if int.from_bytes(data[at : at + 8], "little") * storage.dtype.itemsize != end - at - 8:
            raise DecodingError("torch: cannot understand the size of a storage")
        storage.fill(memoryview(data)[at + 8 : end])
        at = end
    if storages:
        raise DecodingError("torch: a tensor without its numbers")
    return value
