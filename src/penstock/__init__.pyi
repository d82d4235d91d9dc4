# Made by tools/make_facade.py from penstock/__init__.py; do not edit.

from penstock.batches.analysis.find_budget import BudgetReport as BudgetReport
from penstock.batches.analysis.find_budget import find_budget as find_budget
from penstock.batches.analysis.padding_report import PaddingReport as PaddingReport
from penstock.batches.analysis.padding_report import padding_report as padding_report
from penstock.batches.analysis.shuffle_quality import shuffle_quality as shuffle_quality
from penstock.batches.batched import batched as batched
from penstock.batches.batched import listed as listed
from penstock.batches.batched import unbatched as unbatched
from penstock.batches.batched import unlisted as unlisted
from penstock.batches.bucketing.bucketed import dynamic_bucketed_batch as dynamic_bucketed_batch
from penstock.batches.bucketing.pivot_window import (
    indices_around_random_pivot as indices_around_random_pivot,
)
from penstock.batches.bucketing.pivot_window import padding_ratio as padding_ratio
from penstock.batches.bucketing.pivot_window import (
    total_length_with_padding as total_length_with_padding,
)
from penstock.batches.collate import default_collation_fn as default_collation_fn
from penstock.batches.packing.packed import packed as packed
from penstock.batches.packing.packed import stack_rows as stack_rows
from penstock.batches.packing.packing_plan import PackingPlan as PackingPlan
from penstock.batches.packing.packing_plan import plan_packing as plan_packing
from penstock.batches.padding.pad import PaddedData as PaddedData
from penstock.batches.padding.pad import batch_pad_right as batch_pad_right
from penstock.batches.padding.pad import clean_padding as clean_padding
from penstock.batches.padding.pad import clean_padding_ as clean_padding_
from penstock.batches.padding.pad import length_to_mask as length_to_mask
from penstock.batches.padding.pad import pad_right_to as pad_right_to
from penstock.batches.padding.pad import relative_time_to_absolute as relative_time_to_absolute
from penstock.batches.padding.pad import undo_padding as undo_padding
from penstock.batches.padding.padded_batch import BatchsizeGuesser as BatchsizeGuesser
from penstock.batches.padding.padded_batch import PaddedBatch as PaddedBatch
from penstock.batches.padding.padded_batch import batch_shuffle as batch_shuffle
from penstock.batches.padding.padded_batch import mod_default_collate as mod_default_collate
from penstock.batches.padding.padded_batch import recursive_to as recursive_to
from penstock.batches.planning.batch_plan import BatchPlan as BatchPlan
from penstock.batches.planning.batch_plan import plan_batches as plan_batches
from penstock.batches.planning.cost import Linear as Linear
from penstock.batches.planning.cost import Quadratic as Quadratic
from penstock.batches.planning.cost import Table as Table
from penstock.batches.planning.planned_samples import Plan as Plan
from penstock.batches.planning.planned_samples import PlannedSamples as PlannedSamples
from penstock.batches.planning.planned_samples import planned as planned
from penstock.codecs import Continue as Continue
from penstock.codecs import Decoder as Decoder
from penstock.codecs import basichandlers as basichandlers
from penstock.codecs import gzfilter as gzfilter
from penstock.codecs import handle_extension as handle_extension
from penstock.codecs import imagehandler as imagehandler
from penstock.codecs.arrays import numpy_dumps as numpy_dumps
from penstock.codecs.audio import torch_audio as torch_audio
from penstock.codecs.audio_files import read_audio as read_audio
from penstock.codecs.audio_files import read_audio_info as read_audio_info
from penstock.codecs.audio_files import read_audio_multichannel as read_audio_multichannel
from penstock.codecs.audio_files import write_audio as write_audio
from penstock.codecs.safe_pickle.unpickler import torch_dumps as torch_dumps
from penstock.codecs.safe_pickle.unpickler import torch_loads as torch_loads
from penstock.codecs.video import torch_video as torch_video
from penstock.compat.as_webdataset import install_as_webdataset as install_as_webdataset
from penstock.datasets.image_folder import ImageFolder as ImageFolder
from penstock.datasets.indexed_dataset import IndexedDataset as IndexedDataset
from penstock.datasets.make_dataloader import make_dataloader as make_dataloader
from penstock.datasets.manifests.dynamic_item_dataset import (
    DynamicItemDataset as DynamicItemDataset,
)
from penstock.datasets.manifests.dynamic_item_dataset import (
    FilteredSortedDynamicItemDataset as FilteredSortedDynamicItemDataset,
)
from penstock.datasets.manifests.dynamic_item_dataset import add_dynamic_item as add_dynamic_item
from penstock.datasets.manifests.dynamic_item_dataset import (
    apply_overfit_test as apply_overfit_test,
)
from penstock.datasets.manifests.dynamic_item_dataset import set_output_keys as set_output_keys
from penstock.datasets.manifests.item_cache import CachedDynamicItem as CachedDynamicItem
from penstock.datasets.manifests.item_pipeline import ItemPipeline as ItemPipeline
from penstock.datasets.manifests.items import DynamicItem as DynamicItem
from penstock.datasets.manifests.items import GeneratorDynamicItem as GeneratorDynamicItem
from penstock.datasets.manifests.items import provides as provides
from penstock.datasets.manifests.items import takes as takes
from penstock.datasets.map_samples import MapSamples as MapSamples
from penstock.datasets.samplers.chunked import ChunkedSampler as ChunkedSampler
from penstock.datasets.samplers.chunked import (
    DistributedChunkedSampler as DistributedChunkedSampler,
)
from penstock.datasets.samplers.chunked import ShardListSampler as ShardListSampler
from penstock.datasets.samplers.combined import (
    ConcatDatasetBatchSampler as ConcatDatasetBatchSampler,
)
from penstock.datasets.samplers.combined import (
    DistributedSamplerWrapper as DistributedSamplerWrapper,
)
from penstock.datasets.samplers.dynamic_batch import DynamicBatchSampler as DynamicBatchSampler
from penstock.datasets.samplers.planned_batch import PlannedBatchSampler as PlannedBatchSampler
from penstock.datasets.samplers.reproducible import BalancingDataSampler as BalancingDataSampler
from penstock.datasets.samplers.reproducible import (
    ReproducibleRandomSampler as ReproducibleRandomSampler,
)
from penstock.datasets.samplers.reproducible import (
    ReproducibleWeightedRandomSampler as ReproducibleWeightedRandomSampler,
)
from penstock.documents.interleaved import interleaved_to_dict as interleaved_to_dict
from penstock.errors import CircularDependencyError as CircularDependencyError
from penstock.errors import DecodingError as DecodingError
from penstock.errors import DuplicateError as DuplicateError
from penstock.errors import ManifestError as ManifestError
from penstock.errors import MissingPackage as MissingPackage
from penstock.errors import Origin as Origin
from penstock.errors import PenstockError as PenstockError
from penstock.errors import PipelineError as PipelineError
from penstock.errors import ReplacementError as ReplacementError
from penstock.errors import SampleError as SampleError
from penstock.errors import SchemeError as SchemeError
from penstock.errors import ShapeError as ShapeError
from penstock.errors import ShardError as ShardError
from penstock.errors import ShardWarning as ShardWarning
from penstock.errors import SoundError as SoundError
from penstock.errors import StaleIndexError as StaleIndexError
from penstock.errors import StateError as StateError
from penstock.errors import StorageError as StorageError
from penstock.errors import UnknownKeyError as UnknownKeyError
from penstock.errors import UnknownLengthError as UnknownLengthError
from penstock.errors import UnsafeError as UnsafeError
from penstock.errors import UnsupportedError as UnsupportedError
from penstock.errors import UrlError as UrlError
from penstock.errors import WriteError as WriteError
from penstock.handlers import ignore_and_continue as ignore_and_continue
from penstock.handlers import ignore_and_stop as ignore_and_stop
from penstock.handlers import reraise_exception as reraise_exception
from penstock.handlers import warn_and_continue as warn_and_continue
from penstock.handlers import warn_and_stop as warn_and_stop
from penstock.jobs.write_shards import write_shards as write_shards
from penstock.loaders.device.to_device import to_device as to_device
from penstock.loaders.looped_loader import LoopedLoader as LoopedLoader
from penstock.loaders.saveable_dataloader import SaveableDataLoader as SaveableDataLoader
from penstock.loaders.stats.progress import watch as watch
from penstock.loaders.stats.stats import StageStats as StageStats
from penstock.loaders.stats.stats import Stats as Stats
from penstock.loaders.webloader import WebLoader as WebLoader
from penstock.memory.output import empty as empty
from penstock.pipeline.data_pipeline import DataPipeline as DataPipeline
from penstock.pipeline.mixture import mix as mix
from penstock.pipeline.spec import Spec as Spec
from penstock.pipeline.spec import load_spec as load_spec
from penstock.pipeline.webdataset import FluidWrapper as FluidWrapper
from penstock.pipeline.webdataset import WebDataset as WebDataset
from penstock.shards.index import Fold as Fold
from penstock.shards.index import Index as Index
from penstock.shards.index import Join as Join
from penstock.shards.index import build_index as build_index
from penstock.shards.index import open_index as open_index
from penstock.shards.writing import ShardWriter as ShardWriter
from penstock.shards.writing import TarWriter as TarWriter
from penstock.stages.associate import associate as associate
from penstock.stages.decode import decode as decode
from penstock.stages.decode import xdecode as xdecode
from penstock.stages.field_names import getfirst as getfirst
from penstock.stages.inspect import info as info
from penstock.stages.inspect import log_keys as log_keys
from penstock.stages.map import map as map
from penstock.stages.map import map_dict as map_dict
from penstock.stages.map import map_tuple as map_tuple
from penstock.stages.reading.record_files import cbors_to_samples as cbors_to_samples
from penstock.stages.reading.record_files import msgpacks_to_samples as msgpacks_to_samples
from penstock.stages.reading.tar_samples import tarfile_to_samples as tarfile_to_samples
from penstock.stages.rename import rename as rename
from penstock.stages.rename import rename_keys as rename_keys
from penstock.stages.repeat import repeat as repeat
from penstock.stages.sample_cache import Cached as Cached
from penstock.stages.sample_cache import DBCache as DBCache
from penstock.stages.sample_cache import LMDBCached as LMDBCached
from penstock.stages.select import rsample as rsample
from penstock.stages.select import select as select
from penstock.stages.select import slice as slice
from penstock.stages.shuffle import detshuffle as detshuffle
from penstock.stages.shuffle import shuffle as shuffle
from penstock.stages.sources.directory_queue import DirectoryShardList as DirectoryShardList
from penstock.stages.sources.indexed_samples import IndexedSamples as IndexedSamples
from penstock.stages.sources.mix import MockDataset as MockDataset
from penstock.stages.sources.mix import RandomMix as RandomMix
from penstock.stages.sources.mix import RoundRobin as RoundRobin
from penstock.stages.sources.resampled_shards import ResampledShards as ResampledShards
from penstock.stages.sources.resampled_shards import non_empty as non_empty
from penstock.stages.sources.resampled_shards import resampled as resampled
from penstock.stages.sources.shard_list import SimpleShardList as SimpleShardList
from penstock.stages.sources.split import single_node_only as single_node_only
from penstock.stages.sources.split import split_by_node as split_by_node
from penstock.stages.sources.split import split_by_worker as split_by_worker
from penstock.stages.stage import Stage as Stage
from penstock.stages.to_tuple import extract_keys as extract_keys
from penstock.stages.to_tuple import to_tuple as to_tuple
from penstock.storage import gopen as gopen
from penstock.storage import gopen_schemes as gopen_schemes
from penstock.storage import open_url as open_url
from penstock.storage.auth.named_keys import use_keys as use_keys
from penstock.storage.cache.shard_cache import ShardCache as ShardCache
from penstock.storage.client.retry_policy import RetryPolicy as RetryPolicy
from penstock.transforms.audio import AudioClip as AudioClip
from penstock.transforms.images import CenterCrop as CenterCrop
from penstock.transforms.images import Normalize as Normalize
from penstock.transforms.images import RandomHorizontalFlip as RandomHorizontalFlip
from penstock.transforms.images import RandomResizedCrop as RandomResizedCrop
from penstock.transforms.images import Resize as Resize
from penstock.transforms.images import ResizeCenterCrop as ResizeCenterCrop

__version__: str
