"""Finds sources that every worker process would repeat, because no stage splits them.

Only certain cases are reported. A user's function, object or generator stage may look up its
worker number and yield only that worker's part.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.webdataset import WebDataset
from penstock.stages.repeat import repeat
from penstock.stages.run import short_repr
from penstock.stages.select import rsample, select
from penstock.stages.sources.mix import Mix
from penstock.stages.sources.resampled_shards import resampled
from penstock.stages.sources.shard_list import SimpleShardList
from penstock.stages.sources.split import SingleNodeOnly, Split, SplitByNode
from penstock.stages.stage import Stage

WHOLE = (list, tuple, range, dict, set, frozenset, deque, SimpleShardList)
"""Sources that are the same in every worker."""
CHOOSE = (repeat, resampled, rsample, select, Split)
"""Stages that may select different items in each worker, or that may repeat items anyway."""


def find_unsplit(data: Any) -> str:
    """Return the source that each worker process certainly repeats, or an empty string.

    >>> from penstock import split_by_worker
    >>> find_unsplit(DataPipeline([1, 2])), find_unsplit(DataPipeline([1, 2], split_by_worker))
    ('[1, 2]', '')
    """
    if type(data) in WHOLE:
        return short_repr(data)
    if not type(data).__module__.startswith("penstock."):
        return ""
    if isinstance(data, Mix):
        return next(filter(None, map(find_unsplit, data.datasets)), "")
    if not isinstance(data, DataPipeline) or data.nsamples >= 0 or not data.pipeline:
        return ""
    if isinstance(data, WebDataset) and type(data.pipeline[0]) is SimpleShardList:
        return ""  # it splits its shards, unless the user disabled that
    return find_unsplit(data.pipeline[0]) if all(map(_keeps_all, data.pipeline[1:])) else ""


def _keeps_all(stage: Any) -> bool:
    """Return whether a stage certainly processes all items in every worker."""
    if isinstance(stage, CHOOSE):
        return type(stage) in (SplitByNode, SingleNodeOnly)
    return isinstance(stage, Stage) and type(stage).__module__.startswith("penstock.")
