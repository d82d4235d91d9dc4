"""Choose the compression of a shard, and compress its stream."""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import Any

from penstock.errors import PipelineError, optional


class Lz4:
    """A compressor of lz4 frames with the interface of the others: ``compress`` and ``flush``."""

    def __init__(self) -> None:
        frame = optional("lz4.frame", "compression", "writing .tar.lz4")
        self._frame = frame.LZ4FrameCompressor()
        self._begin: bytes = self._frame.begin()

    def compress(self, data: bytes) -> bytes:
        begin, self._begin = self._begin, b""
        packed: bytes = self._frame.compress(data)
        return begin + packed

    def flush(self) -> bytes:
        rest: bytes = self._frame.flush()
        return self._begin + rest


def _zstandard() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.ZstdCompressor()
    zstandard = optional("zstandard", "compression", "writing .tar.zst")
    return zstandard.ZstdCompressor().compressobj()


COMPRESSORS: dict[str, Callable[[], Any]] = {
    "gz": lambda: zlib.compressobj(wbits=31),  # its header has neither a timestamp nor a name
    "bz2": bz2.BZ2Compressor,
    "xz": lzma.LZMACompressor,
    "zst": _zstandard,
    "lz4": Lz4,
}
"""Kind → an object with ``compress`` and ``flush``."""

ENDINGS = {
    **{".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".tbz2": "bz2", ".xz": "xz", ".txz": "xz"},
    **{".zst": "zst", ".tzst": "zst", ".lz4": "lz4"},
}


def compression_of(name: str, compress: bool | str | None = None) -> str | None:
    """Return the kind of compression, or None for a plain tar. Raise PipelineError if unknown.

    ``compress=None`` decides by the end of the name, True means gzip, False means none.

    >>> compression_of("a.tar.gz"), compression_of("a.tar"), compression_of("a.tar.gz", False)
    ('gz', None, None)
    """
    if compress is None:
        ending = name[name.rfind(".") :].lower() if "." in name else ""
        return ENDINGS.get(ending)
    if isinstance(compress, bool):
        return "gz" if compress else None
    if compress not in COMPRESSORS:
        known = ", ".join(map(repr, COMPRESSORS))
        raise PipelineError(
            f"compress= is one of {known}, True (gz), False (none) or None (by the shard's name), "
            f"not {compress!r}"
        )
    return compress


class Compressing:
    """Compresses bytes with one of ``COMPRESSORS`` and passes them on; ``finish`` ends it."""

    def __init__(self, write: Callable[[bytes], Any], packer: Any) -> None:
        self._send, self._packer = write, packer

    def write(self, data: bytes) -> None:
        packed = self._packer.compress(data)
        if packed:
            self._send(packed)

    def finish(self) -> None:
        self._send(self._packer.flush())
