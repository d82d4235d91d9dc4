"""Descriptions of the arrays and tensors in a pickle.

While a pickle is read, whoever wrote it decides what is called and what is set on what. So it
only ever gets descriptions into its hands: objects that remember what they were told and do
nothing. Real arrays and tensors are made from them afterwards, when sizes, types and
strides have been held against the bytes that are there.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import reprlib
from typing import Any

import numpy as np

from penstock.codecs.safe_pickle.opcode_scan import walk
from penstock.errors import DecodingError, MissingPackage, UnsafeError

Array = np.ndarray[Any, np.dtype[Any]]

_CODE = re.compile(r"[biufcSUVMm?]\d{0,9}")
_MAX_PARTS = 10_000  # types in types grow twice as large with each step
_UNIT = re.compile(r"[A-Za-z]{1,7}")


class Description:
    """Something that will become a value once the pickle has been read."""

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]  # never a key: it is about to be replaced
    value: Any

    def made(self) -> Any:
        """The value, always the same one, so that what was shared stays shared."""
        if not hasattr(self, "value"):
            self.value = self.make()
        return self.value

    def make(self) -> Any:
        raise NotImplementedError

    def __setstate__(self, state: Any) -> None:
        raise UnsafeError("pickle: a state is set where there is none")


class Dtype(Description):
    """``numpy.dtype(code, align, copy)`` and the state that follows it."""

    __slots__ = ("code", "state")

    def __init__(self, code: Any, align: Any = False, copy: Any = True) -> None:
        self.code: Any = code
        self.state: Any = (3, "|", None, None, None, -1, -1, 0)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def make(self) -> np.dtype[Any]:
        if isinstance(self.code, str) and self.code.startswith("O"):
            raise UnsafeError(
                "pickle: an array of Python objects; reading it needs allow_pickle=True in code"
            )
        if not isinstance(self.code, str) or not _CODE.fullmatch(self.code):
            raise DecodingError(f"pickle: {_shown(self.code)} is no type of array")
        if not isinstance(self.state, tuple) or len(self.state) not in (8, 9):
            raise DecodingError("pickle: cannot understand the type of an array")
        _, order, subarray, names, fields, itemsize, _, flags = self.state[:8]
        if subarray is not None:
            base, shape = subarray
            return np.dtype((made(base, np.dtype), _shape(shape)))
        if names is not None:
            return _structure(names, fields, itemsize, flags)
        if order not in ("<", ">", "|", "="):
            raise DecodingError(f"pickle: {_shown(order)} is no byte order")
        code = self.code
        if code in ("M8", "m8") and len(self.state) == 9:
            unit, count = self.state[8][1][:2]
            unit = unit.decode("ascii")
            if type(count) is not int or not _UNIT.fullmatch(unit):
                raise DecodingError("pickle: cannot understand the unit of a time")
            code += "" if unit == "generic" else f"[{count}{unit}]"
        dtype: np.dtype[Any] = np.dtype(code)
        return dtype.newbyteorder(order)


def _structure(names: Any, fields: Any, itemsize: Any, flags: Any) -> np.dtype[Any]:
    """A type with named fields; numpy checks that they lie inside it."""
    layout = [fields[name] for name in names]
    if sum(_parts(made(entry[0], np.dtype)) for entry in layout) > _MAX_PARTS:
        raise DecodingError(f"pickle: a type of array with more than {_MAX_PARTS} fields")
    return np.dtype(
        {
            "names": list(names),
            "formats": [made(entry[0], np.dtype) for entry in layout],
            "offsets": [entry[1] for entry in layout],
            "titles": [entry[2] if len(entry) > 2 else None for entry in layout],
            "itemsize": itemsize,
            "aligned": bool(flags & 0x80),
        }
    )


def _parts(dtype: np.dtype[Any]) -> int:
    """The number of fields in a type, with those inside its fields."""
    if dtype.subdtype is not None:
        return _parts(dtype.subdtype[0])
    return sum(_parts(field[0]) for field in (dtype.fields or {}).values()) or 1


class NdArray(Description):
    """An array: made empty and then given a state, or made from a buffer."""

    __slots__ = ("state",)

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def make(self) -> Array:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise DecodingError("pickle: cannot understand an array")
        _, shape, dtype, fortran, raw = self.state
        shape, dtype = _shape(shape), made(dtype, np.dtype)
        if isinstance(raw, str):  # pickles of Python 2 hold bytes as text
            raw = raw.encode("latin1")
        if not isinstance(raw, (bytes, bytearray)):
            raise DecodingError("pickle: an array without its bytes")
        if dtype.itemsize * math.prod(shape) != len(raw) or not dtype.itemsize:
            raise DecodingError(f"pickle: {len(raw)} bytes are no {dtype} array of shape {shape}")
        flat = np.frombuffer(raw, dtype).copy()
        return flat.reshape(shape, order="F" if fortran else "C")


def reconstruct(kind: Any, shape: Any = None, code: Any = None) -> NdArray:
    """``numpy…_reconstruct(ndarray, (0,), b"b")``: an array whose state follows."""
    if kind is not ndarray:
        raise UnsafeError("pickle: only plain arrays are read; others need allow_pickle=True")
    return NdArray()


def from_buffer(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> NdArray:
    """``numpy…_frombuffer(bytes, dtype, shape, order)``."""
    return NdArray((1, shape, dtype, order == "F", raw))


def scalar(dtype: Any, raw: Any = b"") -> Any:
    """``numpy…scalar(dtype, bytes)``: one number of an array's type."""
    return NdArray((1, (), dtype, False, raw)).made()[()]


class _Marker:
    """Stands for a class that a pickle may name but not call."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __setstate__(self, state: Any) -> None:
        raise UnsafeError("pickle: a state is set where there is none")


ndarray = _Marker()


class Storage(Description):
    """``torch.storage._load_from_bytes(bytes)``: the numbers of one or more tensors."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def make(self) -> Any:
        """The numbers as a tensor with one dimension.

        The bytes are torch's older file format: five pickles (a magic number, a version, the
        system, a reference to the storage, the list of storages), then a count and the numbers.
        """
        torch = _torch()
        if not isinstance(self.raw, bytes):
            raise DecodingError("pickle: a tensor without its bytes")
        at, found = 0, None
        for turn in range(5):
            end, tangled = walk(self.raw, at)
            if turn == 3:
                if tangled:
                    raise DecodingError("pickle: cannot understand the storage of a tensor")
                found = _StorageReference(io.BytesIO(self.raw[at:end])).load()
            at = end
        if not isinstance(found, tuple) or len(found) < 5 or not isinstance(found[1], str):
            raise DecodingError("pickle: cannot understand the storage of a tensor")
        dtype, count = getattr(torch, found[1]), found[4]
        size = torch.empty(0, dtype=dtype).element_size()
        claimed = int.from_bytes(self.raw[at : at + 8], "little")
        if type(count) is not int or count != claimed or count * size != len(self.raw) - at - 8:
            raise DecodingError(f"pickle: a storage of {count} numbers in {len(self.raw)} bytes")
        if not count:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(bytearray(self.raw[at + 8 :]), dtype=dtype)


_STORAGE_TYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip


class _StorageReference(pickle.Unpickler):
    """Reads ``("storage", type, key, place, count, …)``, with the name of a dtype as the type."""

    def find_class(self, module: str, name: str) -> Any:
        if module != "torch" or name not in _STORAGE_TYPES:
            raise UnsafeError(f"pickle: '{module}.{name}' is no storage of a tensor")
        return _STORAGE_TYPES[name]

    def persistent_load(self, pid: Any) -> Any:
        return pid


class Tensor(Description):
    """``torch._utils._rebuild_tensor_v2(storage, offset, size, stride, …)``."""

    __slots__ = ("arguments",)

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def make(self) -> Any:
        storage, offset, size, stride, requires_grad, _, *metadata = self.arguments
        if any(metadata):
            raise UnsafeError("pickle: a tensor that is not plain; needs allow_pickle=True in code")
        numbers = storage.made() if isinstance(storage, Storage) else None
        size, stride = _shape(size), _shape(stride)
        if numbers is None or len(size) != len(stride) or type(offset) is not int or offset < 0:
            raise DecodingError("pickle: cannot understand a tensor")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride))
        if math.prod(size) and last >= numbers.numel():
            raise DecodingError(f"pickle: a tensor of size {size} beyond its storage")
        tensor = numbers.as_strided(size, stride, offset)
        return tensor.requires_grad_() if requires_grad is True else tensor


class Parameter(Description):
    """``torch._utils._rebuild_parameter(tensor, requires_grad, hooks)``."""

    __slots__ = ("requires_grad", "tensor")

    def __init__(self, tensor: Any, requires_grad: Any, hooks: Any = None) -> None:
        self.tensor, self.requires_grad = tensor, bool(requires_grad)

    def make(self) -> Any:
        if not isinstance(self.tensor, Tensor):
            raise DecodingError("pickle: a parameter without its tensor")
        return _torch().nn.Parameter(self.tensor.made().detach(), self.requires_grad)


def torch_size(shape: Any) -> Any:
    """``torch.Size(shape)``."""
    return _torch().Size(_shape(shape))


def _shown(value: Any) -> str:
    """The value in few words: written out, one that is nested in itself could fill memory."""
    return reprlib.repr(value)


def made(value: Any, kind: type) -> Any:
    """What the description stands for, which must be of the given kind."""
    result = value.made() if isinstance(value, Description) else value
    if not isinstance(result, kind):
        raise DecodingError(f"pickle: {type(result).__name__} where {kind.__name__} belongs")
    return result


def _shape(shape: Any) -> tuple[int, ...]:
    shape = (shape,) if type(shape) is int else shape
    if not isinstance(shape, tuple) or len(shape) > 64:
        raise DecodingError("pickle: cannot understand a shape")
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise DecodingError(f"pickle: {_shown(shape)} is no shape")
    return shape


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackage.of("decoding pickled tensors", "torch", "torch") from error
    return torch
