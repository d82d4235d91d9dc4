"""The members of a tar shard and its faults, with their offsets: a reader that does not stop.

:class:`~penstock.shards.tar_reader.TarReader` stops at the first fault. For checking and repair,
:class:`TolerantReader` reports it and continues at the next readable header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.errors import PenstockError, ShardError
from penstock.redact import describe_beginning
from penstock.shards import header as tar
from penstock.shards.byte_windows import (
    LARGE_BYTES,
    FileWindow,
    StreamWindow,
    UnpackLimitError,
)
from penstock.shards.tar_reader import TarReader, may_be_field

HEAD_BYTES = 64
"""How much of a member's data is read where not all of it is wanted."""

_FILES = frozenset(b"0\x007")
_FOLDER, _LONG_NAME, _LONG_LINK, _PAX, _OLD_PAX, _GLOBAL_PAX, _SPARSE = b"5LKxXgS"
_WITHOUT_DATA = frozenset(b"123456V")
_KINDS = {
    ord("1"): "a hard link",
    ord("2"): "a symbolic link",
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a fifo",
    ord("V"): "a volume label",
    _SPARSE: "a sparse file",
}


class TarEntry(NamedTuple):
    """A member. ``special`` says what it is, if it is neither a plain file nor a folder."""

    name: bytes
    offset: int
    """Where its first header is (PAX and long-name headers count)."""
    data_offset: int
    size: int
    data: bytes
    """All of its data, or the first bytes."""
    special: str | None = None


class Fault(NamedTuple):
    """Something wrong with the tar itself; ``name`` is the member concerned, where it is known."""

    code: str
    offset: int
    message: str
    name: bytes | None = None


class DamagedStream(Exception):
    """The compressed data cannot be unpacked further."""


class TolerantReader(TarReader):
    """Yields every member that can be read, and every fault, in the order of the shard.

    >>> import io, penstock
    >>> from penstock.shards.open_shard import tape_of
    >>> stream = io.BytesIO()
    >>> with penstock.TarWriter(stream) as sink:
    ...     _ = sink.write({"__key__": "a", "txt": "hello"})
    >>> damaged = io.BytesIO(stream.getvalue()[:600])
    >>> [item.code for item in TolerantReader.of(tape_of(damaged, "x.tar")).entries()]
    ['PS101']
    """

    _begun_at = 0
    _begun_name: bytes | None = None
    """The member whose data is read."""

    @classmethod
    def of(cls, tape: TarReader) -> TolerantReader:
        """Return a reader of the tape, which must not have been read from."""
        window = tape.window
        if isinstance(window, StreamWindow) and window.compressed:
            window.read = _guarded(window.read)
        return cls(window, tape.url, start=tape.base, rest=tape.buffer)

    @property
    def compressed(self) -> bool:
        return isinstance(self.window, StreamWindow) and self.window.compressed

    def entries(
        self, want: Callable[[bytes], bool] = lambda name: False
    ) -> Iterator[TarEntry | Fault]:
        """Yield members and faults; the whole data of those members that ``want(name)`` chooses."""
        try:
            yield from self._entries(want)
        except DamagedStream as error:
            yield Fault("PS105", self._begun_at, str(error), self._begun_name)
        except UnpackLimitError as error:
            yield Fault("PS107", self.window.member_end, error.message)

    def _entries(self, want: Callable[[bytes], bool]) -> Iterator[TarEntry | Fault]:
        first, name, size, special = -1, None, None, None
        while True:
            self._begun_name = None
            if not self.fill(tar.BLOCK):
                yield self._fault_at_end(first)
                return
            offset = self.base + self.position
            begin = self._begun_at = offset if first < 0 else first
            head = self.buffer[self.position : self.position + tar.BLOCK]
            if head == tar.ZERO_BLOCK:
                if first >= 0:
                    yield Fault("PS102", first, "a header announces a member that does not follow")
                    first, name, size, special = -1, None, None, None
                fault = self._skip_end_marker(offset)
                if fault is None:
                    return
                yield fault
                if not self._is_header():
                    return
                continue
            problem = _problem(head)
            if problem is not None:
                found = self._resync(head, offset)
                if found is None and begin == 0:
                    yield Fault(
                        "PS103", 0, f"this is no tar file: it {describe_beginning(head[:64])}"
                    )
                else:
                    yield Fault("PS102", begin, f"{problem}; {_skipped(offset, found)}", name)
                if found is None:
                    return
                first, name, size, special = -1, None, None, None
                continue
            self.position += tar.BLOCK
            kind = head[156]
            if kind in _FILES or kind not in _EXTENSIONS:
                name = tar.name_of(head) if name is None else name
                self._begun_name = name
                is_folder = kind == _FOLDER or (kind == 0 and name.endswith(b"/"))
                if kind not in _FILES:
                    special = _KINDS.get(kind, f"a member of the unknown type {chr(kind)!r}")
                if kind in _WITHOUT_DATA:
                    size = 0
                elif size is None:
                    size = tar.number(head[124:136])
                try:
                    if kind == _SPARSE:
                        self._skip_sparse_map(head)
                    data_offset = self.base + self.position
                    is_field = kind in _FILES and may_be_field(name)
                    data = self._payload(size, want(name) and special is None, is_field)
                except ShardError as error:
                    code = "PS107" if isinstance(error, UnpackLimitError) else "PS101"
                    yield Fault(code, begin, error.message, name)
                    return
                if not is_folder:
                    yield TarEntry(name, begin, data_offset, size, data, special)
                first, name, size, special = -1, None, None, None
                continue
            length = tar.number(head[124:136])
            if not self.fill(tar.padded(length)):
                yield Fault("PS101", begin, "the shard ends inside a PAX header or long name")
                return
            body = self.buffer[self.position : self.position + length]
            self.position += tar.padded(length)
            first = begin
            try:
                if kind == _LONG_NAME:
                    name = body.split(b"\0", 1)[0]
                elif kind == _GLOBAL_PAX:
                    first = -1 if name is None and size is None and special is None else first
                    common = tar.pax_records(body, self.url, begin)
                    if b"path" in common or b"size" in common:
                        special = "a global PAX header that names or sizes all members"
                elif kind in (_PAX, _OLD_PAX):
                    name, size = self._pax(body, begin, name, size)
            except ShardError as error:
                if "sparse" in error.message:
                    special = _KINDS[_SPARSE]
                else:
                    yield Fault("PS102", begin, error.message, name)
                    first, name, size, special = -1, None, None, None

    def _payload(self, size: int, wanted: bool, is_field: bool) -> bytes:
        """Return a member's data, or its first bytes, and go to the next header.

        ``is_field``: readers read the member, so its size is checked as they do.
        """
        if is_field:
            self.window.member_end = self.base + self.position + size
        if not wanted:
            self.fill(min(size, HEAD_BYTES))
        start, stop = self.base + self.position, self.position + size
        data = self.buffer[self.position : min(stop, len(self.buffer))]
        if not wanted:
            data = data[:HEAD_BYTES]
        if stop <= len(self.buffer):
            self.position = stop
        else:
            if is_field and isinstance(self.window, StreamWindow):
                self.window.check_size(start, size)
            if wanted:
                data = self.window.payload(self.buffer, self.position, start, size)
            else:
                self.window.skip(len(self.buffer) - self.position, start, size)
            self.buffer, self.position, self.base = b"", 0, start + size
            self.large = size >= LARGE_BYTES
        self.pass_over(-size % tar.BLOCK, "a member's padding")
        return data

    def _fault_at_end(self, first: int) -> Fault:
        """Return the fault of a shard that ends here, without an end marker."""
        if self.base == 0 and self.position < len(self.buffer):
            found = describe_beginning(self.buffer[:64])
            return Fault("PS103", 0, f"this is no tar file: it {found}")
        error = self.judge_end(first)
        if error is None:
            offset = self.base + self.position
            return Fault("PS106", offset, "the shard ends without an end marker")
        code = "PS103" if self.base + self.position == 0 else "PS101"
        return Fault(code, first if first >= 0 else self.base + self.position, error.message)

    def _skip_end_marker(self, end: int) -> Fault | None:
        """Go to the first block after the zeros at ``end``; None where nothing follows them."""
        while not self.buffer[self.position :].strip(b"\0"):
            self.position = len(self.buffer)
            if not self.fill(1):
                return None
        rest = self.buffer[self.position :]
        found = self.base + self.position + len(rest) - len(rest.lstrip(b"\0"))
        start = found - (found - end) % tar.BLOCK
        if start < self.base:  # the block began with zeros in the window before
            self.buffer = bytes(self.base - start) + self.buffer
            self.base = start
        self.position = start - self.base
        if start - end < 2 * tar.BLOCK:
            return Fault("PS104", start, "a single zero block and then more data")
        return Fault("PS104", start, "data follows the end marker")

    def _is_header(self) -> bool:
        if not self.fill(tar.BLOCK):
            return False
        return _problem(self.buffer[self.position : self.position + tar.BLOCK]) is None

    def _resync(self, head: bytes, offset: int) -> int | None:
        """Go to the next header that can be read and return its offset; None if there is none."""
        claimed = self._claimed_end(head, offset)
        if claimed is not None:
            self.buffer, self.position, self.base = b"", 0, claimed
            return claimed
        self.position += tar.BLOCK
        while self.fill(tar.BLOCK):
            start = self.position
            if self.buffer.startswith(b"ustar", start + 257) and self._is_header():
                return self.base + self.position
            self.position = start + tar.BLOCK
        return None

    def _claimed_end(self, head: bytes, offset: int) -> int | None:
        """Return where the next header is, as the damaged one says, if it can be read there."""
        if not isinstance(self.window, FileWindow) or head[257:262] != b"ustar":
            return None
        try:
            end = offset + tar.BLOCK + tar.padded(tar.number(head[124:136]))
        except ValueError:
            return None
        if not offset < end < self.window.size_bytes:
            return None
        block = self.window.more(b"", end, True)[: tar.BLOCK]
        there = len(block) == tar.BLOCK and (block == tar.ZERO_BLOCK or _problem(block) is None)
        return end if there else None

    def _skip_sparse_map(self, head: bytes) -> None:
        more = head[482]
        while more:
            if not self.fill(tar.BLOCK):
                raise ShardError("the shard ends inside the map of a sparse file")
            more = self.buffer[self.position + 504]
            self.position += tar.BLOCK


_EXTENSIONS = frozenset((_LONG_NAME, _LONG_LINK, _PAX, _OLD_PAX, _GLOBAL_PAX))


def _problem(head: bytes) -> str | None:
    """Return what is wrong with a header, or None."""
    try:
        tar.verify(head, "", 1)
        if head[156] not in _WITHOUT_DATA:
            size = tar.size_of(head, "", 1)
            if head[156] in _EXTENSIONS and size > tar.MAX_EXTENSION_BYTES:
                return f"a PAX header or long name of {size:,} bytes"
    except ShardError as error:
        return "the header's checksum is wrong" if "checksum" in error.message else error.message
    return None


def _skipped(offset: int, found: int | None) -> str:
    if found is None:
        return "nothing after it can be read"
    return f"{found - offset:,} bytes up to the next readable header are skipped"


def _guarded(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Raise DamagedStream for damage of a compressed stream, unlike damage of the tar in it."""

    def guarded(count: int) -> bytes:
        try:
            return read(count)
        except PenstockError as error:
            if isinstance(error, ShardError):
                raise DamagedStream(error.message) from error
            raise

    return guarded
