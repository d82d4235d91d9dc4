"""Stages in a row: ``DataPipeline``, the fluent ``WebDataset``, and running them.

In come stages (:mod:`penstock.stages`, :mod:`penstock.batches`), out goes an iterable data set
for a training loop or for :mod:`penstock.loaders`.
"""

from __future__ import annotations

from penstock.pipeline.pipeline import DataPipeline
from penstock.pipeline.webdataset import FluidWrapper, WebDataset

__all__ = ["DataPipeline", "FluidWrapper", "WebDataset"]
