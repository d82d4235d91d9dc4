"""``speechbrain.dataio.sampler``"""

from __future__ import annotations

from penstock.datasets.samplers.combined import ConcatDatasetBatchSampler, DistributedSamplerWrapper
from penstock.datasets.samplers.dynamic_batch import DynamicBatchSampler
from penstock.datasets.samplers.reproducible import (
    BalancingDataSampler,
    ReproducibleRandomSampler,
    ReproducibleWeightedRandomSampler,
)

__all__ = [
    "BalancingDataSampler",
    "ConcatDatasetBatchSampler",
    "DistributedSamplerWrapper",
    "DynamicBatchSampler",
    "ReproducibleRandomSampler",
    "ReproducibleWeightedRandomSampler",
]
