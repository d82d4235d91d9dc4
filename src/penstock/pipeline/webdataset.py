"""The fluent data set: shards in, samples out, and every stage a method."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock.batches.planning.planned_samples import Plan, PlannedSamples
from penstock.errors import PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.mixture import mix_sources
from penstock.pipeline.spec import Spec, is_spec, load_spec
from penstock.shards.index import Fold, Join
from penstock.shards.sample_reader import Sample
from penstock.stages.reading.tar_samples import tarfile_to_samples
from penstock.stages.shuffle import detshuffle as detshuffle_stage
from penstock.stages.shuffle import shuffle
from penstock.stages.sources.indexed_samples import WINDOW, IndexedSamples
from penstock.stages.sources.resampled_shards import ResampledShards
from penstock.stages.sources.shard_list import SimpleShardList, Urls
from penstock.stages.sources.split import single_node_only, split_by_node, split_by_worker
from penstock.stages.stage import Source
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import RetryPolicy


class WebDataset(DataPipeline[Sample]):
    """The samples of tar shards.

    ``urls``: a string (``"train-{000..099}.tar"``, several joined by ``::``), a list, a folder
    ending in ``/``, or a shard list (one that already splits shards between ranks and workers is
    not split again). In this order the pipeline shuffles the shards (``shardshuffle``: how many to
    shuffle among), distributes them to ranks (``nodesplitter``) and workers (``workersplitter``),
    and reads them. ``resampled=True`` draws shards without end instead. ``handler`` decides what
    happens with shards that cannot be read. ``repeat`` is accepted and has no effect, as in
    WebDataset 1.0.2: call ``.repeat()``.

    Shards that come over a network are kept in the folder ``cache_dir`` (or ``WDS_CACHE``), which
    all processes of a machine share and which takes ``cache_size`` bytes at most (-1:
    ``WDS_CACHE_SIZE``, or no limit); ``url_to_name`` returns the readable part of their file names.
    See :class:`penstock.storage.cache.shard_cache.ShardCache`. ``patience`` sets retries, pauses
    and time-outs for failing servers, as a
    :class:`~penstock.storage.client.retry_policy.RetryPolicy`.

    With ``index`` (True, or what :func:`penstock.shards.index.open_index` takes) the order is
    decided before reading. ``shardshuffle`` is then the number of shards whose samples are mixed
    (True: 16), no buffer is needed, and every sample reaches exactly one rank and worker however
    many there are. ``ends``, and the arguments that choose samples before reading (``where``,
    ``keys``, ``fraction``, ``fold``, ``exclude``), are as in :class:`~penstock.IndexedSamples`.
    ``lanes`` is the number of parts that the order is split into. Ranks share them, so that a run
    can resume with another number of ranks that divides it; every stage then runs once per lane.
    ``join`` adds fields of other shards to the samples with the same keys: a
    :class:`~penstock.Join`, or several.
    ``plan`` (a :class:`~penstock.Plan`) reads the samples batch by batch, each batch of similar
    lengths and within a budget; the stage ``planned`` collects them.

    ``group="dashed"`` reads interleaved documents, whose images are members ``KEY-NAME.jpg`` after
    ``KEY.json``: see :mod:`penstock.documents`. An index must have been made with the same group.

    ``urls`` may also be a spec: a YAML or JSON file, a dict, or what :func:`~penstock.load_spec`
    returns. Its sources are mixed (see :func:`~penstock.mix`), and each sample has the name of its
    source as ``__source__`` and the source's other keys as ``__tags__``. ``split`` chooses one of
    the spec's splits, ``allow_pipe`` permits commands in it. All other arguments hold for every
    source.

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
        urls: Urls | Source[Any] | Spec | Mapping[str, Any],
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
        where: str | None = None,
        keys: Iterable[str] | str | os.PathLike[str] | None = None,
        fraction: float | None = None,
        fold: Fold | None = None,
        exclude: Iterable[str] | Callable[[str], bool] | None = None,
        join: Join | Sequence[Join] = (),
        plan: Plan | None = None,
        patience: RetryPolicy | None = None,
        group: str = "key",
        split: str | None = None,
        allow_pipe: bool = False,
    ) -> None:
        super().__init__(seed=seed, lanes=lanes)
        if is_spec(urls):
            own: dict[str, Any] = {"where": where, "keys": keys, "fraction": fraction}
            own |= {"fold": fold, "join": join or None, "plan": plan}
            if given := [name for name, value in own.items() if value is not None]:
                raise PipelineError(
                    f"WebDataset: {', '.join(given)} cannot be combined with a spec: write it "
                    "in the spec"
                )
            options = {
                **{"handler": handler, "mode": mode, "resampled": resampled, "repeat": repeat},
                **{"shardshuffle": shardshuffle, "cache_size": cache_size, "cache_dir": cache_dir},
                **{"url_to_name": url_to_name, "detshuffle": detshuffle, "verbose": verbose},
                **{"nodesplitter": nodesplitter, "workersplitter": workersplitter},
                **{"select_files": select_files, "rename_files": rename_files},
                **{"empty_check": empty_check, "concatenated": concatenated, "ends": ends},
                **{"exclude": exclude, "patience": patience, "index": index, "group": group},
            }
            self._add_spec(load_spec(urls, split=split, allow_pipe=allow_pipe), options)
            return
        if split is not None:
            raise PipelineError("WebDataset: split= chooses one of the splits of a spec")
        if mode not in (None, "resampled"):
            raise PipelineError(f"WebDataset: mode is None or 'resampled', not {mode!r}")
        resampled = resampled or mode == "resampled"
        if repeat:
            warnings.warn(
                "WebDataset: repeat=True has no effect, as in WebDataset 1.0.2: each iteration is "
                "one pass; call .repeat() to repeat the data without end",
                stacklevel=2,
            )
        cache = ShardCache.of(cache_dir, cache_size, url_to_name)
        kept: dict[str, Any] = {} if cache is None else {"cache": cache}
        if patience is not None:
            kept["patience"] = patience
        if group != "key":
            kept["group"] = group
        choice = {"where": where, "keys": keys, "fraction": fraction, "fold": fold}
        chosen = {"ends": ends, **choice, "exclude": exclude, "join": join or None}
        chosen = {name: given for name, given in chosen.items() if given is not None}
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
                    f"WebDataset: {', '.join(without_meaning)} cannot be combined with index="
                )
            self._add_indexed(urls, index, shardshuffle, {**chosen, **kept}, handler, plan)
            return
        if needs_index := [*chosen, *([] if plan is None else ["plan"])]:
            raise PipelineError(
                f"WebDataset: {', '.join(needs_index)} cannot be had without an index: say "
                "index=True"
            )
        shards = self._shards(urls, resampled, seed)
        self.append(shards)
        if getattr(shards, "splits", False):
            nodesplitter = workersplitter = None
        if resampled and (shardshuffle or detshuffle):
            warnings.warn(
                "WebDataset: shards that are drawn at random need no shardshuffle or detshuffle",
                stacklevel=2,
            )
        if detshuffle and shardshuffle is None and not resampled:
            warnings.warn(
                "WebDataset: detshuffle=True has no effect without shardshuffle=N: say how many "
                "shards to shuffle among, or shardshuffle=False",
                stacklevel=2,
            )
        if not resampled:
            self._add_order(shardshuffle, detshuffle, seed, nodesplitter, workersplitter)
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

    def _add_spec(self, spec: Spec, options: dict[str, Any]) -> None:
        if spec.pipeline is not None:
            self.append(spec.pipeline)
            return
        if spec.needs_index and not options["index"]:
            options = {**options, "index": True}
        mixed = self._mixed(spec, options)
        self.pipeline.extend(mixed.pipeline)
        if options["index"]:
            self._give_length()

    def _mixed(self, spec: Spec, options: dict[str, Any]) -> DataPipeline[Any]:
        sources: dict[str, Any] = {}
        for source in spec.sources:
            if source.inner is not None:
                sources[source.name] = self._mixed(source.inner, options)
                continue
            dataset: Any = WebDataset(source.shards, **options, **source.subset, join=source.join)
            if isinstance(samples := dataset.pipeline[0], IndexedSamples):
                samples.subset = dataclasses.replace(samples.subset, positions=source.positions)
            sources[source.name] = dataset
        tags = [source.tags for source in spec.sources]
        weights, mode = spec.weights, spec.mode
        return mix_sources(sources, weights, mode=mode, until=spec.until, tags=tags)

    def _add_indexed(
        self,
        urls: Any,
        index: Any,
        shardshuffle: Any,
        options: dict[str, Any],
        handler: Handler,
        plan: Plan | None,
    ) -> None:
        options = {**options, "handler": handler, "local_paths": True}
        window = WINDOW if shardshuffle is True else int(shardshuffle or 0)
        if plan is None:
            self.append(IndexedSamples(urls, index, window=window, **options))
        else:
            # Planned batches mix samples at random; reading in order must be requested.
            window = WINDOW if shardshuffle is None else window
            self.append(PlannedSamples(urls, index, plan=plan, window=window, **options))
        self._give_length()

    def _shards(self, urls: Any, resampled: bool, seed: int | None) -> Source[Any]:
        if isinstance(urls, (Source, DataPipeline)) or _is_torch_dataset(urls):
            if resampled and not getattr(urls, "splits", False):
                raise PipelineError(
                    "WebDataset: resampled=True draws from URLs, not from a shard list: "
                    "pass the URLs, or a ResampledShards"
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
    """Return whether a value is a torch dataset used as a shard list; torch is never imported
    here."""
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
