"""Bytes of a shard that are read when they are needed, on the thread that needs them.

Where threads work on samples, the thread that walks through a shard need not read its photographs:
it looks at headers, and a :class:`Later` stands for the payload. Neither a shuffle's buffer nor the
one thread that all samples pass then holds or copies pixels. Users never see one: a sample is made
whole before the first function that looks at it.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Protocol

from penstock.errors import Origin, ShardError
from penstock.shards.byte_windows import FileWindow, cut_short

LATER_BYTES = 16 << 10
"""Smaller members are copied sooner than they are looked for again."""
MOST_FILES = 64
"""Shards that may be held open for it at a time: their samples may wait in a buffer for long."""


class ShardFile:
    """An open shard, for as long as any sample of it is to be read.

    >>> len(ShardFile.open_files)
    0
    """

    open_files: ClassVar[set[int]] = set()
    """Descriptors: files end on any thread, where a number would be miscounted."""
    __slots__ = ("descriptor", "url", "written_ns")

    def __init__(self, window: FileWindow) -> None:
        self.descriptor = os.dup(window.descriptor)
        self.url, self.written_ns = window.url, window.written_ns
        ShardFile.open_files.add(self.descriptor)

    def __del__(self) -> None:
        descriptor = getattr(self, "descriptor", None)
        if descriptor is not None:
            ShardFile.open_files.discard(descriptor)  # before the number can be another's
            os.close(descriptor)

    @classmethod
    def of(cls, window: Any) -> ShardFile | None:
        """The shard of a window; None where it must be read as it comes."""
        if not isinstance(window, FileWindow) or len(cls.open_files) >= MOST_FILES:
            return None
        try:
            return cls(window)
        except OSError:  # too many are open: then this one is read as it comes
            return None

    def leave(self, window: Any, offset: int, size: int) -> Later:
        """The data of a member, which the shard has as far as its size says, not read yet."""
        window.skip(0, offset, size)
        window.announce(offset)
        return Later(self, offset, size)


class OpenFile(Protocol):
    """What is read later: a file that stays open as long as it is held."""

    descriptor: int
    url: str
    written_ns: int
    """When it was last written to, before its headers were read."""


class Later:
    """``size`` bytes at an offset of a shard, not read yet."""

    __slots__ = ("file", "offset", "size")

    def __init__(self, file: OpenFile, offset: int, size: int) -> None:
        self.file, self.offset, self.size = file, offset, size

    def __repr__(self) -> str:
        return f"<{self.size:,} bytes at {self.offset} of {self.file.url}>"

    @property
    def nbytes(self) -> int:
        """How many bytes there will be."""
        return self.size

    def read(self) -> bytes:
        """The bytes; a ShardError where the shard was cut since it was opened."""
        data = os.pread(self.file.descriptor, self.size, self.offset)
        while len(data) < self.size:  # Linux gives at most 2 GiB at once
            at = self.offset + len(data)
            piece = os.pread(self.file.descriptor, self.size - len(data), at)
            if not piece:
                raise self.cut()
            data += piece
        if self.changed:
            raise ShardError(
                "the shard was written to while samples of it waited to be read: its headers "
                "and its data may not belong together (rename new shards into place instead)",
                origin=Origin(self.file.url, offset=self.offset),
            )
        return data

    @property
    def changed(self) -> bool:
        """Whether the shard was written to since: asked behind the reading."""
        return os.fstat(self.file.descriptor).st_mtime_ns != self.file.written_ns

    def cut(self) -> Exception:
        """The error for a shard that has become shorter."""
        return cut_short(self.file.url, self.offset, "a member's data")


def whole(value: Any) -> Any:
    """A value, read if it was left for later.

    >>> whole(b"as it is")
    b'as it is'
    """
    return value.read() if type(value) is Later else value


def whole_sample(sample: Any) -> Any:
    """A sample with all its fields read."""
    if type(sample) is dict:
        for field, value in sample.items():
            if type(value) is Later:
                sample[field] = value.read()
    return sample
