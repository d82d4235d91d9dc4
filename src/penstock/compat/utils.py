"""``webdataset.utils``: small things that programs take from there."""

from __future__ import annotations

import glob
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from itertools import islice
from typing import Any

from penstock import env
from penstock.compat.functions import identity
from penstock.compat.left_out import LeftOut
from penstock.compat.pipelinestage import PipelineStage
from penstock.context import here
from penstock.handlers import ignore_and_continue, warn_and_continue
from penstock.stages.sources.resampled_shards import webdataset_seed
from penstock.storage.urls import expand_braces

deprecated = LeftOut("deprecated")
obsolete = LeftOut("obsolete")
safe_eval = LeftOut("safe_eval")

enforce_security = env.flag("WDS_SECURE")
make_seed = webdataset_seed
ignore_exception = ignore_and_continue
warn_exception = warn_and_continue


class ObsoleteException(Exception):
    """Never raised here."""


def glob_with_braces(pattern: str) -> list[str]:
    """The files that match a pattern with wildcards and braces."""
    return [path for plain in expand_braces(pattern) for path in glob.glob(plain)]


def fnmatch_with_braces(filename: str, pattern: str) -> bool:
    """Whether the name matches a pattern with wildcards and braces.

    >>> fnmatch_with_braces("a.tgz", "*.{tar,tgz}")
    True
    """
    return any(fnmatch(filename, plain) for plain in expand_braces(pattern))


def is_iterable(obj: Any) -> bool:
    """True for what can be iterated, except text and bytes.

    >>> is_iterable([1]), is_iterable("ab")
    (True, False)
    """
    return isinstance(obj, Iterable) and not isinstance(obj, (str, bytes))


def lookup_sym(sym: str, modules: Sequence[str]) -> Any:
    """The first thing of that name in the modules (``".filters"`` is penstock's own), or None.

    >>> lookup_sym("identity", [".utils"]).__name__
    'identity'
    """
    found = (getattr(importlib.import_module(name, "penstock"), sym, None) for name in modules)
    return next((value for value in found if value is not None), None)


def guess_batchsize(batch: Sequence[Any]) -> int:
    """The number of samples in a batch: the length of its first column.

    >>> guess_batchsize(([1, 2, 3], "abc"))
    3
    """
    return len(batch[0])


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[..., int] = guess_batchsize,
) -> Iterator[Any]:
    """The items of the source again and again, up to so many passes, batches or samples.

    >>> list(repeatedly([1, 2], nepochs=2))
    [1, 2, 1, 2]
    """
    passes = batches = samples = 0
    while nepochs is None or passes < nepochs:
        before = batches
        for item in source:
            yield item
            batches += 1
            samples += batchsize(item) if nsamples is not None else 0
            if batches == nbatches or (nsamples is not None and samples >= nsamples):
                return
        if batches == before:
            return  # a source without items would be asked for ever
        passes += 1


def repeatedly0(
    loader: Iterable[Any], nepochs: int = sys.maxsize, nbatches: int = sys.maxsize
) -> Iterator[Any]:
    """``nepochs`` passes over a loader, of up to ``nbatches`` batches each."""
    for _ in range(nepochs):
        yield from islice(loader, nbatches)


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Rank, world size, worker, number of workers.

    >>> pytorch_worker_info()
    (0, 1, 0, 1)
    """
    place = here(group=group)
    return place.rank, place.world_size, place.worker, place.num_workers


def pytorch_worker_seed(group: Any = None) -> int:
    """A number that sets this worker apart from all others.

    >>> pytorch_worker_seed()
    0
    """
    place = here(group=group)
    return place.rank * 1000 + place.worker


def compute_sample_weights(n_w_pairs: Sequence[tuple[float, float]]) -> Any:
    """For pairs of number and weight, how likely to keep a sample of each; the largest is 1.

    >>> compute_sample_weights([(10, 1), (20, 1)])
    array([0.5, 1. ])
    """
    import numpy as np

    weighted = np.array([number * weight for number, weight in n_w_pairs])
    return weighted / np.amax(weighted)


__all__ = [
    "ObsoleteException",
    "PipelineStage",
    "compute_sample_weights",
    "deprecated",
    "enforce_security",
    "fnmatch_with_braces",
    "glob_with_braces",
    "guess_batchsize",
    "identity",
    "ignore_exception",
    "is_iterable",
    "lookup_sym",
    "make_seed",
    "obsolete",
    "pytorch_worker_info",
    "pytorch_worker_seed",
    "repeatedly",
    "repeatedly0",
    "safe_eval",
    "warn_exception",
]
