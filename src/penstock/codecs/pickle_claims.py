"""A walk over a pickle's opcodes, before anything is made, that holds its claims against its size.

Python's unpickler takes memory for what an opcode announces: a byte string of so many
bytes, a memo with so many places. Five bytes can so ask for sixty gigabytes.
"""

from __future__ import annotations

import pickle
import pickletools

from penstock.errors import DecodingError

_SPECIAL = -1


def _fixed_sizes() -> list[int]:
    """For each opcode the bytes of its argument, or ``_SPECIAL`` where that takes a look."""
    sizes = [_SPECIAL] * 256
    for opcode in pickletools.opcodes:
        size = 0 if opcode.arg is None else opcode.arg.n
        if size >= 0:
            sizes[ord(opcode.code)] = size
    for code in (pickle.STOP, pickle.LONG_BINPUT):
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
_STOP, _PUT, _LONG_BINPUT = pickle.STOP[0], pickle.PUT[0], pickle.LONG_BINPUT[0]


def end_of_pickle(data: bytes, start: int = 0) -> int:
    """Where the pickle that begins at ``start`` ends; a DecodingError if it cannot be honest.

    >>> import pickle
    >>> end_of_pickle(pickle.dumps([1, 2]) + b"more") == len(pickle.dumps([1, 2]))
    True
    """
    at, size, sizes = start, len(data), _SIZES
    while at < size:
        code = data[at]
        step = sizes[code]
        at += 1
        if step >= 0:
            at += step
        elif code == _STOP:
            return at
        else:
            at = _argument(data, code, at)
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
        begin = at
        for _ in range(_LINES[code]):
            at = data.find(b"\n", at) + 1
            if not at:
                raise DecodingError("pickle: the data ends too early")
        if code == _PUT:
            _check_memo(data, int(data[begin:at]))
        return at
    if code == _LONG_BINPUT:
        _check_memo(data, int.from_bytes(data[at : at + 4], "little"))
        return at + 4
    raise DecodingError(f"pickle: {bytes([code])!r} at byte {at - 1} is no opcode")


def _check_memo(data: bytes, index: int) -> None:
    # Places are numbered from 0 in the order they are used, and each takes an opcode.
    if not 0 <= index <= len(data):
        raise DecodingError(f"pickle: place {index} of the memo in a pickle of {len(data)} bytes")
