"""Checksums of whole objects, and where the expected value comes from.

A checksum is written ``KIND:HEX``: ``crc32`` (fast, against accidents) or any algorithm of
``hashlib``. Or the store provides it: ``"declared"`` is a checksum that the store declares as such
(Azure's Content-MD5, Google's ``x-goog-hash``); ``"etag"`` also accepts an ETag that looks like an
MD5, which S3 has for objects that were uploaded in one piece and not encrypted with a separate key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from typing import Any, Protocol

from penstock.errors import PipelineError, StorageError

FROM_STORE = ("declared", "etag")
"""Values of ``checksum`` that select the checksum which the store has."""


class Damaged(StorageError):
    """All bytes arrived, but their checksum is not the expected one."""


class Digest(Protocol):
    """A checksum being computed."""

    def update(self, data: Any, /) -> None: ...

    def hexdigest(self) -> str: ...


class Crc32:
    """CRC-32 with the interface of ``hashlib``.

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


def check_checksum(checksum: str) -> None:
    """Raise PipelineError unless it is a valid checksum."""
    kind, _, value = checksum.partition(":")
    kinds = hashlib.algorithms_available - {"shake_128", "shake_256"}  # without a fixed length
    if checksum in FROM_STORE or (value and (kind == "crc32" or kind in kinds)):
        return
    raise PipelineError(
        f"a checksum is 'declared', 'etag', or like 'sha256:HEX' or 'crc32:HEX', not {checksum!r}"
    )


def make_digest(
    checksum: str, declared: str | None, etag: str | None
) -> tuple[str, Digest] | tuple[None, None]:
    """Return the expected checksum (``KIND:HEX``) and a digest; None if it is not known."""
    if checksum in FROM_STORE:
        found = declared
        if found is None and checksum == "etag":
            plain = (etag or "").strip('"').lower()
            found = f"md5:{plain}" if re.fullmatch(r"[0-9a-f]{32}", plain) else None
        if found is None:
            return None, None  # for example an upload in parts
        checksum = found
    kind = checksum.partition(":")[0]
    return checksum, Crc32() if kind == "crc32" else hashlib.new(kind, usedforsecurity=False)


def parse_base64_md5(text: str | None) -> str | None:
    """Return the MD5 checksum that a header contains in Base64, if it does.

    >>> parse_base64_md5("XUFAKrxLKna5cZ2REBfFkg==")
    'md5:5d41402abc4b2a76b9719d911017c592'
    """
    try:
        data = base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    return f"md5:{data.hex()}" if len(data) == 16 else None
