"""Write samples to tar shards.

The input is samples: dicts with ``__key__`` and fields, as values or bytes.
:mod:`penstock.codecs` encodes the values; the bytes of a shard go to :mod:`penstock.storage`, where
the shard appears under its name only when it is complete.

::

    shard_writer.py    ShardWriter: samples → numbered shards
    tar_writer.py      TarWriter: samples → one shard
    shard_names.py     which keys and fields read back unchanged
    tar_headers.py     the 512-byte headers: ustar, GNU and PAX
    compression.py     gz, bz2, xz, zst, lz4, by the shard's name or by choice
    index_on_write.py  the index of the shards, recorded while they are written

The same samples produce the same bytes.
"""

from __future__ import annotations

from penstock.shards.writing.shard_writer import ShardWriter
from penstock.shards.writing.tar_writer import TarWriter

__all__ = ["ShardWriter", "TarWriter"]
