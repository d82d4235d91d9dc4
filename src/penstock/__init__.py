"""penstock feeds accelerators with training data that lives in tar shards.

Packages in import order; each imports only from those before it:

    memory → storage → codecs → shards → transforms → stages → batches → documents → engine →
    pipeline → loaders → datasets → jobs → tools → cli, compat, testing

Data is pulled the other way: a loader asks the pipeline, its stages ask their sources, and a source
reads shards from storage.

``import penstock as wds`` runs code written for WebDataset. Names are loaded when first used:
importing penstock imports neither numpy nor torch.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "penstock.pipeline.data_pipeline": ["DataPipeline"],
    "penstock.pipeline.webdataset": ["WebDataset", "FluidWrapper"],
    "penstock.pipeline.mixture": ["mix"],
    "penstock.pipeline.spec": ["Spec", "load_spec"],
    "penstock.loaders.webloader": ["WebLoader"],
    "penstock.loaders.saveable_dataloader": ["SaveableDataLoader"],
    "penstock.loaders.looped_loader": ["LoopedLoader"],
    "penstock.datasets.make_dataloader": ["make_dataloader"],
    "penstock.loaders.device.to_device": ["to_device"],
    "penstock.loaders.stats.stats": ["Stats", "StageStats"],
    "penstock.loaders.stats.progress": ["watch"],
    "penstock.stages.stage": ["Stage"],
    "penstock.stages.sources.shard_list": ["SimpleShardList"],
    "penstock.stages.sources.resampled_shards": ["ResampledShards", "resampled", "non_empty"],
    "penstock.stages.sources.directory_queue": ["DirectoryShardList"],
    "penstock.stages.sources.split": ["split_by_node", "split_by_worker", "single_node_only"],
    "penstock.stages.reading.tar_samples": ["tarfile_to_samples"],
    "penstock.stages.sources.indexed_samples": ["IndexedSamples"],
    "penstock.stages.reading.record_files": ["cbors_to_samples", "msgpacks_to_samples"],
    "penstock.stages.shuffle": ["shuffle", "detshuffle"],
    "penstock.batches.analysis.shuffle_quality": ["shuffle_quality"],
    "penstock.stages.map": ["map", "map_dict", "map_tuple"],
    "penstock.stages.select": ["select", "rsample", "slice"],
    "penstock.stages.rename": ["rename", "rename_keys"],
    "penstock.stages.associate": ["associate"],
    "penstock.stages.to_tuple": ["to_tuple", "extract_keys"],
    "penstock.stages.field_names": ["getfirst"],
    "penstock.stages.decode": ["decode", "xdecode"],
    "penstock.stages.inspect": ["info", "log_keys"],
    "penstock.stages.repeat": ["repeat"],
    "penstock.documents.interleaved": ["interleaved_to_dict"],
    "penstock.stages.sources.mix": ["RandomMix", "RoundRobin", "MockDataset"],
    "penstock.stages.sample_cache": ["Cached", "LMDBCached", "DBCache"],
    "penstock.shards.index": ["Index", "open_index", "build_index", "Fold", "Join"],
    "penstock.datasets.indexed_dataset": ["IndexedDataset"],
    "penstock.jobs.write_shards": ["write_shards"],
    "penstock.datasets.map_samples": ["MapSamples"],
    "penstock.datasets.image_folder": ["ImageFolder"],
    "penstock.datasets.samplers.chunked": [
        "ShardListSampler",
        "ChunkedSampler",
        "DistributedChunkedSampler",
    ],
    "penstock.datasets.samplers.dynamic_batch": ["DynamicBatchSampler"],
    "penstock.datasets.samplers.reproducible": [
        "ReproducibleRandomSampler",
        "ReproducibleWeightedRandomSampler",
        "BalancingDataSampler",
    ],
    "penstock.datasets.samplers.combined": [
        "ConcatDatasetBatchSampler",
        "DistributedSamplerWrapper",
    ],
    "penstock.batches.analysis.padding_report": ["PaddingReport", "padding_report"],
    "penstock.datasets.manifests.items": [
        "DynamicItem",
        "GeneratorDynamicItem",
        "takes",
        "provides",
    ],
    "penstock.datasets.manifests.item_pipeline": ["ItemPipeline"],
    "penstock.datasets.manifests.item_cache": ["CachedDynamicItem"],
    "penstock.datasets.manifests.dynamic_item_dataset": [
        "DynamicItemDataset",
        "FilteredSortedDynamicItemDataset",
        "add_dynamic_item",
        "set_output_keys",
        "apply_overfit_test",
    ],
    "penstock.batches.padding.pad": [
        "PaddedData",
        "pad_right_to",
        "batch_pad_right",
        "undo_padding",
        "length_to_mask",
        "clean_padding",
        "clean_padding_",
        "relative_time_to_absolute",
    ],
    "penstock.batches.padding.padded_batch": [
        "PaddedBatch",
        "BatchsizeGuesser",
        "mod_default_collate",
        "recursive_to",
        "batch_shuffle",
    ],
    "penstock.codecs.audio_files": [
        "read_audio",
        "read_audio_multichannel",
        "read_audio_info",
        "write_audio",
    ],
    "penstock.batches.collate": ["default_collation_fn"],
    "penstock.batches.planning.cost": ["Linear", "Quadratic", "Table"],
    "penstock.batches.planning.batch_plan": ["plan_batches", "BatchPlan"],
    "penstock.batches.planning.planned_samples": ["Plan", "PlannedSamples", "planned"],
    "penstock.batches.analysis.find_budget": ["find_budget", "BudgetReport"],
    "penstock.datasets.samplers.planned_batch": ["PlannedBatchSampler"],
    "penstock.batches.batched": ["batched", "unbatched", "listed", "unlisted"],
    "penstock.batches.bucketing.bucketed": ["dynamic_bucketed_batch"],
    "penstock.batches.bucketing.pivot_window": [
        "indices_around_random_pivot",
        "padding_ratio",
        "total_length_with_padding",
    ],
    "penstock.batches.packing.packed": ["packed", "stack_rows"],
    "penstock.batches.packing.packing_plan": ["PackingPlan", "plan_packing"],
    "penstock.shards.writing": ["TarWriter", "ShardWriter"],
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
    "penstock.codecs.safe_pickle.unpickler": ["torch_loads", "torch_dumps"],
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
    "penstock.compat.as_webdataset": ["install_as_webdataset"],
    "penstock.storage.auth.named_keys": ["use_keys"],
    "penstock.storage.client.retry_policy": ["RetryPolicy"],
    "penstock.storage.cache.shard_cache": ["ShardCache"],
    "penstock.memory.output": ["empty"],
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
        "SchemeError",
        "ShardError",
        "DuplicateError",
        "StaleIndexError",
        "SampleError",
        "ShapeError",
        "DecodingError",
        "SoundError",
        "WriteError",
        "PipelineError",
        "UnsupportedError",
        "UnknownKeyError",
        "UnknownLengthError",
        "CircularDependencyError",
        "ManifestError",
        "ReplacementError",
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
    if name in ("gopen", "mix"):  # modules of WebDataset's names, which can be called
        value = importlib.import_module(f"penstock.{name}")
    elif module is not None:
        value = getattr(importlib.import_module(module), name)
    elif name.startswith("__"):
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    else:
        value = _older(name)
    globals()[name] = value
    return value


def _older(name: str) -> Any:
    """Return a name of an older WebDataset version, or a submodule, from compat/."""
    older = importlib.import_module("penstock.compat")
    try:
        return getattr(older, name)
    except AttributeError:
        from penstock.nearest_name import suggest

        hint = suggest(name, __all__) or "; its names are in penstock.__all__"
        raise AttributeError(f"module 'penstock' has no attribute {name!r}{hint}") from None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
