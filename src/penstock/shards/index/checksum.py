"""Write and verify the checksum in an index file: the CRC-32 of all its bytes.

It is stored in the Parquet metadata, so it is part of the bytes that it covers; its eight digits
count as zeros. The pages also have Parquet's own checksums, which other programs can verify; but
nothing in Parquet protects page headers and the footer.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from typing import Any

from penstock.errors import Origin, StaleIndexError
from penstock.shards.index.parquet_schema import arrow
from penstock.storage import WriteStream
from penstock.storage.streams import storage_error

KEY = b"penstock.checksum"
_MARK = b"penstock-file-crc32:"
_NO_DIGITS = b"00000000"
PLACEHOLDER = _MARK + _NO_DIGITS
"""The metadata's value under KEY until the checksum of the whole file is known."""

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the footer's length, and the magic bytes
_PIECE_BYTES = 1 << 20


class _Sink:
    """Passes bytes to a stream and sums them; it keeps those of the footer until ``finish``."""

    closed = False

    def __init__(self, stream: WriteStream) -> None:
        self._stream, self._crc32 = stream, 0
        self.footer: bytearray | None = None

    def write(self, data: Any) -> int:
        if self.footer is not None:
            self.footer += data
        else:
            self._crc32 = zlib.crc32(data, self._crc32)
            self._stream.write(data)
        return len(data)

    def finish(self) -> None:
        footer = bytes(self.footer or b"")
        at = footer.rindex(PLACEHOLDER) + len(_MARK)
        digits = b"%08x" % zlib.crc32(footer, self._crc32)
        self._stream.write(footer[:at] + digits + footer[at + len(digits) :])

    def flush(self) -> None:
        pass  # only the footer is buffered

    def close(self) -> None:
        pass  # the stream belongs to the caller


@contextlib.contextmanager
def parquet_writer(stream: WriteStream, schema: Any, **options: Any) -> Iterator[Any]:
    """Yield a Parquet writer for a file with checksums. The caller closes the stream."""
    pa = arrow()
    schema = schema.with_metadata({**(schema.metadata or {}), KEY: PLACEHOLDER})
    sink = _Sink(stream)
    options = {"compression": "zstd", "write_page_checksum": True, **options}
    with contextlib.closing(pa.parquet.ParquetWriter(sink, schema, **options)) as writer:
        yield writer
        sink.footer = bytearray()  # closing the writer writes it
    sink.finish()


def verify_checksum(path: str) -> str | None:
    """Read the file and return its checksum, or None if it has none.

    Raise StaleIndexError if the bytes have another checksum, StorageError if the file cannot be
    read.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _TAIL_BYTES, 0))
            tail = file.read()
            length = int.from_bytes(tail[:4], "little") + _TAIL_BYTES
            if tail[4:] != _MAGIC or length > size:
                return None  # not Parquet: the parser reports the error
            file.seek(size - length)
            footer = file.read()
            at = footer.rfind(_MARK) + len(_MARK)
            if at < len(_MARK):
                return None
            digits = footer[at : at + len(_NO_DIGITS)]
            file.seek(0)
            found = 0
            left = size - length
            while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
                found = zlib.crc32(piece, found)
                left -= len(piece)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error("cannot read the index", path, error) from error
    rest = footer[:at] + _NO_DIGITS + footer[at + len(digits) :]
    if b"%08x" % zlib.crc32(rest, found) != digits:
        raise StaleIndexError(
            "the index is damaged: its bytes do not have the checksum that it carries; "
            "run 'penstock index' over the shards again",
            origin=Origin(path),
        )
    return digits.decode()
