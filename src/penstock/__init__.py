"""penstock feeds accelerators with training data that lives in tar shards.

The way of the data, a folder each:

    urls → storage → shards → codecs → stages → batches → pipeline → loaders
    what   bytes     samples  values   order,    many      stages     to the
    the    from      from     from     change,   into      in a       trainer,
    user   anywhere  tar      bytes    select    one       row        in time
    wrote

``import penstock as wds`` runs code written for WebDataset. Names are loaded when first used:
importing penstock imports neither numpy nor torch.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "penstock.pipeline.pipeline": ["DataPipeline"],
    "penstock.pipeline.webdataset": ["WebDataset", "FluidWrapper"],
    "penstock.loaders.webloader": ["WebLoader"],
    "penstock.loaders.device": ["to_device"],
    "penstock.loaders.stats": ["Stats", "StageStats"],
    "penstock.loaders.live": ["watch"],
    "penstock.stages.stage": ["Stage"],
    "penstock.stages.shardlist": ["SimpleShardList"],
    "penstock.stages.resample": ["ResampledShards", "resampled", "non_empty"],
    "penstock.stages.directory": ["DirectoryShardList"],
    "penstock.stages.split": ["split_by_node", "split_by_worker", "single_node_only"],
    "penstock.stages.read": ["tarfile_to_samples"],
    "penstock.stages.indexed": ["IndexedSamples"],
    "penstock.stages.records": ["cbors_to_samples", "msgpacks_to_samples"],
    "penstock.stages.shuffle": ["shuffle", "detshuffle"],
    "penstock.stages.quality": ["shuffle_quality"],
    "penstock.stages.map": ["map", "map_dict", "map_tuple"],
    "penstock.stages.select": ["select", "rsample", "slice"],
    "penstock.stages.rename": ["rename", "rename_keys"],
    "penstock.stages.associate": ["associate"],
    "penstock.stages.extract": ["to_tuple", "extract_keys"],
    "penstock.stages.fields": ["getfirst"],
    "penstock.stages.decode": ["decode", "xdecode"],
    "penstock.stages.inform": ["info", "log_keys"],
    "penstock.stages.repeat": ["repeat"],
    "penstock.stages.mix": ["RandomMix", "RoundRobin", "MockDataset"],
    "penstock.stages.cache": ["Cached", "LMDBCached", "DBCache"],
    "penstock.index": ["Index", "open_index", "build_index"],
    "penstock.datasets.indexed": ["IndexedDataset"],
    "penstock.datasets.samplers": [
        "ShardListSampler",
        "ChunkedSampler",
        "DistributedChunkedSampler",
    ],
    "penstock.batches.collate": ["default_collation_fn"],
    "penstock.batches.fixed": ["batched", "unbatched", "listed", "unlisted"],
    "penstock.writing": ["TarWriter", "ShardWriter"],
    "penstock.codecs": [
        "Decoder",
        "Continue",
        "handle_extension",
        "imagehandler",
        "gzfilter",
        "basichandlers",
    ],
    "penstock.codecs.audio": ["torch_audio"],
    "penstock.codecs.video": ["torch_video"],
    "penstock.codecs.pickles": ["torch_loads", "torch_dumps"],
    "penstock.codecs.arrays": ["numpy_dumps"],
    "penstock.transforms.images": [
        "RandomResizedCrop",
        "Resize",
        "CenterCrop",
        "ResizeCenterCrop",
        "RandomHorizontalFlip",
        "Normalize",
    ],
    "penstock.transforms.audio": ["AudioClip"],
    "penstock.storage": ["gopen", "gopen_schemes", "open_url"],
    "penstock.storage.keys": ["use_keys"],
    "penstock.handlers": [
        "reraise_exception",
        "ignore_and_continue",
        "ignore_and_stop",
        "warn_and_continue",
        "warn_and_stop",
    ],
    "penstock.errors": [
        "PenstockError",
        "UrlError",
        "StorageError",
        "ShardError",
        "DuplicateError",
        "StaleIndexError",
        "SampleError",
        "DecodingError",
        "WriteError",
        "PipelineError",
        "StateError",
        "UnsafeError",
        "MissingPackage",
        "ShardWarning",
        "Origin",
    ],
}
"""Module → the public names it defines."""

_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)

# Submodule paths of WebDataset (``penstock.filters``, ``penstock.tariterators``…) resolve to
# the modules in compat/; the folders of the library itself come first.
__path__.append(os.path.join(os.path.dirname(__file__), "compat"))


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is not None:
        value = getattr(importlib.import_module(module), name)
    elif name.startswith("__"):
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    else:
        value = _older(name)
    globals()[name] = value
    return value


def _older(name: str) -> Any:
    """Names of older WebDataset versions, and its submodules, from compat/."""
    older = importlib.import_module("penstock.compat")
    try:
        return getattr(older, name)
    except AttributeError:
        raise AttributeError(
            f"module 'penstock' has no attribute {name!r}; its names are in penstock.__all__"
        ) from None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
