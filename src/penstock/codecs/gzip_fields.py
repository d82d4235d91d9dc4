"""The ``.gz`` at the end of a field's name."""

from __future__ import annotations

import gzip
import io
import zlib

from penstock.errors import DecodingError

MAX_DECODED_BYTES = 1 << 28
"""The most that one compressed field may unpack to: a few kilobytes can claim terabytes."""

_GZIP_WINDOW = 31  # zlib's way to say "with a gzip header"
_STEP = 1 << 18


def too_large(what: str) -> DecodingError:
    """The error for a field that unpacks to more than is allowed."""
    return DecodingError(
        f"{what} unpacks to more than {MAX_DECODED_BYTES} bytes;"
        " raise penstock.codecs.gzip_fields.MAX_DECODED_BYTES if that is meant"
    )


def gunzip(data: bytes) -> bytes:
    """The unpacked bytes of all members of a gzip stream, at most ``MAX_DECODED_BYTES``.

    A cut or damaged stream, or one that unpacks to more, is a DecodingError.

    >>> gunzip(gzip_bytes(b"hello"))
    b'hello'
    """
    # A BytesIO hands its bytes over without a copy: joined parts would take the memory twice.
    unpacked = io.BytesIO()
    left, at = MAX_DECODED_BYTES, 0
    while at < len(data):
        at = _unpack_member(data, at, unpacked, left)
        left = MAX_DECODED_BYTES - unpacked.tell()
        if data.startswith(b"\0", at):  # padding after a member is allowed
            at = len(data) - len(data[at:].lstrip(b"\0"))
    return unpacked.getvalue()


def _unpack_member(data: bytes, at: int, unpacked: io.BytesIO, left: int) -> int:
    """Unpack the member that begins at ``at``, in small steps; gives where it ends."""
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
            raise too_large("the .gz field")
        if not piece and not part:
            raise DecodingError("the gzip data ends too early")
        unpacked.write(part)
    return at - len(unpacker.unused_data)


def gzip_bytes(data: bytes) -> bytes:
    """The bytes as a gzip stream without a time in it: the same data gives the same bytes."""
    return gzip.compress(data, mtime=0)
