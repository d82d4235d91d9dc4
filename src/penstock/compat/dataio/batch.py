"""``speechbrain.dataio.batch``"""

from __future__ import annotations

from penstock.batches.padding.pad import PaddedData
from penstock.batches.padding.padded_batch import BatchsizeGuesser, PaddedBatch

__all__ = ["BatchsizeGuesser", "PaddedBatch", "PaddedData"]
