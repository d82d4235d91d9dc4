"""``speechbrain.utils.data_pipeline``: its ``DataPipeline`` is :class:`penstock.ItemPipeline`."""

from __future__ import annotations

from penstock.compat.left_out import left_out_of
from penstock.datasets.manifests.dependency_graph import DependencyGraph
from penstock.datasets.manifests.item_cache import CachedDynamicItem
from penstock.datasets.manifests.item_pipeline import ItemPipeline as DataPipeline
from penstock.datasets.manifests.items import DynamicItem, GeneratorDynamicItem, provides, takes

__getattr__ = left_out_of("utils.data_pipeline")

__all__ = [
    "CachedDynamicItem",
    "DataPipeline",
    "DependencyGraph",
    "DynamicItem",
    "GeneratorDynamicItem",
    "provides",
    "takes",
]
