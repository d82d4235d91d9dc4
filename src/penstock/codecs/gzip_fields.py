"""Decompress and compress fields whose name ends in ``.gz``."""

from __future__ import annotations

import gzip
import io
import zlib

from penstock import limits
from penstock.errors import DecodingError

_GZIP_WINDOW = 31  # zlib's code for "with a gzip header"
_STEP = 1 << 18


def gunzip(data: bytes) -> bytes:
    """Decompress all members of a gzip stream, up to ``limits.MAX_DECODED_BYTES``.

    Raise DecodingError for a truncated or damaged stream, or a larger result.

    >>> gunzip(gzip_bytes(b"hello"))
    b'hello'
    """
    # A BytesIO returns its bytes without a copy: joining parts would need twice the memory.
    unpacked = io.BytesIO()
    left, at = limits.MAX_DECODED_BYTES, 0
    while at < len(data):
        at = _unpack_member(data, at, unpacked, left)
        left = limits.MAX_DECODED_BYTES - unpacked.tell()
        if data.startswith(b"\0", at):  # padding after a member is allowed
            at = len(data) - len(data[at:].lstrip(b"\0"))
    return unpacked.getvalue()


def _unpack_member(data: bytes, at: int, unpacked: io.BytesIO, left: int) -> int:
    """Unpack the member that begins at ``at``, in small steps. Return the offset of its end."""
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    while not unpacker.eof:
        piece = unpacker.unconsumed_tail
        if not piece:
            piece = data[at : at + _STEP]
            at += len(piece)
        try:
            part = unpacker.decompress(piece, min(_STEP, left + 1))
        except zlib.error as error:
            raise DecodingError(f"damaged gzip data: {error}") from error
        left -= len(part)
        if left < 0:
            raise limits.too_large("the .gz field")
        if not piece and not part:
            raise DecodingError("the gzip data ends too early")
        unpacked.write(part)
    return at - len(unpacker.unused_data)


def gzip_bytes(data: bytes) -> bytes:
    """Compress bytes to a gzip stream without a timestamp, so that the result is reproducible."""
    return gzip.compress(data, mtime=0)
