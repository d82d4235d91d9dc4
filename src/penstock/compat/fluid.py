"""``webdataset.fluid``, also in ``webdataset.compat``: the fluent data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.compat.chains import Dataset
from penstock.errors import PipelineError
from penstock.loaders.webloader import WebLoader
from penstock.pipeline.fluent import Fluent
from penstock.pipeline.webdataset import FluidWrapper, WebDataset

FluidInterface = Fluent


def check_empty(source: Iterable[Any]) -> Iterator[Any]:
    """Yield the samples of the source; raise if there are none.

    >>> list(check_empty([1]))
    [1]
    """
    empty = True
    for sample in source:
        empty = False
        yield sample
    if empty:
        raise PipelineError("No samples found in dataset; perhaps it has fewer shards than workers")


__all__ = ["Dataset", "FluidInterface", "FluidWrapper", "WebDataset", "WebLoader", "check_empty"]
