"""Names of older WebDataset versions and of its submodules. Loaded on demand; nothing imports it.

``penstock.filters``, ``penstock.tariterators``… are the modules of this folder; most of them only
list names that live elsewhere. What exists nowhere else is defined in

    members       a shard in three steps: open, take apart, group
    chains        Dataset, Processor and others that wrap one data set in another
    splitlists    shard lists that deal themselves out to ranks and workers
    curried       functions as stages: pipelinefilter
    functions     small functions around samples and tuples
    left_out      what is not there, and why

Like WebDataset's ``compat`` the package itself has ``WebDataset``, ``WebLoader``, ``FluidWrapper``
and ``FluidInterface``.
"""

from __future__ import annotations

import importlib
from typing import Any

from penstock.compat.left_out import LEFT_OUT, LeftOut

_SUBMODULES = (
    "autodecode cache cborsiterators compat composable dataset dbcache extradatasets filters fluid"
    " gopen handlers iterators mix pipeline pytorch shardcache shardlists tariterators tenbin utils"
    " writer"
)
SUBMODULES = frozenset(_SUBMODULES.split())
"""Submodules of WebDataset, of any version, that are here under the same name."""

_NAMES: dict[str, str] = {
    "autodecode": "pytorch_weights_only",
    "cache": "LRUCleanup lru_cleanup pipe_cleaner",
    "cborsiterators": "cbors2_to_samples",
    "composable": "Composable Processor Shorthands",
    "dataset": "ChoppedDataset Dataset MultiDataset ResizedDataset ShardList",
    "extradatasets": "with_epoch with_length",
    "filters": "Curried FilterFunction RestCurried pipelinefilter stage transform_with transformer",
    "fluid": "FluidInterface FluidWrapper WebDataset WebLoader check_empty",
    "shardlists": "PytorchShardList ResampledShardList all_urls expand_urls shardspec worker_urls",
    "tariterators": "base_plus_ext cached_tarfile_samples cached_tarfile_to_samples group_by_keys"
    " maybe_cached_tarfile_to_samples tar_file_expander tar_file_iterator tarfile_samples"
    " url_opener valid_sample",
    "utils": "PipelineStage ignore_exception repeatedly warn_exception",
    "writer": "default_handlers",
}
"""Submodule → the names of it that some version has at the top."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"penstock.{_HOME[name]}"), name)
    if name in SUBMODULES:
        # Found in this folder through penstock's __path__: one module, whatever way it is asked.
        return importlib.import_module(f"penstock.{name}")
    if name in LEFT_OUT:
        return LeftOut(name)
    raise AttributeError(f"module 'penstock.compat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_HOME, *SUBMODULES})
