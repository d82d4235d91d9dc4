"""Pickles and torch files that cannot run code.

A pickle is a program: it names functions and calls them. The unpickler here knows the names that
plain Python values, numpy arrays and torch tensors are pickled with, and stands its own careful
functions in their place; any other name is an UnsafeError. With ``allow_pickle=True`` in code
(:class:`~penstock.codecs.decoder.Decoder`) Python's own unpickler takes over.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
import re
import uuid
import zipfile
from collections.abc import Callable
from typing import Any

from penstock import env
from penstock.codecs.safe_pickle import array_stubs as arrays
from penstock.codecs.safe_pickle.opcode_scan import walk
from penstock.codecs.safe_pickle.pickle_hashing import CountingUnpickler
from penstock.errors import DecodingError, MissingPackage, UnsafeError

_PROTOCOL = 4  # fixed, so that the same sample gives the same bytes under every Python


def unpickle_loads(data: bytes) -> Any:
    """The value in a pickle of plain values, arrays and tensors; anything else is an UnsafeError.

    >>> unpickle_loads(pickle_dumps({"box": (1, 2.5), "names": {"a"}}))
    {'box': (1, 2.5), 'names': {'a'}}
    >>> unpickle_loads(pickle_dumps(print))
    Traceback (most recent call last):
    penstock.errors.UnsafeError: pickle: 'builtins.print' is no plain value, array or tensor; ...
    """
    try:
        reader = CarefulUnpickler(data) if walk(data).tangled else PlainUnpickler(data)
        return reader.value()
    except RecursionError as error:
        raise DecodingError("pickle: values are nested too deep") from error


def unpickle_any(data: bytes) -> Any:
    """The value in any pickle: whoever wrote it can run any code here."""
    _refuse_when_secure()
    return pickle.loads(data)


def pickle_dumps(value: Any) -> bytes:
    """The value as a pickle."""
    return pickle.dumps(value, _PROTOCOL)


def torch_loads(data: bytes) -> Any:
    """The tensors and plain values of a torch file, on the CPU; torch refuses all else."""
    return _torch_load(data, weights_only=True)


def torch_any(data: bytes) -> Any:
    """The value of any torch file: whoever wrote it can run any code here.

    The variable ``WDS_PYTORCH_WEIGHTS_ONLY=1`` still keeps it to tensors and plain values.
    """
    _refuse_when_secure()
    return _torch_load(data, weights_only=env.flag("WDS_PYTORCH_WEIGHTS_ONLY"))


def torch_dumps(value: Any) -> bytes:
    """The value as a torch file."""
    stream = io.BytesIO()
    _torch().save(value, stream)
    return stream.getvalue()


def _torch_load(data: bytes, weights_only: bool) -> Any:
    torch = _torch()
    stream = io.BytesIO(data)
    if data.startswith(b"PK"):
        # torch stores its records unpacked, but would unpack packed ones, of any size.
        with zipfile.ZipFile(stream) as archive:
            if sum(member.file_size for member in archive.infolist()) > len(data):
                raise DecodingError("torch: the records are larger than the file")
    stream.seek(0)
    try:
        return torch.load(stream, map_location="cpu", weights_only=weights_only)
    except pickle.UnpicklingError as error:
        if not weights_only:
            raise
        raise UnsafeError(
            f"torch: {str(error).splitlines()[0]} Reading more than tensors and plain values"
            " needs allow_pickle=True in code"
        ) from error


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackage.of("reading and writing .pth", "torch", "torch") from error
    return torch


def _refuse_when_secure() -> None:
    if env.flag("WDS_SECURE"):
        raise UnsafeError("pickles of any kind are refused while the variable WDS_SECURE is set")


class Maker:
    """Stands for a function or class that a pickle names: it can be called, and nothing else."""

    __slots__ = ("factory", "make")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, make: Callable[..., Any], factory: type | None = None) -> None:
        self.make, self.factory = make, factory

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)

    def __setstate__(self, state: Any) -> None:
        # Without this a pickle could set attributes on us, and on every later pickle's way.
        raise UnsafeError("pickle: a state is set where there is none")


def _of(kind: type, *admitted: type) -> Maker:
    """Makes ``kind`` from nothing, or from one argument of an admitted type."""

    def make(*arguments: Any) -> Any:
        if len(arguments) > 1 or not all(type(argument) in admitted for argument in arguments):
            raise DecodingError(f"pickle: cannot make a {kind.__name__} of that")
        return kind(*arguments)

    return Maker(make, kind)


def _latin1(text: Any, encoding: Any = "latin1") -> bytes:
    """``_codecs.encode(text, "latin1")``: bytes, in the older protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DecodingError("pickle: cannot make bytes of that")
    return text.encode("latin1")


def _bytearray(*arguments: Any) -> bytearray:
    if len(arguments) == 2:
        arguments = (_latin1(*arguments),)
    if len(arguments) > 1 or not all(type(argument) is bytes for argument in arguments):
        raise DecodingError("pickle: cannot make a bytearray of that")
    return bytearray(*arguments)


def _numbers(kind: Callable[..., Any]) -> Maker:
    """Makes ``kind`` from numbers and None."""

    def make(*arguments: Any) -> Any:
        if not all(type(argument) in (int, float, type(None)) for argument in arguments):
            raise DecodingError(f"pickle: cannot make a {getattr(kind, '__name__', kind)} of that")
        return kind(*arguments)

    return Maker(make)


def _defaultdict(factory: Any = None) -> Any:
    kind = getattr(factory, "factory", None)
    if factory is not None and kind is None:
        raise DecodingError("pickle: cannot make a defaultdict of that")
    return collections.defaultdict(kind)


def _deque(items: Any = (), maxlen: Any = None) -> Any:
    if not isinstance(items, (list, tuple)):
        raise DecodingError("pickle: cannot make a deque of that")
    return collections.deque(items, maxlen)


def _fraction(*arguments: Any) -> fractions.Fraction:
    # Fraction("1e999999999") would take all memory; a pickle writes digits and a slash.
    text = arguments[0] if len(arguments) == 1 else ""
    if isinstance(text, str) and re.fullmatch(r"-?\d+(/\d+)?", text):
        return fractions.Fraction(text)
    if arguments and all(type(number) is int for number in arguments):
        return fractions.Fraction(*arguments)
    raise DecodingError("pickle: cannot make a Fraction of that")


def _path(*parts: Any) -> pathlib.PurePosixPath:
    if not all(isinstance(part, str) for part in parts):
        raise DecodingError("pickle: cannot make a path of that")
    return pathlib.PurePosixPath(*parts)


class _Uuid:
    """Pickles make a UUID with ``__new__``, so this must be a class."""

    def __new__(cls) -> Any:
        return object.__new__(uuid.UUID)

    @staticmethod
    def __setstate__(state: Any) -> None:
        raise UnsafeError("pickle: a state is set where there is none")


def _admitted() -> dict[tuple[str, str], Any]:
    """(module, name) → what stands in its place."""
    pairs = (list, tuple)
    table: dict[tuple[str, str], Any] = {
        ("_codecs", "encode"): Maker(_latin1),
        ("collections", "OrderedDict"): _of(collections.OrderedDict, *pairs),
        ("collections", "defaultdict"): Maker(_defaultdict),
        ("collections", "deque"): Maker(_deque),
        ("collections", "Counter"): _of(collections.Counter, dict),
        ("datetime", "datetime"): Maker(datetime.datetime),
        ("datetime", "date"): Maker(datetime.date),
        ("datetime", "time"): Maker(datetime.time),
        ("datetime", "timedelta"): _numbers(datetime.timedelta),
        ("datetime", "timezone"): Maker(datetime.timezone),
        ("decimal", "Decimal"): _of(decimal.Decimal, str),
        ("fractions", "Fraction"): Maker(_fraction),
        ("uuid", "UUID"): _Uuid,
        ("numpy", "ndarray"): arrays.ndarray,
        ("numpy", "dtype"): Maker(arrays.Dtype),
        ("torch", "Size"): Maker(arrays.torch_size),
        ("torch.storage", "_load_from_bytes"): Maker(arrays.Storage),
        ("torch._utils", "_rebuild_tensor_v2"): Maker(arrays.Tensor),
        ("torch._utils", "_rebuild_parameter"): Maker(arrays.Parameter),
    }
    for module in ("builtins", "__builtin__"):
        for container in (set, frozenset, list, tuple):
            table[module, container.__name__] = _of(container, *pairs)
        for kind in (dict, int, float, bool, str, bytes):
            table[module, kind.__name__] = _of(kind)
        table[module, "bytearray"] = Maker(_bytearray, bytearray)
        table[module, "complex"] = _numbers(complex)
        table[module, "slice"] = _numbers(slice)
        table[module, "range"] = table[module, "xrange"] = _numbers(range)
    for module in ("pathlib", "pathlib._local"):
        table[module, "PurePosixPath"] = table[module, "PosixPath"] = Maker(_path)
    for core in ("numpy.core", "numpy._core"):  # before and since numpy 2
        table[f"{core}.multiarray", "_reconstruct"] = Maker(arrays.reconstruct)
        table[f"{core}.multiarray", "scalar"] = Maker(arrays.scalar)
        table[f"{core}.numeric", "_frombuffer"] = Maker(arrays.from_buffer)
    return table


ADMITTED = _admitted()


class _Plain:
    """Reads one pickle whose every name is in ``ADMITTED``."""

    asked = False
    load: Callable[[], Any]

    def find_class(self, module: str, name: str) -> Any:
        self.asked = True
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise UnsafeError(
                f"pickle: '{module}.{name}' is no plain value, array or tensor;"
                " reading it needs allow_pickle=True in code"
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafeError("pickle: a reference to something outside of the pickle")

    def value(self) -> Any:
        """The value, with every description replaced by what it stands for."""
        value = self.load()
        return _replaced(value, {}) if self.asked else value


class PlainUnpickler(_Plain, pickle.Unpickler):
    """For pickles that the walk found harmless: Python's quick unpickler."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


class CarefulUnpickler(_Plain, CountingUnpickler):
    """For pickles that use values again and again: several times slower, counts before hashing."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), len(data))


def _replaced(value: Any, seen: dict[int, Any]) -> Any:
    """The value with real arrays and tensors; what is shared stays shared, also in a circle."""
    if isinstance(value, arrays.Description):
        return value.made()
    if isinstance(value, (Maker, arrays._Marker)) or value is _Uuid:
        raise UnsafeError("pickle: a function or class is no plain value")
    if not isinstance(value, (list, dict, tuple, collections.deque)):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = value
    if isinstance(value, tuple):
        items = tuple(_replaced(item, seen) for item in value)
        if any(new is not old for new, old in zip(items, value)):
            seen[id(value)] = items
            return items
        return value
    for place in value if isinstance(value, dict) else range(len(value)):
        value[place] = _replaced(value[place], seen)
    return value
