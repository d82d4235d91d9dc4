"""Stages in a row: ``DataPipeline``, the fluent ``WebDataset``, and running them.

In come stages (:mod:`penstock.stages`, :mod:`penstock.batches`), out goes an iterable data set
for a training loop or for :mod:`penstock.loaders`.
"""

from __future__ import annotations

from typing import Any

from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.webdataset import FluidWrapper, WebDataset

__all__ = ["DataPipeline", "FluidWrapper", "WebDataset"]


def __getattr__(name: str) -> Any:
    if name == "PipelineStage":  # WebDataset's users take it from here; it is made of us
        import penstock

        return penstock.PipelineStage  # type: ignore[attr-defined]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
