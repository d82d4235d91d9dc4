"""Make the headers before a member's data.

All headers of a shard are equal except for the name, the size and the checksum, so the rest is made
once. :mod:`penstock.shards.header` has the table of the fields.
"""

from __future__ import annotations

import math
from zlib import adler32

from penstock.errors import PipelineError, WriteError
from penstock.shards.header import BLOCK, padded

NAME_BYTES = 100
PREFIX_BYTES = 155
MAX_SIZE = 8**11 - 1
"""The largest size in eleven octal digits, one byte less than 8 GiB."""

FORMATS: dict[int | str | None, str | None] = {
    None: None,
    **{"ustar": "ustar", "gnu": "gnu", "pax": "pax"},
    **{0: "ustar", 1: "gnu", 2: "pax"},  # the numbers of the standard library's tarfile
}

_POSIX_MAGIC = b"ustar\x0000"
_GNU_MAGIC = b"ustar  \0"


class Headers:
    """Makes the headers of one shard's members.

    ``format`` selects what happens if a name or size does not fit into a plain ustar header: "pax"
    writes a PAX header before it (also if the time has a fraction), "gnu" the extensions of GNU
    tar, and "ustar" raises :class:`~penstock.errors.WriteError`. None is ustar with a PAX header
    only if it is necessary: for names that are not ASCII or too long for the name fields, and
    sizes from 8 GiB on. Arguments that fit into no header raise
    :class:`~penstock.errors.PipelineError`.

    >>> make = Headers()
    >>> len(make(b"a.txt", 5)), len(make("ä.txt".encode(), 5))
    (512, 1536)
    """

    def __init__(
        self,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        mtime: float = 0,
        format: int | str | None = None,
    ) -> None:
        if isinstance(format, bool) or format not in FORMATS:
            raise PipelineError(f"format= is 'ustar', 'gnu', 'pax' or None, not {format!r}")
        if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o7777:
            raise PipelineError(f"mode= is a number from 0 to 0o7777, not {mode!r}")
        if not isinstance(mtime, (int, float)) or not 0 <= mtime <= MAX_SIZE:
            raise PipelineError(f"mtime= is a number of seconds since 1970, not {mtime!r}")
        self.format = FORMATS[format]
        magic = _GNU_MAGIC if self.format == "gnu" else _POSIX_MAGIC
        owner = magic + _encode_owner("user", user) + _encode_owner("group", group)
        owner += b"0000000\0" * 2
        # name, then: mode, uid, gid | size | mtime | checksum | type, link, owner, prefix
        self._before = b"%07o\0" % mode + b"0000000\0" * 2
        self._time = b"\0%011o\0" % math.floor(mtime)
        self._owner = bytes(NAME_BYTES) + owner
        self._after = b"\0 0" + self._owner + bytes(PREFIX_BYTES + 12)
        spaces = 8 * 32  # the checksum counts its own field as spaces
        self._sum = sum(self._before + self._time + self._owner) + spaces
        self._fast_sum = self._sum + ord("0") - 1
        self._records = b""
        if self.format == "pax" and mtime % 1:
            self._records = pax_record(b"mtime", repr(float(mtime)).encode())
        self._raw_names = self.format in ("ustar", "gnu")

    def __call__(self, name: bytes, size: int) -> bytes:
        """Return the header or headers of a member, a multiple of 512 bytes."""
        if (
            len(name) <= NAME_BYTES
            and size <= MAX_SIZE
            and (self._raw_names or name.isascii())
            and not self._records
        ):
            digits = b"%011o" % size
            # adler32's low half is 1 + the sum of the bytes; 111 bytes cannot reach its modulus.
            checksum = self._fast_sum + (adler32(name + digits) & 0xFFFF)
            return b"%b%b%b%b%06o%b" % (
                name.ljust(NAME_BYTES, b"\0"),
                self._before,
                digits,
                self._time,
                checksum,
                self._after,
            )
        return self._make_extended(name, size)

    def _make_extended(self, name: bytes, size: int) -> bytes:
        if self.format == "gnu":
            return self._make_gnu(name, size)
        split = _split(name) if self._raw_names or name.isascii() else None
        if self.format == "ustar":
            if split is None:
                raise WriteError(
                    f"the name takes {len(name)} bytes, and format='ustar' holds {NAME_BYTES}, or "
                    f"{PREFIX_BYTES} more before a '/': remove format="
                )
            if size > MAX_SIZE:
                raise WriteError(
                    f"{size} bytes are too many for format='ustar' (8 GiB): remove format="
                )
        records = self._records
        if split is None:
            records += _path_records(name)
            split = b"", name.decode("utf-8", "replace").encode("ascii", "replace")[:NAME_BYTES]
        if size > MAX_SIZE:
            records += pax_record(b"size", b"%d" % size)
        before = b""
        if records:
            head = self._make_block(b"././@PaxHeader", b"%011o\0" % len(records), b"x")
            before = head + _pad(records)
        shown = size if size <= MAX_SIZE else 0
        return before + self._make_block(split[1], b"%011o\0" % shown, b"0", split[0])

    def _make_gnu(self, name: bytes, size: int) -> bytes:
        before = b""
        if len(name) > NAME_BYTES:
            text = name + b"\0"
            before = self._make_block(b"././@LongLink", b"%011o\0" % len(text), b"L") + _pad(text)
        digits = b"%011o\0" % size if size <= MAX_SIZE else b"\x80" + size.to_bytes(11, "big")
        return before + self._make_block(name[:NAME_BYTES], digits, b"0")

    def _make_block(self, name: bytes, size: bytes, kind: bytes, prefix: bytes = b"") -> bytes:
        """Return one header. ``size`` is the twelve bytes of its field."""
        checksum = self._sum + sum(name) + sum(size) + sum(kind) + sum(prefix)
        head = name.ljust(NAME_BYTES, b"\0") + self._before + size + self._time[1:]
        head += b"%06o\0 " % checksum + kind + self._owner + prefix
        return head.ljust(BLOCK, b"\0")


def pax_record(keyword: bytes, value: bytes) -> bytes:
    """Return ``LENGTH KEYWORD=VALUE\\n``, where the length includes its own digits.

    >>> pax_record(b"path", b"a/b.c")
    b'14 path=a/b.c\\n'
    """
    rest = len(keyword) + len(value) + 3
    length = rest + len(str(rest))
    if len(str(length)) > len(str(rest)):
        length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, keyword, value)


def _path_records(name: bytes) -> bytes:
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        # This marks a name that is not UTF-8, as read from another shard.
        return pax_record(b"hdrcharset", b"BINARY") + pax_record(b"path", name)
    return pax_record(b"path", name)


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Split the name at a "/" into prefix and name field. Return None if that is impossible."""
    if len(name) <= NAME_BYTES:
        return b"", name
    slash = name.rfind(b"/", 1, PREFIX_BYTES + 1)
    if slash < 1 or not 0 < len(name) - slash - 1 <= NAME_BYTES:
        return None
    return name[:slash], name[slash + 1 :]


def _pad(data: bytes) -> bytes:
    return data.ljust(padded(len(data)), b"\0")


def _encode_owner(what: str, name: str) -> bytes:
    data = name.encode() if isinstance(name, str) else b"\0"
    if b"\0" in data or len(data) > 31:
        raise PipelineError(f"{what}= is a name of at most 31 bytes, not {name!r}")
    return data.ljust(32, b"\0")
