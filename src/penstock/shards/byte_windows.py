"""Bytes of a shard, a window at a time.

The reader looks at a window of bytes and asks for the next one; large payloads come straight
from the place into the ``bytes`` object that the user gets, copied once. Files are read
with ``pread``: a memory map would be as fast, but a file that is cut or a network file system
that fails under a map kills the process with SIGBUS, where a read gives an error.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from penstock.errors import Origin, ShardError

WINDOW_BYTES = 256 << 10
"""Small enough for the processor's cache, large enough that a read costs nothing per sample."""
WIDE_BYTES = 1 << 20
"""The window of files while samples are tiny, and are taken by the hundred."""
NARROW_BYTES = 4 << 10
"""The window while payloads are large: they are read by themselves, only headers come this way."""
LARGE_BYTES = 32 << 10
ANNOUNCED_BYTES = 8 << 20
PIECE_BYTES = 16 << 20
"""A stream's payload is taken in such pieces, so that a lying header cannot ask for memory."""


def keep_heap_warm() -> None:
    """Let the C library keep a few megabytes of freed memory instead of returning them at once.

    glibc gives the top of the heap back as soon as 256 KiB are free there, so every photograph
    is read into pages that must be faulted in anew: measured, that was two thirds of the time.
    glibc raises its limits by itself when a larger block is freed; this frees one. No larger than
    that: each thread may keep twice as much.
    """
    bytes(1 << 20)


class Window(Protocol):
    """What the reader needs of a place."""

    def more(self, rest: bytes, offset: int, large: bool) -> bytes:
        """A window that begins with ``rest``, whose first byte is at ``offset``."""

    def extend(self, got: bytes, offset: int) -> bytes:
        """The same window with more behind it; unchanged where the shard ends."""

    def payload(self, buffer: bytes, start: int, offset: int, size: int) -> bytes:
        """``size`` bytes at ``offset``, the first of which are ``buffer[start:]``."""

    def skip(self, known: int, offset: int, size: int) -> None:
        """Pass over ``size`` bytes at ``offset``, the first ``known`` of which were read."""


def cut_short(url: str, offset: int, what: str) -> ShardError:
    """The error for a shard that ends in the middle of something."""
    return ShardError(
        f"the shard ends inside {what}: it was cut short, or its writer did not finish",
        origin=Origin(url, offset=offset),
    )


class FileWindow:
    """A regular file, by ``pread``."""

    def __init__(self, descriptor: int, url: str) -> None:
        self.descriptor = descriptor
        self.url = url
        status = os.fstat(descriptor)
        self.size_bytes, self.written_ns = status.st_size, status.st_mtime_ns
        self.window_bytes = WINDOW_BYTES
        self._announced = 0
        keep_heap_warm()

    def announce(self, offset: int) -> None:
        """Payloads from there on are passed over now, and read soon: the system may fetch them."""
        if offset + ANNOUNCED_BYTES // 2 > self._announced and hasattr(os, "posix_fadvise"):
            begin = max(self._announced, offset)
            self._announced = begin + ANNOUNCED_BYTES
            os.posix_fadvise(self.descriptor, begin, ANNOUNCED_BYTES, os.POSIX_FADV_WILLNEED)

    def more(self, rest: bytes, offset: int, large: bool) -> bytes:
        return os.pread(self.descriptor, NARROW_BYTES if large else self.window_bytes, offset)

    def extend(self, got: bytes, offset: int) -> bytes:
        return got + os.pread(self.descriptor, WINDOW_BYTES, offset + len(got))

    def payload(self, buffer: bytes, start: int, offset: int, size: int) -> bytes:
        self.skip(0, offset, size)
        data = os.pread(self.descriptor, size, offset)
        while len(data) < size:  # Linux gives at most 2 GiB at once
            piece = os.pread(self.descriptor, size - len(data), offset + len(data))
            if not piece:
                raise cut_short(self.url, offset + len(data), "a member's data")
            data += piece
        return data

    def skip(self, known: int, offset: int, size: int) -> None:
        # Also before a payload: what the header says is checked before memory is taken.
        if offset + size > self.size_bytes:
            raise cut_short(self.url, self.size_bytes, "a member's data")


class StreamWindow:
    """Anything with ``read``: a pipe, a decompressor, a socket."""

    def __init__(self, stream: Any, url: str) -> None:
        self.read = stream.read
        self.url = url
        keep_heap_warm()

    def more(self, rest: bytes, offset: int, large: bool) -> bytes:
        return rest + self._some(NARROW_BYTES if large else WINDOW_BYTES)

    def extend(self, got: bytes, offset: int) -> bytes:
        return got + self._some(WINDOW_BYTES)

    def _some(self, count: int) -> bytes:
        """At least one byte, or b"" where the stream has ended."""
        data: bytes = self.read(count)
        return data

    def payload(self, buffer: bytes, start: int, offset: int, size: int) -> bytes:
        pieces, got = [buffer[start:]], len(buffer) - start
        while got < size:
            piece = self._some(min(size - got, PIECE_BYTES))
            if not piece:
                raise cut_short(self.url, offset + got, "a member's data")
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def skip(self, known: int, offset: int, size: int) -> None:
        while known < size:
            piece = self._some(min(size - known, WINDOW_BYTES))
            if not piece:
                raise cut_short(self.url, offset + known, "a member's data")
            known += len(piece)


class RangeWindow:
    """A place that is far away, by ranges: for single samples, where reading on would be waste."""

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
