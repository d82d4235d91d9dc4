"""``webdataset.shardlists``: lists of shards, and how they are split."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

from penstock import env
from penstock.compat.curried import Plain, pipelinefilter
from penstock.compat.left_out import LeftOut, WarningModule
from penstock.compat.splitlists import PytorchShardList, ShardList
from penstock.errors import UrlError
from penstock.stages.sources.directory_queue import DirectoryShardList
from penstock.stages.sources.resampled_shards import ResampledShards, non_empty, resampled
from penstock.stages.sources.shard_list import SimpleShardList
from penstock.stages.sources.split import single_node_only, split_by_node, split_by_worker
from penstock.storage.urls import expand_urls

MSSource = LeftOut("MSSource")
MultiShardSample = LeftOut("MultiShardSample")
ResampledShardList = ResampledShards
resampled_ = Plain(resampled)


def envlookup(m: re.Match[str]) -> str:
    """Return the variable ``WDS_X`` for a match of ``X``; raise if it is not set."""
    value = env.text(f"WDS_{m[1]}")
    if value is None:
        raise UrlError(f"{m[0]} needs the variable WDS_{m[1]}, which is not set")
    return value


def envsubst(s: str) -> str:
    """Return the string with every ``${X}`` replaced by the variable ``WDS_X``.

    >>> envsubst("no variables")
    'no variables'
    """
    return re.sub(r"\$\{(\w+)\}", envlookup, s)


def expand(s: str) -> str:
    """Return a path with ``~`` and environment variables expanded."""
    return os.path.expanduser(os.path.expandvars(s))


def expand_source(source: str | Iterable[Any], max_urls: int = int(1e9)) -> list[Any]:
    """Return the URLs of a string, or the first ``max_urls`` items of anything else.

    >>> expand_source("a-{0..1}.tar")
    ['a-0.tar', 'a-1.tar']
    """
    return expand_urls(source) if isinstance(source, str) else list(islice(source, max_urls))


def shardspec(spec: str) -> SimpleShardList:
    """Return the shard list of a string.

    >>> len(shardspec("a-{0..1}.tar"))
    2
    """
    return SimpleShardList(spec)


def all_urls(urls: Iterable[str]) -> list[str]:
    """Return all URLs, on every worker."""
    return list(urls)


def worker_urls(urls: Iterable[str]) -> list[str]:
    """Return the URLs that belong to this worker."""
    return list(split_by_worker(urls))


def without_last_extension(fname: str) -> str:
    """Return the name up to its last dot.

    >>> without_last_extension("a.tar.gz")
    'a.tar'
    """
    return re.sub(r"\.[^.]*$", "", fname)


def get_pid_from_filename(fname: str) -> int | None:
    """Return the process that has claimed a shard of a :class:`~penstock.DirectoryShardList`.

    >>> get_pid_from_filename("a.tar._12_")
    12
    """
    match = re.fullmatch(r".*\._(\d+)_", fname, re.DOTALL)
    return int(match[1]) if match else None


def check_pid_is_running(pid: int) -> bool:
    """Return whether this machine has a process with this id.

    >>> check_pid_is_running(os.getpid())
    True
    """
    if sys.platform == "win32":  # os.kill would end the process there
        raise NotImplementedError("processes cannot be looked up on Windows")
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


sys.modules[__name__].__class__ = WarningModule

__all__ = [
    "DirectoryShardList",
    "MSSource",
    "MultiShardSample",
    "PytorchShardList",
    "ResampledShardList",
    "ResampledShards",
    "ShardList",
    "SimpleShardList",
    "all_urls",
    "check_pid_is_running",
    "envlookup",
    "envsubst",
    "expand",
    "expand_source",
    "expand_urls",
    "get_pid_from_filename",
    "non_empty",
    "pipelinefilter",
    "resampled",
    "resampled_",
    "shardspec",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
    "without_last_extension",
    "worker_urls",
]
