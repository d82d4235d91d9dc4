"""``webdataset.extradatasets``: data sets that wrap another, and one for measuring."""

from __future__ import annotations

from penstock.compat.chains import ChoppedDataset, repeated, with_epoch, with_length
from penstock.compat.pipelinestage import PipelineStage
from penstock.stages.sources.mix import MockDataset

repeatedly = Repeatedly = repeated
FakeLength = with_length

__all__ = [
    "ChoppedDataset",
    "FakeLength",
    "MockDataset",
    "PipelineStage",
    "Repeatedly",
    "repeatedly",
    "with_epoch",
    "with_length",
]
