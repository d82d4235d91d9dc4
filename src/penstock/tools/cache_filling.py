"""Fetch shards into the shard cache before they are needed."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from penstock.errors import PipelineError
from penstock.redact import redact
from penstock.storage.cache.following_reader import FollowingReader
from penstock.storage.cache.shard_cache import CachedShard, ShardCache
from penstock.tools.inputs import Shards, list_shards

READ_BYTES = 1 << 20
JOBS = 4


@dataclasses.dataclass(frozen=True)
class CachedFile:
    """A shard that was to be put into the cache."""

    url: str
    bytes: int
    state: str
    """``"fetched"``, ``"there"``: it was there already, or ``"not cached"``: a local file, or too
    large for the cache."""

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return dataclasses.asdict(self)


def cache_add(
    shards: Shards,
    *,
    cache_dir: Any = None,
    list_file: str | None = None,
    jobs: int | None = None,
) -> Iterator[CachedFile]:
    """Fetch shards into the cache, ``jobs`` at once, and yield each when it is complete.

    ``cache_dir`` is a folder, a ShardCache, or None: the folder that ``WDS_CACHE`` names.

    >>> import tempfile
    >>> [file.bytes for file in cache_add("pipe:echo hello", cache_dir=tempfile.mkdtemp())]
    [6]
    """
    cache = ShardCache.of(cache_dir)
    if cache is None:
        raise PipelineError("which cache? say --cache-dir FOLDER, or set WDS_CACHE")
    urls = list_shards(shards, list_file)
    with ThreadPoolExecutor(min(jobs or JOBS, len(urls)), "penstock-cache-add") as pool:
        stop = threading.Event()
        futures = [pool.submit(_fetch, cache, url, stop) for url in urls]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _fetch(cache: ShardCache, url: str, stop: threading.Event) -> CachedFile:
    size = 0
    with cache.open(url) as stream:
        kinds = {FollowingReader: "fetched", CachedShard: "there"}
        state = next(
            (word for kind, word in kinds.items() if isinstance(stream, kind)), "not cached"
        )
        while not stop.is_set() and (data := stream.read(READ_BYTES)):
            size += len(data)
    return CachedFile(redact(url), size, state)
