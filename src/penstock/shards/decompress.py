"""Decompress shards, which are recognised by their first bytes, never by their name.

A stream that ends before its compressed data does, or whose checksum is wrong, raises ShardError
like any truncated or damaged shard.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any

from penstock import limits
from penstock.errors import Origin, ShardError, optional
from penstock.shards.byte_windows import cut_short

FETCH_BYTES = 64 << 10
PIECE_BYTES = 2 << 10
"""Input per call if the output cannot be bounded: it expands to at most 64 MB."""
PLAIN_BYTES = 1 << 20
"""Output per call if it can be bounded."""


def _zstandard() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdDecompressor()
    zstandard = optional("zstandard", "compression", "reading .tar.zst")
    return zstandard.ZstdDecompressor().decompressobj()


def _lz4() -> Any:
    return optional("lz4.frame", "compression", "reading .tar.lz4").LZ4FrameDecompressor()


class Skippable:
    """A frame of zstd or lz4 without data, such as a seek table."""

    def __init__(self) -> None:
        self._head, self.eof, self.unused_data = b"", False, b""
        self._left = -1

    def decompress(self, data: bytes) -> bytes:
        if self._left < 0:
            data, self._head = self._head + data, b""
            if len(data) < 8:
                self._head = data
                return b""
            self._left, data = int.from_bytes(data[4:8], "little"), data[8:]
        self.unused_data = data[self._left :]
        self._left -= min(self._left, len(data))
        self.eof = self._left == 0
        return b""


def _xz_memory() -> int:
    """Return the limit on the dictionary, whose size the stream claims; ``xz -9`` needs 65 MB."""
    return max(limits.MAX_DECODED_BYTES, 128 << 20)


MAGIC: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lambda: lzma.LZMADecompressor(memlimit=_xz_memory()),
    b"\x28\xb5\x2f\xfd": _zstandard,
    b"\x04\x22\x4d\x18": _lz4,
    **{bytes([0x50 + n]) + b"\x2a\x4d\x18": Skippable for n in range(16)},
}
"""First bytes → a decompressor of one frame: ``decompress``, ``eof``, ``unused_data``."""

MAGIC_BYTES = max(map(len, MAGIC))


def decompressor_for(start: bytes) -> Callable[[], Any] | None:
    """Return the decompressor for a stream with these first bytes, or None for a plain one.

    >>> decompressor_for(b"plain") is None
    True
    """
    for magic, make in MAGIC.items():
        if start.startswith(magic):
            return make
    return None


class Decompressed:
    """The decompressed bytes of a stream: an object with ``read``.

    Several consecutive frames are read as one, as after ``cat a.gz b.gz``.
    """

    def __init__(self, stream: Any, start: bytes, make: Callable[[], Any], url: str) -> None:
        self._stream, self._pending, self._url = stream, start, url
        self.magic = start[:MAGIC_BYTES]
        self._frame: Any = make()
        self._taken = len(start)
        self._used = 0  # of the pending bytes
        self._plain, self._at = b"", 0

    def read(self, count: int) -> bytes:
        """Return up to ``count`` bytes, at least one; b"" at the end."""
        while self._at >= len(self._plain):
            if self._frame.eof and not self._next_frame():
                return b""
            self._plain, self._at = self._more(), 0
        data = self._plain[self._at : self._at + count]
        self._at += len(data)
        return data

    def _fetch(self) -> bytes:
        data: bytes = self._stream.read(FETCH_BYTES)
        self._taken += len(data)
        return data

    def _more(self) -> bytes:
        """Return the next decompressed piece, which may be empty."""
        bounded = hasattr(self._frame, "needs_input")
        if bounded and not self._frame.needs_input:
            return self._decompress(b"", PLAIN_BYTES)
        if self._used >= len(self._pending):
            self._pending, self._used = self._fetch(), 0
            if not self._pending:
                raise cut_short(self._url, self._taken, "its compressed data")
        start = self._used
        self._used = len(self._pending) if bounded else start + PIECE_BYTES
        return self._decompress(self._pending[start : self._used], *[PLAIN_BYTES] * bounded)

    def _decompress(self, data: bytes, *most: int) -> bytes:
        try:
            plain: bytes = self._frame.decompress(data, *most)
        except MemoryError:
            raise
        except Exception as error:  # each library raises other types
            raise ShardError(
                f"damaged compressed data: {error}", origin=Origin(self._url, offset=self._taken)
            ) from error
        return plain

    def _next_frame(self) -> bool:
        """Continue with the next frame. Return False at the end of the stream."""
        rest: bytes = (self._frame.unused_data or b"") + self._pending[self._used :]
        rest = rest.lstrip(b"\0")
        while len(rest) < MAGIC_BYTES and (more := self._fetch()):
            rest = (rest + more).lstrip(b"\0")  # padding
        if not rest:
            return False
        make = decompressor_for(rest)
        if make is None:
            raise ShardError(
                "other data follows the compressed data",
                origin=Origin(self._url, offset=self._taken),
            )
        self._frame, self._pending, self._used = make(), rest, 0
        return True
