"""The fluent data set: shards in, samples out, and every stage a method."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from penstock.errors import PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.pipeline.pipeline import DataPipeline
from penstock.shards.samples import Sample
from penstock.stages.read import tarfile_to_samples
from penstock.stages.resample import ResampledShards
from penstock.stages.shardlist import SimpleShardList, Urls
from penstock.stages.shuffle import detshuffle as detshuffle_stage
from penstock.stages.shuffle import shuffle
from penstock.stages.split import single_node_only, split_by_worker
from penstock.stages.stage import Source
from penstock.urls import local_path


class WebDataset(DataPipeline[Sample]):
    """The samples of tar shards.

    ``urls``: a string (``"train-{000..099}.tar"``, several joined by ``::``), a list, a folder
    ending in ``/``, or a shard list (one that gives every rank and worker its own shards is not
    split again). In this order the pipeline shuffles the shards
    (``shardshuffle``: how many to shuffle among), deals them out to ranks (``nodesplitter``) and
    workers (``workersplitter``), and reads them. ``resampled=True`` draws shards without end
    instead. ``handler`` decides what happens with shards that cannot be read.
    ``repeat=True`` repeats the shards without end.

    >>> import penstock as wds
    >>> dataset = wds.WebDataset("train-{000..099}.tar", shardshuffle=100).shuffle(1000).decode()
    >>> print(dataset.describe())
    SimpleShardList('train-{000..099}.tar')
      shuffle(100)
      single_node_only()
      split_by_worker()
      tarfile_to_samples(empty_check=True, local_paths=True)
      shuffle(1000)
      decode()
    """

    def __init__(
        self,
        urls: Urls | Source[Any],
        handler: Handler = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: int | bool | None = None,
        cache_size: int = -1,
        cache_dir: str | None = None,
        url_to_name: Callable[[str], str] | None = None,
        detshuffle: bool = False,
        nodesplitter: Any = single_node_only,
        workersplitter: Any = split_by_worker,
        select_files: Callable[[str], bool] | None = None,
        rename_files: Callable[[str], str] | None = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: int | None = None,
        *,
        concatenated: bool = False,
    ) -> None:
        super().__init__(seed=seed)
        if mode not in (None, "resampled"):
            raise PipelineError(f"WebDataset: mode is None or 'resampled', not {mode!r}")
        resampled = resampled or mode == "resampled"
        shards = self._shards(urls, resampled, seed)
        if cache_dir is not None or cache_size >= 0 or url_to_name is not None:
            _refuse_cache(shards)
        self.append(shards)
        if getattr(shards, "splits", False):
            nodesplitter = workersplitter = None
        if not resampled:
            self._add_order(shardshuffle, detshuffle, seed, nodesplitter, workersplitter)
        if repeat:
            self.repeat()
        if verbose:
            from penstock.stages.inform import info

            self.append(info(name="shards", n=1 << 62, fmt="# reading {url}"))
        self.append(
            tarfile_to_samples(
                handler,
                select_files,
                rename_files,
                empty_check=empty_check,
                local_paths=True,
                **({"concatenated": True} if concatenated else {}),
            )
        )

    def _shards(self, urls: Any, resampled: bool, seed: int | None) -> Source[Any]:
        if isinstance(urls, (Source, DataPipeline)) or _is_torch_dataset(urls):
            return urls  # type: ignore[no-any-return]
        if resampled:
            return ResampledShards(urls, seed=seed or 0)
        return SimpleShardList(urls)

    def _add_order(
        self,
        shardshuffle: int | bool | None,
        detshuffle: bool,
        seed: int | None,
        nodesplitter: Any,
        workersplitter: Any,
    ) -> None:
        count = 100 if shardshuffle is True else int(shardshuffle or 0)
        if count > 1 and detshuffle:
            self.append(detshuffle_stage(count, seed=seed or 0))
        elif count > 1:
            self.append(shuffle(count) if seed is None else shuffle(count, seed=seed))
        for splitter in (nodesplitter, workersplitter):
            if splitter:
                self.append(splitter)


def _is_torch_dataset(value: Any) -> bool:
    """A shard list of the user's own, in torch's form; torch is asked only where it is in use."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(value, torch_data.IterableDataset)


def _refuse_cache(shards: Any) -> None:
    """Shards on local disk are never cached; a cache for the others does not exist yet."""
    if any(local_path(url) is None for url in getattr(shards, "urls", [""])):
        raise PipelineError(
            "WebDataset: cache_dir, cache_size and url_to_name are for shards read over a network, "
            "and that cache is not there yet; leave them out"
        )


class FluidWrapper(DataPipeline[Any]):
    """Any iterable as a pipeline, with every stage as a method.

    >>> list(FluidWrapper([1, 2, 3]).map(lambda x: x + 1))
    [2, 3, 4]
    """

    def __init__(self, initial: Any) -> None:
        super().__init__()
        self.append(initial)


