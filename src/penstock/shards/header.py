"""Parse one 512-byte tar header by the complete format: the reader's slow path.

=========  =====  ====================================================================
bytes      field  forms accepted
=========  =====  ====================================================================
0-100      name   NUL-ended or full; PAX ``path`` and GNU ``L`` members replace it
124-136    size   octal with spaces or NULs around it, or base-256 (first byte 0x80)
148-156    sum    octal; sum of all bytes with this field counted as spaces
156        type   ``0`` NUL ``7`` files; ``L K`` GNU names; ``x X g`` PAX; others have no data
257-263    magic  ``ustar\\0`` POSIX, ``ustar  `` GNU, anything else V7
345-500    prefix only with the POSIX magic: prefix + "/" + name
=========  =====  ====================================================================
"""

from __future__ import annotations

import codecs
import re
from zlib import adler32

from penstock.errors import Origin, ShardError

BLOCK = 512
ZERO_BLOCK = bytes(BLOCK)
MAX_EXTENSION_BYTES = 1 << 20
"""A PAX header or GNU long name larger than this is damage, not a name."""


_OCTAL = re.compile(rb" *([0-7]*) *(?:\0.*)?", re.DOTALL).fullmatch
_RECORD = re.compile(rb"(\d{1,20}) ([^=]+)=").match


def padded(size: int) -> int:
    """Round a size up to whole blocks.

    >>> padded(1), padded(512), padded(0)
    (512, 512, 0)
    """
    return (size + BLOCK - 1) & -BLOCK


def number(field: bytes) -> int:
    """Return the value of a numeric field. Raise ValueError if it is not a number.

    >>> number(b"0000644\\0"), number(b"   12 \\0\\0"), number(b"\\x80" + bytes(10) + b"\\x07")
    (420, 10, 7)
    """
    digits = field.rstrip(b" \0")
    if digits.isdigit():  # nearly always
        return int(digits, 8)
    if field[0] in (0x80, 0xFF):
        value = int.from_bytes(field[1:], "big")
        return value if field[0] == 0x80 else value - (1 << (8 * (len(field) - 1)))
    match = _OCTAL(field)
    if match is None:
        raise ValueError(f"not a number: {field!r}")
    return int(match[1] or b"0", 8)


TEXT_LETTERS = 80
"""Length of the quotation from a text that is no tar file."""


def verify(header: bytes, url: str, offset: int) -> None:
    """Raise :class:`ShardError` unless the header's checksum is correct."""
    # The sum counts the checksum field as spaces. adler32's low half is 1 + the sum of the bytes
    # modulo 65521, at native speed; a header's sum is below twice the modulus, and changing one
    # byte cannot change it by the modulus.
    field = header[148:156]
    try:
        expected = number(field) + sum(field) - 8 * 32
    except ValueError:
        expected = -1
    found = adler32(header) & 0xFFFF
    if expected >= 0 and found != (1 + expected) % 65521:
        # Some old writers summed signed bytes: 256 less for each byte above 127.
        expected += 256 * sum(byte > 127 for byte in header[:148] + header[156:])
    if expected < 0 or found != (1 + expected) % 65521:
        if offset == 0:
            refuse_text(header, url)
            raise ShardError(
                "this is no tar file, or its first block is damaged: it begins with "
                f"{header[:16]!r}, which is no tar header (wrong checksum)",
                origin=Origin(url, offset=0),
            )
        raise ShardError(
            "not a tar header (wrong checksum): the shard is damaged here",
            origin=Origin(url, offset=offset),
        )


def refuse_text(start: bytes, url: str) -> None:
    """Raise :class:`ShardError` if a shard's first block is readable text, such as an error page.

    >>> refuse_text(b'{"error": "log in"}', "x.tar")
    Traceback (most recent call last):
    penstock.errors.ShardError: this is text and no tar file, perhaps an error page: ...
    """
    try:
        # Incremental, because the block may end inside a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(start).strip()
    except UnicodeDecodeError:
        return
    if len(text) >= 2 and all(letter.isprintable() or letter.isspace() for letter in text):
        raise ShardError(
            f"this is text and no tar file, perhaps an error page: {text[:TEXT_LETTERS]!r}",
            origin=Origin(url, offset=0),
        )


def size_of(header: bytes, url: str, offset: int) -> int:
    """Return the size of the data after the header."""
    try:
        size = number(header[124:136])
    except ValueError:
        size = -1
    if size < 0:
        raise ShardError(
            f"a tar header with the impossible size {header[124:136]!r}",
            origin=Origin(url, offset=offset),
        )
    return size


def name_of(header: bytes) -> bytes:
    """Return the member's name with its POSIX prefix."""
    name = header[:100].split(b"\0", 1)[0]
    if header[345] and header[257:263] == b"ustar\0":
        name = header[345:500].split(b"\0", 1)[0] + b"/" + name
    return name


def pax_records(body: bytes, url: str, offset: int) -> dict[bytes, bytes]:
    """Parse the ``LENGTH KEYWORD=VALUE\\n`` records of a PAX header.

    >>> pax_records(b"14 path=a/b.c\\n", "x.tar", 0)
    {b'path': b'a/b.c'}
    """
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(body) and body[position] != 0:
        match = _RECORD(body, position)
        length = int(match[1]) if match else 0
        stop = position + length
        if match is None or stop > len(body) or stop <= match.end() or body[stop - 1] != 10:
            raise ShardError("a damaged PAX header", origin=Origin(url, offset=offset))
        records[match[2]] = body[match.end() : stop - 1]
        position = stop
    return records
