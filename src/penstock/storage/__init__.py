"""Bytes from anywhere, and to anywhere.

In comes one URL (the left-hand neighbour, :mod:`penstock.storage.urls`, made it out of what the user
wrote); out goes a stream of bytes, which the right-hand neighbour, :mod:`penstock.shards`, reads
samples from or writes them to. One file per kind of place; :data:`SCHEMES` says which. What is
written appears under its name only when it is complete, and what ends early is an error, never a
short shard.
"""

from __future__ import annotations

from penstock.storage.local.files import AtomicFile, MissingFile
from penstock.storage.schemes import SCHEMES, Opener, gopen, gopen_schemes, open_url
from penstock.storage.streams import ReadStream, WriteStream

__all__ = [
    "SCHEMES",
    "AtomicFile",
    "MissingFile",
    "Opener",
    "ReadStream",
    "WriteStream",
    "gopen",
    "gopen_schemes",
    "open_url",
]
