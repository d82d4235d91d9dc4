"""``webdataset.tariterators``: reads samples from shards, in one step or in three."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from penstock.compat.members import (
    Rename,
    Select,
    group_by_keys,
    meta_prefix,
    meta_suffix,
    tar_file_expander,
    tar_file_iterator,
    tarfile_samples,
    url_opener,
    valid_sample,
)
from penstock.handlers import Handler, reraise_exception
from penstock.shards.sample_reader import Sample, base_plus_ext
from penstock.stages.reading.tar_samples import tarfile_to_samples
from penstock.stages.sources.shard_list import Shard, Urls
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.urls import expand_urls

trace = False


def shardlist(urls: Urls, *, shuffle: bool = False) -> Iterator[Shard]:
    """Yield the shards of ``urls``, in random order if ``shuffle`` is true.

    >>> list(shardlist("a-{0..1}.tar"))
    [{'url': 'a-0.tar'}, {'url': 'a-1.tar'}]
    """
    found = expand_urls(urls)
    if shuffle:
        random.shuffle(found)
    for url in found:
        yield {"url": url}


def cached_tarfile_to_samples(
    handler: Handler = reraise_exception,
    verbose: bool = False,
    cache_size: float = -1,
    cache_dir: str | None = None,
    select_files: Select | None = None,
    rename_files: Rename | None = None,
) -> tarfile_to_samples:
    """Return ``tarfile_to_samples`` with a cache of remote shards in ``cache_dir``."""
    cache = ShardCache.of(cache_dir, cache_size)
    return tarfile_to_samples(handler, select_files, rename_files, cache=cache)


maybe_cached_tarfile_to_samples = cached_tarfile_to_samples


def cached_tarfile_samples(src: Any, *args: Any, **kw: Any) -> Iterator[Sample]:
    """Run :func:`cached_tarfile_to_samples` on a shard list."""
    return cached_tarfile_to_samples(*args, **kw)(src)


__all__ = [
    "base_plus_ext",
    "cached_tarfile_samples",
    "cached_tarfile_to_samples",
    "group_by_keys",
    "maybe_cached_tarfile_to_samples",
    "meta_prefix",
    "meta_suffix",
    "shardlist",
    "tar_file_expander",
    "tar_file_iterator",
    "tarfile_samples",
    "tarfile_to_samples",
    "trace",
    "url_opener",
    "valid_sample",
]
