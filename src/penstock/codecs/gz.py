"""The ``.gz`` at the end of a field's name."""

from __future__ import annotations

import gzip
import zlib

from penstock.errors import DecodingError

MAX_DECODED_BYTES = 1 << 30
"""The most that one compressed field may unpack to: a few kilobytes can claim terabytes."""

_GZIP_WINDOW = 31  # zlib's way to say "with a gzip header"


def too_large(what: str) -> DecodingError:
    """The error for a field that unpacks to more than is allowed."""
    return DecodingError(
        f"{what} unpacks to more than {MAX_DECODED_BYTES} bytes;"
        " raise penstock.codecs.gz.MAX_DECODED_BYTES if that is meant"
    )


def gunzip(data: bytes) -> bytes:
    """The unpacked bytes of all members of a gzip stream, at most ``MAX_DECODED_BYTES``.

    A cut or damaged stream, or one that unpacks to more, is a DecodingError.

    >>> gunzip(gzip_bytes(b"hello"))
    b'hello'
    """
    if not data:
        return b""  # gzip's own module reads no members from no bytes
    parts: list[bytes] = []
    left = MAX_DECODED_BYTES
    while data:
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        try:
            part = unpacker.decompress(data, left + 1)
        except zlib.error as error:
            raise DecodingError(f"damaged gzip data: {error}") from error
        left -= len(part)
        if left < 0:
            raise too_large("the .gz field")
        if not unpacker.eof:
            raise DecodingError("the gzip data ends too early")
        parts.append(part)
        data = unpacker.unused_data.lstrip(b"\0")  # padding after a member is allowed
    return b"".join(parts)


def gzip_bytes(data: bytes) -> bytes:
    """The bytes as a gzip stream without a time in it: the same data gives the same bytes."""
    return gzip.compress(data, mtime=0)
