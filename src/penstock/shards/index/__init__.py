"""Where every sample is: the index of a data set, which makes tar shards random access.

In come shards (:mod:`penstock.shards`) and, for columns, the values in them
(:mod:`penstock.codecs`); out goes one Parquet file, and from it single samples in any order.

::

    stamps.py    which version of a shard was read
    scan.py      one shard → rows              columns.py  the user's own columns
    layout.py    rows ↔ Parquet                build.py    many shards → one file
    table.py     rows of a file or of memory   details.py  keys and fields, compact
    index.py     Index: the data set in memory
    opening.py   open_index: what a user gives as index=
    sidecars.py  files of other tools: wids, sizes.json, Energon, DALI
    reading.py   SampleReader: row → sample
"""

from __future__ import annotations

from penstock.shards.index.build import build_index
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import IndexedShard
from penstock.shards.index.resolve import default_index_path, open_index
from penstock.shards.index.random_access import SampleReader

__all__ = [
    "Index",
    "IndexedShard",
    "SampleReader",
    "build_index",
    "default_index_path",
    "open_index",
]
