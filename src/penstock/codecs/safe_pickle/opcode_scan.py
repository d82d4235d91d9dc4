"""A walk over a pickle's opcodes, before anything is made, that holds its claims against its size.

Python's unpickler takes memory for what an opcode announces: a byte string of so many
bytes, a memo with so many places. Five bytes can so ask for sixty gigabytes. The walk also
notices where values are used again, which can make keys that take for ever to hash.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import DecodingError

_SPECIAL = -1
_MAX_TUPLES = 30_000  # so many in each other can still be hashed; a few more end the process
_MAX_SHARED = 6  # each can double what is hashed

_TUPLES = (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
_NAMED_PUTS = (pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT)
_NAMED_GETS = (pickle.BINGET, pickle.LONG_BINGET)


class Walk(NamedTuple):
    """What a walk over a pickle found."""

    end: int
    """Where the pickle ends."""
    tangled: bool
    """Values with parts are used again, or tuples may be nested, so much that hashing may cost."""


def _fixed_sizes() -> list[int]:
    """For each opcode the bytes of its argument, or ``_SPECIAL`` where that takes a look."""
    sizes = [_SPECIAL] * 256
    for opcode in pickletools.opcodes:
        size = 0 if opcode.arg is None else opcode.arg.n
        if size >= 0:
            sizes[ord(opcode.code)] = size
    for code in (*_TUPLES, *_NAMED_PUTS, *_NAMED_GETS, pickle.STOP, pickle.DUP):
        sizes[code[0]] = _SPECIAL
    return sizes


_SIZES = _fixed_sizes()
_PREFIXES: dict[int, int] = {  # opcodes whose argument begins with its length, in so many bytes
    ord(opcode.code): {
        pickletools.TAKEN_FROM_ARGUMENT1: 1,
        pickletools.TAKEN_FROM_ARGUMENT4: 4,
        pickletools.TAKEN_FROM_ARGUMENT4U: 4,
        pickletools.TAKEN_FROM_ARGUMENT8U: 8,
    }[opcode.arg.n]
    for opcode in pickletools.opcodes
    if opcode.arg is not None and opcode.arg.n < pickletools.UP_TO_NEWLINE
}
_LINES: dict[int, int] = {  # opcodes whose argument is text, in so many lines
    ord(opcode.code): 2 if opcode.arg.name == "stringnl_noescape_pair" else 1
    for opcode in pickletools.opcodes
    if opcode.arg is not None and opcode.arg.n == pickletools.UP_TO_NEWLINE
}
_SIMPLE = frozenset(  # opcodes that leave a value without parts on the stack, quick to hash
    ord(opcode.code)
    for opcode in pickletools.opcodes
    if opcode.stack_before == []
    and opcode.stack_after
    and opcode.stack_after[0].name.startswith(("int", "bool", "float", "str", "bytes", "None"))
    and opcode.name not in ("INT", "LONG", "LONG4")
) | {pickle.EMPTY_TUPLE[0], pickle.GLOBAL[0], pickle.STACK_GLOBAL[0]}
_STOP, _DUP, _PUT, _GET = pickle.STOP[0], pickle.DUP[0], pickle.PUT[0], pickle.GET[0]
_MEMOIZE, _BINPUT, _LONG_BINPUT = (code[0] for code in _NAMED_PUTS)
_BINGET, _LONG_BINGET = (code[0] for code in _NAMED_GETS)
_REDUCE = pickle.REDUCE[0]
_OF_DTYPE = b"".join((pickle.NEWFALSE, pickle.NEWTRUE, pickle.TUPLE3, pickle.MEMOIZE))
"""The end of numpy.dtype's arguments: many arrays share their type, and it can be no key."""
_TUPLE_CODES = frozenset(code[0] for code in _TUPLES)


def end_of_pickle(data: bytes, start: int = 0) -> int:
    """Where the pickle that begins at ``start`` ends; a DecodingError if it cannot be honest.

    >>> import pickle
    >>> end_of_pickle(pickle.dumps([1, 2]) + b"more") == len(pickle.dumps([1, 2]))
    True
    """
    return walk(data, start).end


def walk(data: bytes, start: int = 0) -> Walk:
    """The walk over the pickle that begins at ``start``; a DecodingError if it lies."""
    at, size, sizes = start, len(data), _SIZES
    simple: dict[int, bool] = {}  # for each place of the memo: is its value one without parts?
    tuples = shared = code = 0
    while at < size:
        before, code = code, data[at]
        step = sizes[code]
        at += 1
        if step >= 0:
            at += step
        elif code == _MEMOIZE:
            simple[len(simple)] = before in _SIMPLE or (
                before == _REDUCE and data.endswith(_OF_DTYPE, start, at - 2)
            )
        elif code in _TUPLE_CODES:
            tuples += 1
        elif code == _STOP:
            return Walk(at, tuples > _MAX_TUPLES or shared > _MAX_SHARED)
        elif code == _DUP:
            shared += 1
        else:
            begin, at = at, _argument(data, code, at)
            if code in _PLACES:
                place = _PLACES[code](data[begin:at])
                if code in _PUTS:
                    _check_memo(data, place)
                    simple[place] = before in _SIMPLE
                elif not simple.get(place):
                    shared += 1
    raise DecodingError("pickle: the data ends too early")


def _argument(data: bytes, code: int, at: int) -> int:
    """The end of an argument whose size stands in the data."""
    if code in _PREFIXES:
        width = _PREFIXES[code]
        at += width
        length = int.from_bytes(data[at - width : at], "little")
        if length > len(data) - at:
            raise DecodingError(f"pickle: {length} bytes are announced, {len(data) - at} are there")
        return at + length
    if code in _LINES:
        for _ in range(_LINES[code]):
            at = data.find(b"\n", at) + 1
            if not at:
                raise DecodingError("pickle: the data ends too early")
        return at
    if code in _PLACES:
        return at + (1 if code in (_BINPUT, _BINGET) else 4)
    raise DecodingError(f"pickle: {bytes([code])!r} at byte {at - 1} is no opcode")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


_PLACES: dict[int, Callable[[bytes], int]] = {  # opcodes that name a place of the memo, and how
    _PUT: int, _GET: int, _BINPUT: _little, _LONG_BINPUT: _little, _BINGET: _little,
    _LONG_BINGET: _little,
}  # fmt: skip
_PUTS = frozenset((_PUT, _BINPUT, _LONG_BINPUT))


def _check_memo(data: bytes, index: int) -> None:
    # Places are numbered from 0 in the order they are used, and each takes an opcode.
    if not 0 <= index <= len(data):
        raise DecodingError(f"pickle: place {index} of the memo in a pickle of {len(data)} bytes")
