"""``webdataset.dataset``: the data sets of version 0.1."""

from __future__ import annotations

from penstock.compat.chains import (
    ChoppedDataset,
    Composable,
    Dataset,
    MultiDataset,
    Processor,
    Shorthands,
    repeated,
)
from penstock.compat.splitlists import ShardList
from penstock.loaders.webloader import WebLoader
from penstock.pipeline.webdataset import WebDataset
from penstock.stages.sources.mix import MockDataset
from penstock.stages.sources.split import split_by_node, split_by_worker

ResizedDataset = ChoppedDataset
Repeatedly = repeated

__all__ = [
    "ChoppedDataset",
    "Composable",
    "Dataset",
    "MockDataset",
    "MultiDataset",
    "Processor",
    "Repeatedly",
    "ResizedDataset",
    "ShardList",
    "Shorthands",
    "WebDataset",
    "WebLoader",
    "split_by_node",
    "split_by_worker",
]
