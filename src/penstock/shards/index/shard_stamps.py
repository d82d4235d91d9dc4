"""What tells one version of a shard from another: its size, and its time or ETag."""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.errors import Origin, PipelineError, StaleIndexError
from penstock.redact import shown
from penstock.storage import open_url
from penstock.storage.urls import local_path, rewrite_url, scheme_of


class Stamp(NamedTuple):
    """A shard's size and time of change, None where the place does not tell."""

    size_bytes: int | None
    mtime_ns: int | None = None
    etag: str | None = None


def stamp_of(url: str) -> Stamp:
    """The stamp of the shard as it is now; a shard that is not there is a StorageError."""
    refuse_streams(url)
    path = local_path(rewrite_url(url))
    if path is not None:
        try:
            return stamp_from(os.stat(path))
        except OSError:
            pass  # opening it says what is wrong in the library's words
    with open_url(url) as stream:
        return Stamp(getattr(stream, "size_bytes", None), etag=getattr(stream, "etag", None))


def stamp_from(status: os.stat_result) -> Stamp:
    """The stamp of a local file."""
    return Stamp(status.st_size, status.st_mtime_ns)


def refuse_streams(url: str) -> None:
    """Raise unless the shard is of a kind that can be read again at any place."""
    if url == "-" or scheme_of(url) == "pipe":
        raise PipelineError(
            f"an index needs shards that can be read at any place, not {shown(url)!r}: "
            "copy the shard to a file, or read it without index="
        )


def compare(url: str, expected: Stamp, found: Stamp) -> None:
    """Raise :class:`~penstock.errors.StaleIndexError` unless the stamps can be of one version.

    >>> compare("a.tar", Stamp(1024, 5), Stamp(1024, 5))
    >>> compare("a.tar", Stamp(1024), Stamp(2048, 5))
    Traceback (most recent call last):
    penstock.errors.StaleIndexError: the index is stale: it expects size_bytes 1024, but ...
    """
    for name, want, have in zip(Stamp._fields, expected, found):
        if want is not None and have is not None and want != have:
            raise StaleIndexError(
                f"the index is stale: it expects {name} {want}, but the shard has {have}; "
                "the shard was changed since: run 'penstock index' over the shards again",
                origin=Origin(url),
            )
