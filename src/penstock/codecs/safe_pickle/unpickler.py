"""Pickles and torch files of plain values, arrays and tensors.

:mod:`~penstock.codecs.safe_pickle.interpreter` executes the opcodes; the table here lists the names
that it accepts. ``allow_pickle=True`` in code (:class:`~penstock.codecs.decoder.Decoder`) selects
Python's own unpickler and ``torch.load`` instead.
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
from collections.abc import Callable
from typing import Any

from penstock import env
from penstock.codecs.safe_pickle.interpreter import Internal, Name, PickleReader, Unfinished
from penstock.errors import DecodingError, UnsafeError, optional

_PROTOCOL = 4  # fixed, so that a sample has the same bytes under every Python version
_MAX_FRACTION = 2000  # digits: reducing a fraction takes time quadratic in them


def unpickle_loads(data: bytes) -> Any:
    """Read a pickle of plain values, arrays and tensors. Raise UnsafeError for anything else.

    >>> unpickle_loads(pickle_dumps({"box": (1, 2.5), "names": {"a"}}))
    {'box': (1, 2.5), 'names': {'a'}}
    >>> unpickle_loads(pickle_dumps(print))
    Traceback (most recent call last):
    penstock.errors.UnsafeError: pickle: 'builtins.print' is no plain value, array or tensor; ...
    """
    return PickleReader(data, find).load()


def decode_pickle(data: bytes) -> Any:
    """Decode a field with a pickle, unless ``WDS_SECURE`` or ``utils.enforce_security`` is set."""
    _refuse_when_secure("Unpickling")
    return unpickle_loads(data)


def decode_torch_file(data: bytes) -> Any:
    """Decode a field with a torch file, under the same condition as :func:`decode_pickle`."""
    _refuse_when_secure("torch.loads")
    return torch_loads(data)


def unpickle_any(data: bytes) -> Any:
    """Read any pickle. The pickle can run arbitrary code."""
    _refuse_when_secure("Unpickling")
    return pickle.loads(data)


def pickle_dumps(value: Any) -> bytes:
    """Return the value as a pickle."""
    return pickle.dumps(value, _PROTOCOL)


def torch_loads(data: bytes) -> Any:
    """Read tensors, arrays and plain values from a torch file, on the CPU; refuse all else."""
    from penstock.codecs.safe_pickle.arrays import read_torch_file

    value = read_torch_file(data, find)
    if isinstance(value, Internal):
        raise UnsafeError("torch: a storage without a tensor; needs allow_pickle=True in code")
    return value


def torch_any(data: bytes) -> Any:
    """Read any torch file. The file can run arbitrary code.

    ``WDS_PYTORCH_WEIGHTS_ONLY=1`` still restricts it to tensors and plain values.
    """
    _refuse_when_secure("torch.loads")
    if env.flag("WDS_PYTORCH_WEIGHTS_ONLY"):
        return torch_loads(data)
    return _torch().load(io.BytesIO(data), map_location="cpu", weights_only=False)


def torch_dumps(value: Any) -> bytes:
    """Return the value as a torch file."""
    stream = io.BytesIO()
    _torch().save(value, stream)
    return stream.getvalue()


def _torch() -> Any:
    return optional("torch", "torch", "reading and writing .pth")


def _refuse_when_secure(what: str) -> None:
    if env.flag("WDS_SECURE"):
        raise UnsafeError(
            f"{what} is not allowed for security reasons when enforce_security is set, by"
            " WDS_SECURE or in code"
        )


def find(module: str, name: str) -> Any:
    """Return what replaces a name in a pickle. Raise UnsafeError for an unknown name."""
    found = NAMES.get((module, name))
    if found is None and module.startswith(("numpy", "torch")):
        from penstock.codecs.safe_pickle import arrays  # imports numpy

        found = arrays.find(module, name)
    if found is None:
        raise UnsafeError(
            f"pickle: '{module:.80}.{name:.80}' is no plain value, array or tensor;"
            " reading it needs allow_pickle=True in code"
        )
    return found


def _accept_one(kind: type, *admitted: type) -> Name:
    """Return a Name that makes ``kind`` from no argument, or from one of an admitted type."""

    def make(reader: PickleReader, *arguments: Any) -> Any:
        if len(arguments) > 1 or not all(type(argument) in admitted for argument in arguments):
            raise DecodingError(f"pickle: cannot make a {kind.__name__} of that")
        return kind(*arguments)

    return Name(make, kind)


def _accept_keys(kind: type, keys_of: Callable[[Any], Any] = list) -> Name:
    """Return a Name that makes ``kind``, which hashes its keys, from at most one list or tuple."""

    def make(reader: PickleReader, items: Any = ()) -> Any:
        if type(items) not in (list, tuple):
            raise DecodingError(f"pickle: cannot make a {kind.__name__} of that")
        reader.admit(keys_of(items))
        return kind(items)

    return Name(make, kind)


def _accept_numbers(kind: Callable[..., Any]) -> Name:
    """Return a Name that makes ``kind`` from floats, None and integers of up to 64 bits."""

    def make(reader: PickleReader, *arguments: Any) -> Any:
        for number in arguments:
            if type(number) not in (int, float, type(None)):
                raise DecodingError(f"pickle: {type(number).__name__} in place of a number")
            if type(number) is int and number.bit_length() > 64:
                raise DecodingError("pickle: a number of more than 64 bits")
        return kind(*arguments)

    return Name(make)


def _latin1(reader: PickleReader, text: Any, encoding: Any = "latin1") -> bytes:
    """Replace ``_codecs.encode(text, "latin1")``, which older protocols use for bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise DecodingError("pickle: cannot make bytes of that")
    return text.encode("latin1")


def _bytearray(reader: PickleReader, *arguments: Any) -> bytearray:
    if len(arguments) == 2:
        arguments = (_latin1(reader, *arguments),)
    if len(arguments) > 1 or not all(type(argument) is bytes for argument in arguments):
        raise DecodingError("pickle: cannot make a bytearray of that")
    return bytearray(*arguments)


def _defaultdict(reader: PickleReader, factory: Any = None) -> Any:
    kind = factory.kind if type(factory) is Name else None
    if factory is not None and not isinstance(kind, type):
        raise DecodingError("pickle: cannot make a defaultdict of that")
    return reader.watch(collections.defaultdict(kind))


def _deque(reader: PickleReader, items: Any = (), maxlen: Any = None) -> Any:
    if type(items) not in (list, tuple):
        raise DecodingError("pickle: cannot make a deque of that")
    return reader.watch(collections.deque(items, maxlen))


def _fraction(reader: PickleReader, *arguments: Any) -> fractions.Fraction:
    # Fraction("1e999999999") would exhaust memory; a pickle contains only digits and a slash.
    text = arguments[0] if type(arguments[0]) is str else "/".join(map(_digits, arguments))
    if len(text) > 2 * _MAX_FRACTION or not re.fullmatch(r"-?\d+(/\d+)?", text):
        raise DecodingError("pickle: cannot make a Fraction of that")
    reader.budget.charge(len(text) ** 2 >> 10)
    return fractions.Fraction(text)


def _digits(number: Any) -> str:
    if type(number) is not int or number.bit_length() > 3 * _MAX_FRACTION:
        raise DecodingError("pickle: cannot make a Fraction of that")
    return str(number)


def _path(reader: PickleReader, *parts: Any) -> pathlib.PurePosixPath:
    if not all(isinstance(part, str) for part in parts):
        raise DecodingError("pickle: cannot make a path of that")
    return pathlib.PurePosixPath(*parts)


class _Uuid(Unfinished):
    """A UUID, which a pickle creates empty and then sets by its state."""

    __slots__ = ()

    def finish(self, reader: PickleReader, state: Any) -> uuid.UUID:
        if type(state["int"]) is not int:
            raise DecodingError("pickle: cannot make a UUID of that")
        return uuid.UUID(int=state["int"])


def _begin_uuid(reader: PickleReader) -> _Uuid:
    return _Uuid()


def _reconstruct(reader: PickleReader, kind: Any, *_: Any) -> _Uuid:
    """Replace ``copyreg._reconstructor``, which the oldest protocols use to create objects."""
    if type(kind) is not Name or kind.call is not _begin_uuid:
        raise UnsafeError("pickle: an object that is no plain value")
    return _Uuid()


def _storage(reader: PickleReader, raw: Any) -> Any:
    """Replace ``torch.storage._load_from_bytes``: read a storage from a nested torch file."""
    from penstock.codecs.safe_pickle.arrays import read_storage

    return read_storage(reader, raw)


def _accept_any(make: Callable[..., Any]) -> Name:
    return Name(lambda reader, *arguments: make(*arguments))


def _make_names() -> dict[tuple[str, str], Name]:
    """Return the table from (module, name) to its replacement."""
    table = {
        ("_codecs", "encode"): Name(_latin1),
        ("collections", "OrderedDict"): _accept_keys(
            collections.OrderedDict, lambda pairs: [key for key, _ in pairs]
        ),
        ("collections", "defaultdict"): Name(_defaultdict),
        ("collections", "deque"): Name(_deque),
        ("collections", "Counter"): _accept_one(collections.Counter, dict),
        ("datetime", "datetime"): _accept_any(datetime.datetime),
        ("datetime", "date"): _accept_any(datetime.date),
        ("datetime", "time"): _accept_any(datetime.time),
        ("datetime", "timedelta"): _accept_numbers(datetime.timedelta),
        ("datetime", "timezone"): _accept_any(datetime.timezone),
        ("decimal", "Decimal"): _accept_one(decimal.Decimal, str),
        ("fractions", "Fraction"): Name(_fraction),
        ("uuid", "UUID"): Name(_begin_uuid),
        ("torch.storage", "_load_from_bytes"): Name(_storage),
    }
    for module in ("builtins", "__builtin__"):
        table[module, "list"] = _accept_one(list, list, tuple)
        table[module, "tuple"] = _accept_one(tuple, list, tuple)
        table[module, "set"] = _accept_keys(set)
        table[module, "frozenset"] = _accept_keys(frozenset)
        for kind in (dict, int, float, bool, str, bytes):
            table[module, kind.__name__] = _accept_one(kind)
        table[module, "bytearray"] = Name(_bytearray, bytearray)
        table[module, "complex"] = _accept_numbers(complex)
        table[module, "slice"] = _accept_numbers(slice)
        table[module, "range"] = table[module, "xrange"] = _accept_numbers(range)
        table[module, "object"] = Name(None)
    for module in ("copyreg", "copy_reg"):
        table[module, "_reconstructor"] = Name(_reconstruct)
    for module in ("pathlib", "pathlib._local"):
        table[module, "PurePosixPath"] = table[module, "PosixPath"] = Name(_path)
    return table


NAMES = _make_names()
