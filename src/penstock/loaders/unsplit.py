"""Sources that each worker process gives all of: no stage behind them deals them out.

Only what is sure is told. A function, or an object of the user's own, may ask which worker it is
in, and give its part; so may a generator that stands behind the source.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.webdataset import WebDataset
from penstock.stages.sources.mix import Mix
from penstock.stages.repeat import repeat
from penstock.stages.sources.resampled_shards import resampled
from penstock.stages.run import shown
from penstock.stages.select import rsample, select
from penstock.stages.sources.shard_list import SimpleShardList
from penstock.stages.sources.split import SingleNodeOnly, Split, SplitByNode
from penstock.stages.stage import Stage

WHOLE = (list, tuple, range, dict, set, frozenset, deque, SimpleShardList)
"""Sources that are the same in every worker."""
CHOOSE = (repeat, resampled, rsample, select, Split)
"""Stages that may give each worker others, or that nobody asks for each sample once."""


def unsplit(data: Any) -> str:
    """What each worker process surely gives all of, if anything.

    >>> from penstock import split_by_worker
    >>> unsplit(DataPipeline([1, 2])), unsplit(DataPipeline([1, 2], split_by_worker))
    ('[1, 2]', '')
    """
    if type(data) in WHOLE:
        return shown(data)
    if not type(data).__module__.startswith("penstock."):
        return ""
    if isinstance(data, Mix):
        return next(filter(None, map(unsplit, data.datasets)), "")
    if not isinstance(data, DataPipeline) or data.nsamples >= 0 or not data.pipeline:
        return ""
    if isinstance(data, WebDataset) and type(data.pipeline[0]) is SimpleShardList:
        return ""  # it deals its shards out, unless it was told not to
    return unsplit(data.pipeline[0]) if all(map(_gives_all, data.pipeline[1:])) else ""


def _gives_all(stage: Any) -> bool:
    """Whether a stage surely gives, in every worker, what comes of all items."""
    if isinstance(stage, CHOOSE):
        return type(stage) in (SplitByNode, SingleNodeOnly)
    return isinstance(stage, Stage) and type(stage).__module__.startswith("penstock.")
