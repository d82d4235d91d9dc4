"""Names of older WebDataset versions and module paths of WebDataset and SpeechBrain.

Loaded on demand. It may import every other package, and no package imports it.

``penstock.filters``, ``penstock.tariterators``, … are the modules of this folder,
``penstock.dataio`` and ``penstock.utils`` its packages. Most of them only re-export names that are
defined elsewhere. These modules define what exists nowhere else:

    tariterators  reading a shard in three steps: open it, read its members, group them
    chains        Dataset, Processor and others that wrap one data set in another
    splitlists    shard lists that split themselves between ranks and workers
    curried       functions as stages: pipelinefilter
    functions     small functions on samples and tuples
    as_webdataset penstock under the name webdataset
    left_out      names that are left out on purpose, each with the reason
    moved         former paths of penstock's own modules

Like WebDataset's ``compat``, the package itself has ``WebDataset``, ``WebLoader``, ``FluidWrapper``
and ``FluidInterface``. Its ``__version__`` is WebDataset's, for programs that compare it.
"""

from __future__ import annotations

import importlib
from typing import Any

from penstock.compat.left_out import LEFT_OUT, LeftOut

__version__ = "1.0.2"
"""The version of WebDataset whose names and behaviour these modules have."""

_SUBMODULES = (
    "autodecode cache cborsiterators compat composable dataio dbcache extradatasets filters fluid"
    " gopen handlers mix pipeline pytorch shardcache shardlists tariterators tenbin utils writer"
)
SUBMODULES = frozenset(_SUBMODULES.split())
"""Submodules of WebDataset, of any version, and of SpeechBrain, under the same name."""

_NAMES: dict[str, str] = {
    "autodecode": "pytorch_weights_only",
    "cache": "LRUCleanup lru_cleanup pipe_cleaner",
    "cborsiterators": "cbors2_to_samples",
    "compat.chains": "ChoppedDataset Dataset MultiDataset ResizedDataset",
    "composable": "Composable Processor Shorthands",
    "extradatasets": "with_epoch with_length",
    "filters": "Curried FilterFunction RestCurried pipelinefilter stage transform_with transformer",
    "fluid": "FluidInterface FluidWrapper WebDataset WebLoader check_empty",
    "shardlists": "PytorchShardList ResampledShardList ShardList all_urls expand_urls shardspec"
    " worker_urls",
    "tariterators": "base_plus_ext cached_tarfile_samples cached_tarfile_to_samples group_by_keys"
    " maybe_cached_tarfile_to_samples tar_file_expander tar_file_iterator tarfile_samples"
    " url_opener valid_sample",
    "utils": "PipelineStage ignore_exception repeatedly warn_exception",
    "writer": "default_handlers",
}
"""Module → those of its names that some version has at the top."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"penstock.{_HOME[name]}"), name)
    if name in SUBMODULES:
        # Found in this folder through penstock's __path__, so that every way of importing it
        # returns the same module.
        return importlib.import_module(f"penstock.{name}")
    if name in LEFT_OUT:
        return LeftOut(name)
    raise AttributeError(f"module 'penstock.compat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_HOME, *SUBMODULES})
