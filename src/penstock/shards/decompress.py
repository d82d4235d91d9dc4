"""Compressed shards, recognised by their first bytes, never by their name.

A stream that ends before its compressed data does, or whose checksum is wrong, is an error
like any cut or damaged shard.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from penstock.errors import MissingPackage, Origin, ShardError
from penstock.shards.window import cut_short

FETCH_BYTES = 64 << 10
PIECE_BYTES = 8 << 10
"""What is decompressed at once: even a stream made to swell gives some 100 MB from that at most."""


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingPackage.of("reading .tar.zst", "zstandard", "compression") from None
    return zstandard.ZstdDecompressor().decompressobj()


def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError:
        raise MissingPackage.of("reading .tar.lz4", "lz4", "compression") from None
    return lz4.frame.LZ4FrameDecompressor()


MAGIC: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"\x28\xb5\x2f\xfd": _zstandard,
    b"\x04\x22\x4d\x18": _lz4,
}
"""First bytes → a decompressor of one frame: ``decompress``, ``eof``, ``unused_data``."""

MAGIC_BYTES = max(map(len, MAGIC))


def decompressor_for(start: bytes) -> Callable[[], Any] | None:
    """The decompressor for a stream with these first bytes, or None where it is not compressed.

    >>> decompressor_for(b"plain") is None
    True
    """
    for magic, make in MAGIC.items():
        if start.startswith(magic):
            return make
    return None


class Decompressed:
    """The plain bytes of a compressed stream: an object with ``read``.

    Several frames one after another are read as one, as ``cat a.gz b.gz`` makes them.
    """

    def __init__(self, stream: Any, start: bytes, make: Callable[[], Any], url: str) -> None:
        self._stream, self._pending, self._make, self._url = stream, start, make, url
        self._frame: Any = make()
        self._taken = len(start)
        self._plain, self._at = b"", 0

    def read(self, count: int) -> bytes:
        """Up to ``count`` bytes, at least one; b"" at the end."""
        while self._at >= len(self._plain):
            if self._frame.eof and not self._next_frame():
                return b""
            if not self._pending:
                self._pending = self._fetch()
            if not self._pending:
                raise cut_short(self._url, self._taken, "its compressed data")
            piece, self._pending = self._pending[:PIECE_BYTES], self._pending[PIECE_BYTES:]
            self._plain, self._at = self._decompress(piece), 0
        data = self._plain[self._at : self._at + count]
        self._at += len(data)
        return data

    def _fetch(self) -> bytes:
        data: bytes = self._stream.read(FETCH_BYTES)
        self._taken += len(data)
        return data

    def _decompress(self, data: bytes) -> bytes:
        try:
            plain: bytes = self._frame.decompress(data)
        except Exception as error:  # noqa: BLE001 - each library has its own class for damage
            raise ShardError(
                f"damaged compressed data: {error}", origin=Origin(self._url, offset=self._taken)
            ) from error
        return plain

    def _next_frame(self) -> bool:
        """Go on with the frame behind the one that ended; False at the end of the stream."""
        rest: bytes = (self._frame.unused_data or b"") + self._pending
        while len(rest) < MAGIC_BYTES and (more := self._fetch()):
            rest += more
        if not rest.strip(b"\0"):  # padding behind the last frame
            while more := self._fetch():
                if more.strip(b"\0"):
                    break
            else:
                return False
            rest = more.lstrip(b"\0")
        if decompressor_for(rest) is None:
            raise ShardError(
                "something follows the compressed data", origin=Origin(self._url, offset=self._taken)
            )
        self._frame, self._pending = self._make(), rest
        return True
