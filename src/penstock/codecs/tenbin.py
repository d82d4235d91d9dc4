"""The ``.ten`` format: the memory of several arrays, one after the other.

::

    file    chunk*                      two chunks per array: its header, its data
    chunk   "~TenBin~"  length  payload  zeros up to a multiple of 64 bytes of payload
    header  type  info  rank  shape…    each eight bytes: text padded with zeros, or an int64

All numbers are little-endian. Types are ``f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8``; ``info`` is up to
eight bytes of ASCII with a note about the array; rank is below 10.
Decoded arrays are read-only views of the bytes.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from penstock.errors import DecodingError, WriteError

Array = np.ndarray[Any, np.dtype[Any]]
Infos = bool | Sequence[str]

magic_str = "~TenBin~"
magic_bytes = magic_str.encode("ascii")
magic = int.from_bytes(magic_bytes, "little")

short_to_long = {
    f"{kind}{size}": f"{name}{size * 8}"
    for kind, name, sizes in (
        ("f", "float", (2, 4, 8)),
        ("i", "int", (1, 2, 4, 8)),
        ("u", "uint", (1, 2, 4, 8)),
    )
    for size in sizes
}
long_to_short = {name: tag for tag, name in short_to_long.items()}

_MAX_RANK = 9
_WORD = 8


def str64(text: str) -> int:
    """Return up to eight ASCII characters as one number.

    >>> unstr64(str64("f4"))
    'f4'
    """
    data = text.encode("ascii")
    if len(data) > _WORD:
        raise WriteError(f"tenbin: an info is at most eight characters, not {text!r}")
    return int.from_bytes(data, "little")


def unstr64(number: int) -> str:
    """Return the characters of a number made by ``str64``."""
    data = (int(number) & 0xFFFFFFFFFFFFFFFF).to_bytes(_WORD, "little").rstrip(b"\0")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise DecodingError(f"tenbin: {data!r} is not ASCII text") from error


def roundup(n: int, k: int = 64) -> int:
    """Round up to a multiple of ``k``.

    >>> roundup(65)
    128
    """
    return (n + k - 1) // k * k


def bytelen(a: Any) -> int:
    """Return the number of bytes of an array or buffer."""
    return memoryview(a).nbytes


def bytedata(a: Any) -> memoryview:
    """Return the bytes of an array or buffer, without a copy if it is contiguous."""
    if isinstance(a, np.ndarray):
        a = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    return memoryview(a).cast("B")


def check_acceptable_input_type(data: Sequence[Any], allow64: bool) -> None:
    """Raise WriteError unless every array has a supported dtype (64 bits only if allowed)."""
    for array in data:
        name = array.dtype.name
        if name not in long_to_short:
            raise WriteError(f"tenbin: no type for {name} arrays: use {' '.join(long_to_short)}")
        if not allow64 and array.dtype.itemsize == 8 and name != "int64":
            raise WriteError(f"tenbin: {name} arrays need allow64=True")


def check_infos(data: Any, infos: Sequence[str], required_infos: Infos | None = None) -> Any:
    """Return ``data``, or ``(data, infos)`` if ``required_infos`` is True.

    Raise DecodingError if ``required_infos`` is a list that differs from ``infos``.
    """
    if required_infos is None or required_infos is False:
        return data
    if required_infos is True:
        return data, infos
    if list(required_infos) != list(infos):
        raise DecodingError(f"tenbin: the infos are {list(infos)}, not {required_infos}")
    return data


def encode_header(a: Array, info: str = "") -> bytes:
    """Return the header of an array: type, info, rank, shape."""
    if a.ndim > _MAX_RANK:
        raise WriteError(f"tenbin: an array has at most {_MAX_RANK} dimensions, not {a.ndim}")
    check_acceptable_input_type([a], allow64=True)
    words = (str64(long_to_short[a.dtype.name]), str64(info), a.ndim, *a.shape)
    return struct.pack(f"<2Q{a.ndim + 1}q", *words)


def decode_header(h: Any) -> tuple[tuple[int, ...], np.dtype[Any], str]:
    """Return the shape, dtype and info of a header. Raise DecodingError if it is invalid."""
    size = bytelen(h)
    if size % _WORD or not 3 * _WORD <= size <= (3 + _MAX_RANK) * _WORD:
        raise DecodingError(f"tenbin: {size} bytes are no array header")
    tag, info, rank, *shape = struct.unpack(f"<2Q{size // _WORD - 2}q", h)
    name = short_to_long.get(unstr64(tag))
    if name is None or rank != len(shape) or any(n < 0 for n in shape):
        raise DecodingError(
            f"tenbin: no array has type {unstr64(tag)!r}, rank {rank}, shape {shape}"
        )
    return tuple(shape), np.dtype(name).newbyteorder("<"), unstr64(info)


def encode_list(l: Sequence[Any], infos: Sequence[str] | None = None) -> list[Any]:  # noqa: E741
    """Return the header and data of every array, in turn."""
    if not isinstance(l, (list, tuple)):
        raise WriteError(f"tenbin: a list of arrays is needed, not {type(l).__name__}")
    arrays = [np.asarray(array) for array in l]
    infos = [""] * len(arrays) if infos is None else infos
    if len(infos) != len(arrays):
        raise WriteError(f"tenbin: {len(infos)} infos for {len(arrays)} arrays")
    parts: list[Any] = []
    for array, info in zip(arrays, infos):
        parts.append(encode_header(array, info))
        parts.append(bytedata(array.astype(array.dtype.newbyteorder("<"), copy=False)))
    return parts


def decode_list(l: Sequence[Any], infos: Infos = False) -> Any:  # noqa: E741
    """Return the arrays (and infos) from headers and data in turn, without copying the data."""
    if len(l) % 2:
        raise DecodingError("tenbin: the data of the last array is missing")
    arrays, found = [], []
    for header, data in zip(l[::2], l[1::2]):
        shape, dtype, info = decode_header(header)
        if math.prod(shape) * dtype.itemsize != bytelen(data):
            raise DecodingError(
                f"tenbin: {bytelen(data)} bytes are no {dtype} array of shape {shape}"
            )
        arrays.append(np.frombuffer(data, dtype).reshape(shape))
        found.append(info)
    return check_infos(arrays, found, infos)


def encode_chunks(l: Sequence[Any]) -> bytes:  # noqa: E741
    """Return the buffers as one: each after magic and length, and padded."""
    parts: list[Any] = []
    for buf in map(bytedata, l):
        parts += (magic_bytes, struct.pack("<q", len(buf)), buf, bytes(-len(buf) % 64))
    return b"".join(parts)


def decode_chunks(buf: Any) -> list[memoryview]:
    """Return the payloads of all chunks as views. Raise DecodingError for an invalid chunk."""
    view = memoryview(buf).cast("B").toreadonly()
    chunks: list[memoryview] = []
    at = 0
    while at < len(view):
        if view[at : at + _WORD] != magic_bytes or len(view) < at + 2 * _WORD:
            raise DecodingError(f"tenbin: no chunk begins at byte {at}")
        (size,) = struct.unpack_from("<q", view, at + _WORD)
        at += 2 * _WORD
        if not 0 <= size <= len(view) - at:
            raise DecodingError(f"tenbin: a chunk claims {size} bytes, not {len(view) - at}")
        chunks.append(view[at : at + size])
        at += roundup(size)
    return chunks


def encode_buffer(l: Sequence[Any], infos: Sequence[str] | None = None) -> bytes:  # noqa: E741
    """Return the arrays as the bytes of a ``.ten`` file.

    >>> [array.tolist() for array in decode_buffer(encode_buffer([np.arange(3)]))]
    [[0, 1, 2]]
    """
    return encode_chunks(encode_list(l, infos))


def decode_buffer(buf: Any, infos: Infos = False) -> Any:
    """Return the arrays in the bytes of a ``.ten`` file; with ``infos=True`` also their infos."""
    return decode_list(decode_chunks(buf), infos)


def write_chunk(stream: BinaryIO, buf: Any) -> None:
    """Write one buffer as a chunk."""
    stream.write(encode_chunks([buf]))


def read_chunk(stream: BinaryIO) -> bytes | None:
    """Return the payload of the next chunk, or None at the end of the stream."""
    head = stream.read(2 * _WORD)
    if not head:
        return None
    if len(head) < 2 * _WORD or not head.startswith(magic_bytes):
        raise DecodingError("tenbin: no chunk begins here")
    (size,) = struct.unpack_from("<q", head, _WORD)
    payload = b"".join(_read_pieces(stream, roundup(size))) if size >= 0 else b""
    if size < 0 or len(payload) < size:
        raise DecodingError(f"tenbin: a chunk claims {size} bytes, not {len(payload)}")
    return payload[:size]


def _read_pieces(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield up to ``size`` bytes in pieces, because the stream's claimed size may be wrong."""
    while size > 0 and (piece := stream.read(min(size, 1 << 24))):
        size -= len(piece)
        yield piece


def write(stream: BinaryIO, l: Sequence[Any], infos: Sequence[str] | None = None) -> None:  # noqa: E741
    """Write arrays to a stream."""
    stream.write(encode_buffer(l, infos))


def read(stream: BinaryIO, n: int = (1 << 63) - 1, infos: Infos = False) -> Any:
    """Read up to ``n`` arrays from a stream."""
    chunks: list[bytes] = []
    while len(chunks) < 2 * n and (chunk := read_chunk(stream)) is not None:
        chunks.append(chunk)
    return decode_list(chunks, infos)


def _check_name(fname: str | os.PathLike[str], nocheck: bool) -> None:
    if not nocheck and Path(fname).suffix not in (".ten", ".tb"):
        raise WriteError(f"tenbin: {os.fspath(fname)!r} does not end in .ten: use nocheck=True")


def save(
    fname: str | os.PathLike[str],
    *args: Any,
    infos: Sequence[str] | None = None,
    nocheck: bool = False,
) -> None:
    """Write arrays to a ``.ten`` file."""
    _check_name(fname, nocheck)
    Path(fname).write_bytes(encode_buffer(args, infos))


def load(fname: str | os.PathLike[str], infos: Infos = False, nocheck: bool = False) -> Any:
    """Read the arrays of a ``.ten`` file."""
    _check_name(fname, nocheck)
    return decode_buffer(Path(fname).read_bytes(), infos)
