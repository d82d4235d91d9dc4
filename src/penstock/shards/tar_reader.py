"""Read the members of a tar shard in order, by the complete format.

Everything that the format allows is read; everything else raises
:class:`~penstock.errors.ShardError` with the shard's URL and the byte offset. A shard that ends
after a whole member, without end-of-archive blocks, is read with a
:class:`~penstock.errors.ShardWarning`, as tarfile and WebDataset read it;
:meth:`TarReader.judge_end` decides.

:mod:`penstock.shards.sample_reader` has a faster path for ordinary members and uses this reader for
all others; a test compares the two on every kind of shard.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.errors import Origin, ShardError, ShardWarning
from penstock.redact import redact
from penstock.shards import header as tar
from penstock.shards.byte_windows import LARGE_BYTES, Window, cut_short
from penstock.shards.lazy_bytes import LATER_BYTES, Later, ShardFile

_FILES = frozenset(b"0\x007")  # ustar, V7, contiguous
# Links, devices, folders, pipes, volume labels: their size field is ignored.
_WITHOUT_DATA = frozenset(b"123456V")
_V7_FILE = 0
_LONG_NAME, _LONG_LINK, _PAX, _OLD_PAX, _GLOBAL_PAX, _SPARSE = b"LKxXgS"


def may_be_field(name: bytes) -> bool:
    """Return whether a member may belong to a sample; a cheap estimate for progress checks.

    >>> may_be_field(b"a/b.jpg"), may_be_field(b"a.b/README"), may_be_field(b"__meta__/a.jpg")
    (True, False, False)
    """
    if name.find(b".", name.rfind(b"/") + 2) < 0:
        return False
    first = name.partition(b"/")[0]
    return not (len(first) >= 4 and first.startswith(b"__") and first.endswith(b"__"))


class Member(NamedTuple):
    """One file of a shard. ``data`` is None if it was not wanted, a ``Later`` if not read yet."""

    name: bytes
    data: bytes | Later | None
    offset: int
    """Offset of its first header, which may be a PAX or long-name header."""
    data_offset: int
    size: int


class TarReader:
    """The members of one tar shard, in order. Iterate once.

    ``want(name)`` returns whether a member's data is needed; other members are skipped, unread if
    the storage allows it.
    With ``concatenated=True`` reading continues after end-of-archive blocks, as for
    ``cat a.tar b.tar``; without it, data there causes a :class:`ShardWarning`.
    ``start`` is the offset of a member's first header to begin at, ``rest`` the bytes from there on
    that were already read.

    ``buffer[position:]`` was read and not yet used; ``base`` is the offset of ``buffer[0]`` in the
    shard.
    """

    def __init__(
        self,
        window: Window,
        url: str,
        *,
        want: Callable[[bytes], bool] | None = None,
        concatenated: bool = False,
        start: int = 0,
        rest: bytes = b"",
    ) -> None:
        self.window, self.url, self.want, self.concatenated = window, url, want, concatenated
        self.buffer, self.base, self.position = rest, start, 0
        self.start = start
        self.large = False
        self.begun: tuple[bytes, int] | None = None
        """Name and offset of the member whose data is being read or skipped."""
        self.later: ShardFile | None = None  # if set, large members are returned as ``Later``

    def __iter__(self) -> Iterator[Member]:
        while (member := self.next_member()) is not None:
            yield member

    def next_member(self, first: int = -1) -> Member | None:
        """Return the next file, or None at the end of the archive.

        ``first`` is the offset of the member's first header, if one was already read.
        """
        name: bytes | None = None
        size: int | None = None  # from a PAX header
        self.begun = None
        while True:
            if not self.fill(tar.BLOCK):
                self._end(first)
                return None
            offset = self.base + self.position
            head = self.buffer[self.position : self.position + tar.BLOCK]
            self.position += tar.BLOCK
            if head == tar.ZERO_BLOCK:
                if first >= 0:
                    raise self._error("a header announces a member that does not follow", first)
                if not self._next_archive(offset):
                    return None
                continue
            tar.verify(head, self.url, offset)
            kind = head[156]
            if kind in _WITHOUT_DATA:
                name, size, first = None, None, -1
                continue
            if kind in _FILES:
                name = tar.name_of(head) if name is None else name
                if kind == _V7_FILE and name.endswith(b"/"):  # a folder in V7
                    name, size, first = None, None, -1
                    continue
                size = tar.size_of(head, self.url, offset) if size is None else size
                return self._member(name, size, offset if first < 0 else first)
            if kind == _GLOBAL_PAX:
                common = tar.pax_records(self._body(head, offset), self.url, offset)
                if b"path" in common or b"size" in common:
                    raise self._error("a global PAX header that names or sizes all members", offset)
                continue
            first = offset if first < 0 else first
            if kind in (_PAX, _OLD_PAX):
                name, size = self._pax(self._body(head, offset), offset, name, size)
            elif kind == _LONG_NAME:
                name = self._body(head, offset).split(b"\0", 1)[0]
            elif kind == _LONG_LINK:
                self._body(head, offset)
            else:
                sparse = " (a sparse file)" if kind == _SPARSE else ""
                raise self._error(
                    f"a member of the unsupported type {chr(kind)!r}{sparse}: "
                    "pack the shard again with plain files",
                    offset,
                )

    def _error(self, message: str, offset: int) -> ShardError:
        return ShardError(message, origin=Origin(self.url, offset=offset))

    def fill(self, count: int) -> bool:
        """Read until the buffer has ``count`` bytes at the position. Return False if it cannot."""
        if self.position + count <= len(self.buffer):
            return True
        self.base += self.position
        self.buffer = self.window.more(self.buffer[self.position :], self.base, self.large)
        self.position = 0
        while count > (got := len(self.buffer)):
            self.buffer = self.window.extend(self.buffer, self.base)
            if len(self.buffer) == got:
                return False
        return True

    def pass_over(self, count: int, what: str) -> None:
        """Skip ``count`` bytes. Raise ShardError if the shard ends before."""
        if not self.fill(count):
            raise cut_short(self.url, self.base + len(self.buffer), what)
        self.position += count

    def judge_end(self, first: int = -1) -> ShardError | None:
        """Return what is wrong with a shard that ends where a header should begin.

        None if it ends after a whole member: only its end-of-archive blocks are missing. ``first``
        is the offset of a header that describes a member that does not follow, or -1.
        """
        end = self.base + len(self.buffer)
        if self.position < len(self.buffer):
            if self.base == 0:
                tar.refuse_text(self.buffer, self.url)
            return cut_short(self.url, end, "a header")
        if end == 0:
            return self._error("the shard is empty (0 bytes)", 0)
        if end == self.start:
            return self._error("the shard ends where reading should begin: it was cut", end)
        if first >= 0:
            return self._error("the shard ends before the member that a header announces", first)
        return None

    def _end(self, first: int) -> None:
        error = self.judge_end(first)
        if error is not None:
            raise error
        warnings.warn(
            "the shard ends without its end-of-archive blocks: its writer was not closed, or it "
            "was cut between two members, so its last sample may lack fields: "
            f"{redact(self.url)}, byte {self.base + self.position}; "
            "'penstock verify --repair' writes them",
            ShardWarning,
            stacklevel=2,
        )

    def _body(self, head: bytes, offset: int) -> bytes:
        """Return the data of a header that describes the next member."""
        size = tar.size_of(head, self.url, offset)
        if size > tar.MAX_EXTENSION_BYTES:
            raise self._error(f"a PAX header or long name of {size} bytes", offset)
        if not self.fill(tar.padded(size)):
            raise cut_short(self.url, self.base + len(self.buffer), "a PAX header or long name")
        body = self.buffer[self.position : self.position + size]
        self.position += tar.padded(size)
        return body

    def _pax(
        self, body: bytes, offset: int, name: bytes | None, size: int | None
    ) -> tuple[bytes | None, int | None]:
        """Return the next member's name and size from PAX records, else the given ones."""
        records = tar.pax_records(body, self.url, offset)
        if any(keyword.startswith(b"GNU.sparse") for keyword in records):
            raise self._error("a sparse member: pack the shard again without --sparse", offset)
        text = records.get(b"size")
        if text is not None and not (text.isdigit() and len(text) <= 20):
            raise self._error(f"a PAX header with the impossible size {text[:40]!r}", offset)
        return records.get(b"path", name), int(text) if text is not None else size

    def _member(self, name: bytes, size: int, offset: int) -> Member:
        """Return the file whose header was just read. Consume its data and padding."""
        data: bytes | Later | None = None
        later = self.later if size >= LATER_BYTES else None
        start = self.base + self.position
        stop = self.position + size
        if self.window.compressed and may_be_field(name):
            self.window.member_end = start + size
        wanted = self.want is None or self.want(name)
        self.begun = (name, offset)
        if stop <= len(self.buffer):
            data = self.buffer[self.position : stop] if wanted else None
            self.position = stop
        else:
            if wanted and later is not None:
                data = later.leave(self.window, start, size)
            elif wanted:
                data = self.window.payload(self.buffer, self.position, start, size)
            else:
                self.window.skip(len(self.buffer) - self.position, start, size)
            self.buffer, self.position, self.base = b"", 0, start + size
            self.large = size >= LARGE_BYTES or later is not None
        self.pass_over(-size % tar.BLOCK, "a member's padding")
        return Member(name, data, offset, start, size)

    def _next_archive(self, end: int) -> bool:
        """Skip zeros after the block at ``end``. Return False at the end, True at an archive."""
        while not self.buffer[self.position :].strip(b"\0"):
            self.position = len(self.buffer)
            if not self.fill(1):
                return False
        rest = self.buffer[self.position :]
        found = self.base + self.position + len(rest) - len(rest.lstrip(b"\0"))
        start = found - (found - end) % tar.BLOCK
        if not self.concatenated and start - end < 2 * tar.BLOCK:
            raise self._error(
                "a single zero block and then more data: the shard is damaged here", end
            )
        if not self.concatenated:
            warnings.warn(
                "data follows the end-of-archive blocks and is not read: "
                f"{redact(self.url)}, byte {start}; "
                "if tars were joined with cat, use concatenated=True",
                ShardWarning,
                stacklevel=2,
            )
            return False
        if start < self.base:  # the block began with zeros in the window before
            self.buffer = bytes(self.base - start) + self.buffer
            self.base = start
        self.position = start - self.base
        return True
