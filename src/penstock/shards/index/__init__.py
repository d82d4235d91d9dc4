"""The index of a data set: the position of every sample, for random access to tar shards.

The input is shards (:mod:`penstock.shards`) and, for columns, the values in them
(:mod:`penstock.codecs`); the output is one Parquet file, and from it single samples in any order.

::

    shard_stamps.py     the version of a shard: size, and time or ETag
    scan.py             one shard → rows
    columns.py          the user's columns: FIELD:MEASURE or a function
    parquet_schema.py   rows ↔ Parquet
    checksum.py         the checksum of the index file
    build.py            many shards → one file
    part_files.py       one file per shard, until the index is complete
    row_source.py       the rows of a file or of a table in memory
    keys_and_fields.py  keys and fields in flat arrays
    packed_strings.py   many strings in two buffers
    index.py            Index: the data set in memory
    default_path.py     which file is the index of a set of shards
    resolve.py          open_index: the argument index= → an Index
    sidecars.py         DALI's index files
    random_access.py    SampleReader: row → sample
    where.py            the expression language of where=: index → rows
    subset.py           where=, keys=, fraction=, fold=, exclude=: index → the rows that are read
    join.py             Join: fields of other shards, by key
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.shards.index.build import build_index
    from penstock.shards.index.index import Index
    from penstock.shards.index.join import Join
    from penstock.shards.index.parquet_schema import IndexedShard
    from penstock.shards.index.random_access import SampleReader
    from penstock.shards.index.resolve import default_index_path, open_index
    from penstock.shards.index.subset import Fold, Subset

_PUBLIC = {
    "build_index": "build",
    "Index": "index",
    "Join": "join",
    "IndexedShard": "parquet_schema",
    "SampleReader": "random_access",
    "default_index_path": "resolve",
    "open_index": "resolve",
    "Fold": "subset",
    "Subset": "subset",
}
"""Name → the module that defines it, which is imported on first use, with numpy and pyarrow."""

__all__ = [
    "Fold",
    "Index",
    "IndexedShard",
    "Join",
    "SampleReader",
    "Subset",
    "build_index",
    "default_index_path",
    "open_index",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'penstock.shards.index' has no attribute {name!r}")
    module = importlib.import_module(f"penstock.shards.index.{_PUBLIC[name]}")
    value = globals()[name] = getattr(module, name)
    return value
