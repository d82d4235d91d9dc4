"""Distinguish versions of a shard by their size, and modification time or ETag."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.errors import Origin, PipelineError, StaleIndexError
from penstock.redact import canonical_url, redact
from penstock.storage import open_url
from penstock.storage.urls import is_stream, local_path, rewrite_url

logger = logging.getLogger("penstock.shards.index")

END_BYTES = 64 << 10
"""Bytes at both ends of a shard that are compared, to distinguish a copy from a change."""


class ShardStamp(NamedTuple):
    """A shard's size, modification time and ETag; None if the storage does not report it."""

    size_bytes: int | None
    mtime_ns: int | None = None
    etag: str | None = None


def stamp_of(url: str) -> ShardStamp:
    """Return the shard's current stamp. Raise StorageError if the shard does not exist."""
    refuse_streams(url)
    path = local_path(rewrite_url(url))
    if path is not None:
        try:
            return stamp_from(os.stat(path))
        except OSError:
            pass  # opening it raises the library's error
    with open_url(url) as stream:
        return ShardStamp(getattr(stream, "size_bytes", None), etag=getattr(stream, "etag", None))


def stamp_from(status: os.stat_result) -> ShardStamp:
    """Return the stamp of a local file."""
    return ShardStamp(status.st_size, status.st_mtime_ns)


def refuse_streams(url: str) -> None:
    """Raise PipelineError unless the shard can be read at any offset."""
    if is_stream(url):
        raise PipelineError(
            f"an index needs shards that can be read at any offset, not {redact(url)!r}: "
            "copy the shard to a file, or read it without index="
        )


def ends_of(url: str) -> str | None:
    """Return a checksum of both ends of a local shard, as ``crc32:HEX``; None if it is remote.

    A copied shard has another modification time, but the same ends.
    """
    if local_path(rewrite_url(url)) is None:
        return None
    with open_url(url) as stream:
        return sum_ends(stream)


def sum_ends(stream: Any) -> str | None:
    """Return :func:`ends_of` for an open file."""
    size = stream.size_bytes
    if size is None:
        return None
    crc32 = zlib.crc32(stream.read_range(0, min(size, END_BYTES)))
    crc32 = zlib.crc32(stream.read_range(max(size - END_BYTES, END_BYTES), END_BYTES), crc32)
    return f"crc32:{crc32:08x}"


def compare(
    url: str,
    expected: ShardStamp,
    found: ShardStamp,
    ends: str | None = None,
    read_ends: Callable[[], str | None] = lambda: None,
) -> None:
    """Raise :class:`~penstock.errors.StaleIndexError` if the stamps are of different versions.

    A shard that differs only in its modification time may be a copy. It is one if ``read_ends()``
    returns ``ends``; the first copy of a folder is logged.

    >>> compare("a.tar", ShardStamp(1024, 5), ShardStamp(1024, 5))
    >>> compare("a.tar", ShardStamp(1024), ShardStamp(2048, 5))
    Traceback (most recent call last):
    penstock.errors.StaleIndexError: the index is stale: the shard has 2,048 bytes, not 1,024; ...
    """
    if _differ(expected.size_bytes, found.size_bytes):
        how = f"the shard has {found.size_bytes:,} bytes, not {expected.size_bytes:,}"
    elif _differ(expected.etag, found.etag):
        how = f"the shard has the ETag {found.etag}, not {expected.etag}"
    elif not _differ(expected.mtime_ns, found.mtime_ns):
        return
    elif ends is None:
        how = "the shard has another modification time, and the index cannot tell if it is a copy"
    elif read_ends() == ends:
        notice_copy(url)
        return
    else:
        how = "the shard has the same size, but other content and another modification time"
    raise StaleIndexError(
        f"the index is stale: {how}; run 'penstock index' over the shards again",
        origin=Origin(url),
    )


def _differ(want: Any, have: Any) -> bool:
    return want is not None and have is not None and want != have


_copies: set[str] = set()  # folders for which it was logged


def notice_copy(url: str) -> None:
    """Log that a shard is accepted as a copy, once for its folder."""
    folder = os.path.dirname(canonical_url(url))
    if folder not in _copies:
        _copies.add(folder)
        logger.warning(
            "shards were copied, or touched, after their index was made: they have another "
            "modification time, but the same size, beginning and end, and are accepted (%s, "
            "perhaps others); 'penstock index' updates the index",
            redact(url),
        )
