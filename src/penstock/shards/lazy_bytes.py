"""Payloads that are read when they are needed, on the thread that needs them.

If threads process samples, the thread that iterates over a shard need not read large payloads: it
reads headers and yields a :class:`Later` for each payload. Shuffle buffers and the single planning
thread then hold and copy no pixels. Users never see a ``Later``: all fields are read before the
first function that uses the sample.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Protocol

from penstock.shards.byte_windows import FileWindow, cut_short, overwritten

LATER_BYTES = 16 << 10
"""Smaller members are read at once: copying them costs less than a second read."""
MOST_FILES = 64
"""Shards that may be held open at a time: their samples may stay in a shuffle buffer for long."""


def most_files(wanted: int) -> int:
    """Return ``wanted``, or a quarter of this process's limit on open files if that is less."""
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, limit // 4)


class ShardFile:
    """An open shard. Its unread samples reference it, and it closes with the last of them.

    >>> len(ShardFile.open_files)
    0
    """

    open_files: ClassVar[set[int]] = set()
    """Descriptors. A set, not a counter: files close on any thread, which could miscount."""
    __slots__ = ("descriptor", "url", "written_ns")

    def __init__(self, window: FileWindow) -> None:
        self.descriptor = os.dup(window.descriptor)
        self.url, self.written_ns = window.url, window.written_ns
        ShardFile.open_files.add(self.descriptor)

    def __del__(self) -> None:
        descriptor = getattr(self, "descriptor", None)
        if descriptor is not None:
            ShardFile.open_files.discard(descriptor)  # before the descriptor can be reused
            os.close(descriptor)

    @classmethod
    def of(cls, window: Any) -> ShardFile | None:
        """Return the shard of a window, or None if its payloads must be read at once."""
        if not isinstance(window, FileWindow) or len(cls.open_files) >= most_files(MOST_FILES):
            return None
        try:
            return cls(window)
        except OSError:  # too many open files: payloads of this shard are read at once
            return None

    def leave(self, window: Any, offset: int, size: int) -> Later:
        """Return a ``Later`` for a member's data, after checking the shard's size."""
        window.skip(0, offset, size)
        window.announce(offset)
        return Later(self, offset, size)


class OpenFile(Protocol):
    """The file of a ``Later``, which stays open as long as it is referenced."""

    descriptor: int
    url: str
    written_ns: int
    """Its modification time, from before its headers were read."""


class Later:
    """``size`` bytes at an offset of a shard, not read yet."""

    __slots__ = ("file", "offset", "size")

    def __init__(self, file: OpenFile, offset: int, size: int) -> None:
        self.file, self.offset, self.size = file, offset, size

    def __repr__(self) -> str:
        return f"<{self.size:,} bytes at {self.offset} of {self.file.url}>"

    @property
    def nbytes(self) -> int:
        """The number of bytes that :meth:`read` returns."""
        return self.size

    def read(self) -> bytes:
        """Read the bytes. Raise ShardError if the shard was changed since it was opened."""
        data = os.pread(self.file.descriptor, self.size, self.offset)
        while len(data) < self.size:  # Linux returns at most 2 GiB per call
            at = self.offset + len(data)
            piece = os.pread(self.file.descriptor, self.size - len(data), at)
            if not piece:
                raise self.cut()
            data += piece
        if self.changed:
            raise overwritten(self.file.url, self.offset)
        return data

    @property
    def changed(self) -> bool:
        """True if the shard was written to since it was opened. Check it after reading."""
        return os.fstat(self.file.descriptor).st_mtime_ns != self.file.written_ns

    def cut(self) -> Exception:
        """Return the error for a shard that was truncated."""
        return cut_short(self.file.url, self.offset, "a member's data")


def whole(value: Any) -> Any:
    """Return a value, read if it is a :class:`Later`.

    >>> whole(b"as it is")
    b'as it is'
    """
    return value.read() if type(value) is Later else value


def whole_sample(sample: Any) -> Any:
    """Return a sample with all its fields read."""
    if type(sample) is dict:
        for field, value in sample.items():
            if type(value) is Later:
                sample[field] = value.read()
    return sample
