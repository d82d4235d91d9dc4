"""Sums over all bytes of an object, and who tells them.

A checksum is written ``KIND:HEX``: ``crc32`` (fast, for accidents) or any kind of ``hashlib``. Or
it is asked of the store: ``"declared"`` is a sum that the store calls one (Azure's Content-MD5,
Google's ``x-goog-hash``); ``"etag"`` also takes an ETag that looks like an MD5, as S3 gives it for
objects that were uploaded in one piece and are not encrypted with a key of their own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from typing import Any, Protocol

from penstock.errors import PipelineError, StorageError

ASKED = ("declared", "etag")


class Damaged(StorageError):
    """All bytes came, and their sum is not the one that is known."""


class Digest(Protocol):
    """A sum under way."""

    def update(self, data: Any, /) -> None: ...

    def hexdigest(self) -> str: ...


class Crc32:
    """CRC-32 in the form of ``hashlib``.

    >>> crc = Crc32()
    >>> crc.update(b"hello")
    >>> crc.hexdigest()
    '3610a686'
    """

    def __init__(self) -> None:
        self._sum = 0

    def update(self, data: Any, /) -> None:
        self._sum = zlib.crc32(data, self._sum)

    def hexdigest(self) -> str:
        return f"{self._sum:08x}"


def check_form(checksum: str) -> None:
    """Raise PipelineError unless it is a checksum as this module knows them."""
    kind, _, value = checksum.partition(":")
    kinds = hashlib.algorithms_available - {"shake_128", "shake_256"}  # those have no one length
    if checksum in ASKED or (value and (kind == "crc32" or kind in kinds)):
        return
    raise PipelineError(
        f"a checksum is 'declared', 'etag', or like 'sha256:HEX' or 'crc32:HEX', not {checksum!r}"
    )


def digest_for(
    checksum: str, declared: str | None, etag: str | None
) -> tuple[str, Digest] | tuple[None, None]:
    """What the sum must be (``KIND:HEX``), and a digest to make it; None where nobody tells it."""
    if checksum in ASKED:
        found = declared
        if found is None and checksum == "etag":
            plain = (etag or "").strip('"').lower()
            found = f"md5:{plain}" if re.fullmatch(r"[0-9a-f]{32}", plain) else None
        if found is None:
            return None, None  # an upload in parts, say
        checksum = found
    kind = checksum.partition(":")[0]
    return checksum, Crc32() if kind == "crc32" else hashlib.new(kind, usedforsecurity=False)


def md5_of_base64(text: str | None) -> str | None:
    """The checksum that a header tells in Base64, if it does.

    >>> md5_of_base64("XUFAKrxLKna5cZ2REBfFkg==")
    'md5:5d41402abc4b2a76b9719d911017c592'
    """
    try:
        data = base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    return f"md5:{data.hex()}" if len(data) == 16 else None
