"""``webdataset.shardcache``: a cache of remote shards."""

from __future__ import annotations

from penstock.compat.left_out import LeftOut

CacheStream = LeftOut("CacheStream")
cache_shards = LeftOut("cache_shards")

__all__ = ["CacheStream", "cache_shards"]
