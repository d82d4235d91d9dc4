"""Keep remote shards on the local disk, within a size limit, shared by all processes of a machine.

A URL comes in; a stream comes out, either of a file in the cache or of a shard that is read while
it is downloaded. The sources are opened by :mod:`penstock.storage.schemes`.

- ``shard_cache``: the cache that users see; it decides which shard comes from where.
- ``cache_dir``: the folder: names, metadata, locks, and eviction: which shards are deleted to make
  space.
- ``download``: the thread that downloads a shard; ``following_reader``: reads a shard meanwhile.
"""

from __future__ import annotations

from penstock.storage.cache.shard_cache import ShardCache

__all__ = ["ShardCache"]
