"""The fluent data set: shards in, samples out, and every stage a method."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from penstock.batches.planning.planned_samples import Plan, PlannedSamples
from penstock.errors import PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.shards.sample_reader import Sample
from penstock.stages.sources.indexed_samples import WINDOW, IndexedSamples
from penstock.stages.reading.tar_samples import tarfile_to_samples
from penstock.stages.sources.resampled_shards import ResampledShards
from penstock.stages.sources.shard_list import SimpleShardList, Urls
from penstock.stages.shuffle import detshuffle as detshuffle_stage
from penstock.stages.shuffle import shuffle
from penstock.stages.sources.split import single_node_only, split_by_node, split_by_worker
from penstock.stages.stage import Source
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import Patience


class WebDataset(DataPipeline[Sample]):
    """The samples of tar shards.

    ``urls``: a string (``"train-{000..099}.tar"``, several joined by ``::``), a list, a folder
    ending in ``/``, or a shard list (one that gives every rank and worker its own shards is not
    split again). In this order the pipeline shuffles the shards
    (``shardshuffle``: how many to shuffle among), deals them out to ranks (``nodesplitter``) and
    workers (``workersplitter``), and reads them. ``resampled=True`` draws shards without end
    instead. ``handler`` decides what happens with shards that cannot be read.
    ``repeat=True`` repeats the shards without end.

    Shards that come over a network are kept in the folder ``cache_dir`` (or ``WDS_CACHE``), which
    all processes of a machine share and which takes ``cache_size`` bytes at most (-1:
    ``WDS_CACHE_SIZE``, or no limit); ``url_to_name`` gives the readable part of their file names.
    See :class:`penstock.storage.cache.shard_cache.ShardCache`. ``patience`` says for how long to put up with a
    server that fails: retries, pauses and time-outs, as
    a :class:`~penstock.storage.client.retry_policy.Patience`.

    With ``index`` (True, or what :func:`penstock.shards.index.open_index` takes) the order is decided
    before reading: ``shardshuffle`` is then the number of shards whose samples are mixed (True:
    16), no buffer is needed, every sample reaches exactly one rank and worker however many there
    are, and ``ends`` and ``exclude`` are as in :class:`~penstock.IndexedSamples`. ``lanes`` is
    the number of parts that the order is dealt into, which ranks share, so that a run can go on
    with another number of ranks that divides it; every stage then runs once per lane.
    ``plan`` (a :class:`~penstock.Plan`) reads the samples batch by batch, each batch of like
    lengths and within a budget; the stage ``planned`` collects them.

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
        cache_size: float = -1,
        cache_dir: str | os.PathLike[str] | ShardCache | None = None,
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
        index: Any = None,
        lanes: int | None = None,
        ends: str | None = None,
        exclude: Iterable[str] | Callable[[str], bool] | None = None,
        plan: Plan | None = None,
        patience: Patience | None = None,
    ) -> None:
        super().__init__(seed=seed, lanes=lanes)
        if mode not in (None, "resampled"):
            raise PipelineError(f"WebDataset: mode is None or 'resampled', not {mode!r}")
        resampled = resampled or mode == "resampled"
        cache = ShardCache.of(cache_dir, cache_size, url_to_name)
        kept: dict[str, Any] = {} if cache is None else {"cache": cache}
        if patience is not None:
            kept["patience"] = patience
        if index is not None and index is not False:
            refused = {
                "resampled": resampled,
                "detshuffle": detshuffle,
                "select_files": select_files,
                "rename_files": rename_files,
                "concatenated": concatenated,
                "verbose": verbose,
                "nodesplitter": nodesplitter not in (None, single_node_only, split_by_node),
                "workersplitter": workersplitter not in (None, split_by_worker),
            }
            if without_meaning := [name for name, given in refused.items() if given]:
                raise PipelineError(
                    f"WebDataset: {', '.join(without_meaning)} cannot be had together with index="
                )
            self._add_indexed(urls, index, shardshuffle, ends, exclude, handler, kept, plan)
            if repeat:
                self.repeat()
            return
        if ends is not None or exclude is not None or plan is not None:
            raise PipelineError("WebDataset: ends, exclude and plan need an index: say index=True")
        shards = self._shards(urls, resampled, seed)
        self.append(shards)
        if getattr(shards, "splits", False):
            nodesplitter = workersplitter = None
        if resampled and (shardshuffle or detshuffle):
            warnings.warn(
                "WebDataset: shards that are drawn at random need no shardshuffle or detshuffle",
                stacklevel=2,
            )
        if detshuffle and not shardshuffle:
            raise PipelineError("WebDataset: detshuffle needs shardshuffle=N")
        if not resampled:
            self._add_order(shardshuffle, detshuffle, seed, nodesplitter, workersplitter)
        if repeat:
            self.repeat()
        if verbose:
            from penstock.stages.inspect import info

            self.append(info(name="shards", n=1 << 62, fmt="# reading {url}"))
        if concatenated:
            kept["concatenated"] = True
        self.append(
            tarfile_to_samples(
                handler,
                select_files,
                rename_files,
                empty_check=empty_check,
                local_paths=True,
                **kept,
            )
        )

    def _add_indexed(
        self,
        urls: Any,
        index: Any,
        shardshuffle: Any,
        ends: Any,
        exclude: Any,
        handler: Handler,
        kept: dict[str, Any],
        plan: Plan | None,
    ) -> None:
        options: dict[str, Any] = {"exclude": exclude, "handler": handler, "local_paths": True}
        options |= {"ends": ends, **kept}
        window = WINDOW if shardshuffle is True else int(shardshuffle or 0)
        if plan is None:
            self.append(IndexedSamples(urls, index, window=window, **options))
        else:
            # Planned batches are of random company; reading in order has to be asked for.
            window = WINDOW if shardshuffle is None else window
            self.append(PlannedSamples(urls, index, plan=plan, window=window, **options))
        self._give_length()

    def _shards(self, urls: Any, resampled: bool, seed: int | None) -> Source[Any]:
        if isinstance(urls, (Source, DataPipeline)) or _is_torch_dataset(urls):
            if resampled and not getattr(urls, "splits", False):
                raise PipelineError(
                    "WebDataset: resampled=True draws from URLs, not from a shard list: "
                    "give the URLs, or a ResampledShards"
                )
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


class FluidWrapper(DataPipeline[Any]):
    """Any iterable as a pipeline, with every stage as a method.

    >>> list(FluidWrapper([1, 2, 3]).map(lambda x: x + 1))
    [2, 3, 4]
    """

    def __init__(self, initial: Any) -> None:
        super().__init__()
        self.append(initial)
