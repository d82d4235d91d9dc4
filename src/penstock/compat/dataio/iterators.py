"""``speechbrain.dataio.iterators``"""

from __future__ import annotations

from penstock.batches.bucketing.bucketed import dynamic_bucketed_batch
from penstock.batches.bucketing.length_buffer import LengthItem
from penstock.batches.bucketing.pivot_window import (
    indices_around_random_pivot,
    padding_ratio,
    total_length_with_padding,
)
from penstock.compat.left_out import left_out_of

__getattr__ = left_out_of("dataio.iterators")

__all__ = [
    "LengthItem",
    "dynamic_bucketed_batch",
    "indices_around_random_pivot",
    "padding_ratio",
    "total_length_with_padding",
]
