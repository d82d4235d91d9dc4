"""Read the bytes of a shard, a window at a time.

The reader parses a window of bytes and requests the next one; large payloads are read directly into
the ``bytes`` object that the user gets, with one copy. Files are read with ``pread``: a memory map
would be as fast, but if the file is truncated or a network file system fails, a map kills the
process with SIGBUS, while a read raises an error.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from penstock import limits
from penstock.errors import Origin, ShardError

WINDOW_BYTES = 256 << 10
"""Small enough for the CPU cache, large enough that the cost of a read per sample is negligible."""
WIDE_BYTES = 1 << 20
"""The window of files while samples are tiny and are parsed in bulk."""
NARROW_BYTES = 4 << 10
"""The window while payloads are large: they are read separately, the window is for headers only."""
LARGE_BYTES = 32 << 10
ANNOUNCED_BYTES = 8 << 20
PIECE_BYTES = 16 << 20
"""A stream's payload is read in pieces, so that a wrong header cannot allocate much memory."""
CHECK_BYTES = 64 << 20
"""Bytes of a file between two checks whether it was written to."""


def keep_heap_warm() -> None:
    """Make the C library keep a few megabytes of freed memory instead of returning them at once.

    glibc returns the top of the heap to the system when 256 KiB are free there, so every photograph
    is read into pages that must be faulted in again: two thirds of the time, as measured. glibc
    raises its limits when a larger block is freed, so this function frees one. A larger block
    would cost memory: each thread may keep twice as much.
    """
    bytes(1 << 20)


class UnpackLimitError(ShardError):
    """A compressed shard unpacks to more than ``limits.MAX_DECODED_BYTES`` without a sample."""


class Window(Protocol):
    """What the reader needs of a shard's bytes."""

    compressed: bool
    member_end: int
    """Of a compressed shard: where the last member ends that may belong to a sample."""

    def more(self, rest: bytes, offset: int, large: bool) -> bytes:
        """Return a window that begins with ``rest``, whose first byte is at ``offset``."""

    def extend(self, got: bytes, offset: int) -> bytes:
        """Return the window with more bytes after it; unchanged at the end of the shard."""

    def payload(self, buffer: bytes, start: int, offset: int, size: int) -> bytes:
        """Return ``size`` bytes at ``offset``, the first of which are ``buffer[start:]``."""

    def skip(self, known: int, offset: int, size: int) -> None:
        """Skip ``size`` bytes at ``offset``, the first ``known`` of which were read."""


def cut_short(url: str, offset: int, what: str) -> ShardError:
    """Return the error for a shard that ends inside a header or member."""
    return ShardError(
        f"the shard ends inside {what}: it was cut short, or its writer did not finish",
        origin=Origin(url, offset=offset),
    )


def overwritten(url: str, offset: int | None = None) -> ShardError:
    """Return the error for a shard that was written to while it was read."""
    return ShardError(
        "the shard was written to while it was read, so samples may be made of old and new bytes: "
        "write new shards under another name and rename them into place",
        origin=Origin(url, offset=offset),
    )


class FileWindow:
    """A regular file, by ``pread``."""

    compressed, member_end = False, 0

    def __init__(self, descriptor: int, url: str) -> None:
        self.descriptor = descriptor
        self.url = url
        status = os.fstat(descriptor)
        self.size_bytes, self.written_ns = status.st_size, status.st_mtime_ns
        self.window_bytes = WINDOW_BYTES
        self._announced = 0
        self._check_at = CHECK_BYTES
        keep_heap_warm()

    def announce(self, offset: int) -> None:
        """Advise the system to prefetch: payloads from there on are skipped now and read soon."""
        if offset + ANNOUNCED_BYTES // 2 > self._announced and hasattr(os, "posix_fadvise"):
            begin = max(self._announced, offset)
            self._announced = begin + ANNOUNCED_BYTES
            os.posix_fadvise(self.descriptor, begin, ANNOUNCED_BYTES, os.POSIX_FADV_WILLNEED)

    def check_unchanged(self, offset: int | None = None) -> None:
        """Raise ShardError if the file was written to since it was opened."""
        status = os.fstat(self.descriptor)
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.written_ns):
            raise overwritten(self.url, offset)

    def more(self, rest: bytes, offset: int, large: bool) -> bytes:
        if offset >= self._check_at:
            self._check_at = offset + CHECK_BYTES
            self.check_unchanged(offset)
        return os.pread(self.descriptor, NARROW_BYTES if large else self.window_bytes, offset)

    def extend(self, got: bytes, offset: int) -> bytes:
        return got + os.pread(self.descriptor, WINDOW_BYTES, offset + len(got))

    def payload(self, buffer: bytes, start: int, offset: int, size: int) -> bytes:
        self.skip(0, offset, size)
        data = os.pread(self.descriptor, size, offset)
        while len(data) < size:  # Linux returns at most 2 GiB per call
            piece = os.pread(self.descriptor, size - len(data), offset + len(data))
            if not piece:
                raise cut_short(self.url, offset + len(data), "a member's data")
            data += piece
        return data

    def skip(self, known: int, offset: int, size: int) -> None:
        # Also before a payload: the header's size is checked before memory is allocated.
        if offset + size > self.size_bytes:
            raise cut_short(self.url, self.size_bytes, "a member's data")


class StreamWindow:
    """Anything with ``read``: a pipe, a decompressor, a socket.

    A few bytes of a ``compressed`` stream may expand to any number, so there a member that is read,
    and bytes that belong to no sample, may be no more than ``limits.MAX_DECODED_BYTES``.
    """

    member_end = 0

    def __init__(self, stream: Any, url: str, compressed: bool = False) -> None:
        self.read = stream.read
        self.url, self.compressed = url, compressed
        keep_heap_warm()

    def more(self, rest: bytes, offset: int, large: bool) -> bytes:
        self._check_progress(offset)
        return rest + self._read_some(NARROW_BYTES if large else WINDOW_BYTES)

    def extend(self, got: bytes, offset: int) -> bytes:
        self._check_progress(offset)
        return got + self._read_some(WINDOW_BYTES)

    def _check_progress(self, offset: int) -> None:
        """Raise ShardError if too many bytes have no member of a sample."""
        if self.compressed and offset - self.member_end > limits.MAX_DECODED_BYTES:
            raise UnpackLimitError(
                f"more than {limits.MAX_DECODED_BYTES:,} bytes of a compressed shard belong to no "
                f"sample: {limits.HOW_TO_RAISE}",
                origin=Origin(self.url, offset=self.member_end),
            )

    def _read_some(self, count: int) -> bytes:
        """Read at least one byte, or return b"" at the end of the stream."""
        data: bytes = self.read(count)
        return data

    def payload(self, buffer: bytes, start: int, offset: int, size: int) -> bytes:
        self.check_size(offset, size)
        pieces, got = [buffer[start:]], len(buffer) - start
        while got < size:
            piece = self._read_some(min(size - got, PIECE_BYTES))
            if not piece:
                raise cut_short(self.url, offset + got, "a member's data")
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def check_size(self, offset: int, size: int) -> None:
        """Raise UnpackLimitError if a member is too large to be read."""
        if self.compressed and size > limits.MAX_DECODED_BYTES:
            raise UnpackLimitError(
                f"a member of {size:,} bytes in a compressed shard, where at most"
                f" {limits.MAX_DECODED_BYTES:,} are unpacked: {limits.HOW_TO_RAISE}",
                origin=Origin(self.url, offset=offset),
            )

    def skip(self, known: int, offset: int, size: int) -> None:
        while known < size:
            self._check_progress(offset + known)
            piece = self._read_some(min(size - known, WINDOW_BYTES))
            if not piece:
                raise cut_short(self.url, offset + known, "a member's data")
            known += len(piece)


class RangeWindow:
    """A remote object, by range requests: for single samples, where read-ahead would be wasted."""

    compressed, member_end = False, 0

    def __init__(self, stream: Any, url: str) -> None:
        self.read_range = stream.read_range
        self.url = url

    def more(self, rest: bytes, offset: int, large: bool) -> bytes:
        return rest or self._at(offset, NARROW_BYTES if large else WINDOW_BYTES)

    def extend(self, got: bytes, offset: int) -> bytes:
        return got + self._at(offset + len(got), WINDOW_BYTES)

    def _at(self, offset: int, length: int) -> bytes:
        data: bytes = self.read_range(offset, length)
        return data

    def payload(self, buffer: bytes, start: int, offset: int, size: int) -> bytes:
        known = buffer[start:]
        data = known + self._at(offset + len(known), size - len(known))
        if len(data) < size:
            raise cut_short(self.url, offset + len(data), "a member's data")
        return data

    def skip(self, known: int, offset: int, size: int) -> None:
        if size and len(self._at(offset + size - 1, 1)) == 0:
            raise cut_short(self.url, offset, "a member's data")
