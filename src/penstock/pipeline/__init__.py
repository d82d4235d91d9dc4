"""Pipelines: stages in order, as a data set with epochs and a state.

Stages come from :mod:`penstock.stages` and :mod:`penstock.batches`; the result is an iterable data
set for a training loop or for :mod:`penstock.loaders`. ``data_pipeline`` has ``DataPipeline``,
``webdataset`` the constructor ``WebDataset``, ``fluent`` the methods that append stages, ``lanes``
the parts that ranks and workers read, ``state``, ``rank_states``, ``stage_signature`` and
``fingerprint`` the saved states, and ``item_counts`` the number of items. ``mixture`` has ``mix``,
and ``mixture_change`` loads states of a mixture that has changed since. ``spec`` makes a data set
from a YAML or JSON file, which ``spec_file`` parses. ``read_ahead_by_trainers`` finds trainers that
take a batch before they train on the one before it, and ``missing_attributes`` explains what a
pipeline lacks: a misspelt stage, a length.
"""

from __future__ import annotations

from typing import Any

from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.webdataset import FluidWrapper, WebDataset

__all__ = ["DataPipeline", "FluidWrapper", "WebDataset"]


def __getattr__(name: str) -> Any:
    if name == "PipelineStage":  # users of WebDataset import it from here
        import penstock

        return penstock.PipelineStage  # type: ignore[attr-defined]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
