"""Tar shards from samples.

In come samples: dicts with ``__key__`` and fields, values or ready bytes. Values become bytes by
the left-hand neighbour, :mod:`penstock.codecs`; the bytes of a shard go to
:mod:`penstock.storage`, which shows it under its name only when it is complete.

::

    sharding.py     ShardWriter: samples → numbered shards
    writer.py       TarWriter: samples → one shard
    names.py        what may be a key or a field, so that reading gives it back
    headers.py      the 512-byte headers, ustar, GNU and PAX
    compression.py  gz, bz2, xz, zst, lz4, by the shard's name or by choice

The same samples give the same bytes.
"""

from __future__ import annotations

from penstock.shards.writing.shard_writer import ShardWriter
from penstock.shards.writing.tar_writer import TarWriter

__all__ = ["ShardWriter", "TarWriter"]
