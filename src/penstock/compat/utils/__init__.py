"""``webdataset.utils``: small functions that programs import from there.

The package also has the modules of ``speechbrain.utils`` that deal with data.
"""

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
from penstock.compat.left_out import LeftOut, WarningModule
from penstock.compat.pipelinestage import PipelineStage
from penstock.context import current_context
from penstock.handlers import ignore_and_continue, warn_and_continue
from penstock.stages.sources.resampled_shards import webdataset_seed
from penstock.storage.urls import expand_braces

deprecated = LeftOut("deprecated")
obsolete = LeftOut("obsolete")
safe_eval = LeftOut("safe_eval")

make_seed = webdataset_seed
ignore_exception = ignore_and_continue
warn_exception = warn_and_continue


class ObsoleteException(Exception):
    """Never raised here."""


def glob_with_braces(pattern: str) -> list[str]:
    """Return the files that match a pattern with wildcards and braces."""
    return [path for plain in expand_braces(pattern) for path in glob.glob(plain)]


def fnmatch_with_braces(filename: str, pattern: str) -> bool:
    """Return whether the name matches a pattern with wildcards and braces.

    >>> fnmatch_with_braces("a.tgz", "*.{tar,tgz}")
    True
    """
    return any(fnmatch(filename, plain) for plain in expand_braces(pattern))


def is_iterable(obj: Any) -> bool:
    """Return whether an object is iterable and neither str nor bytes.

    >>> is_iterable([1]), is_iterable("ab")
    (True, False)
    """
    return isinstance(obj, Iterable) and not isinstance(obj, (str, bytes))


def lookup_sym(sym: str, modules: Sequence[str]) -> Any:
    """Return the first object of this name in the modules (``".filters"``: penstock's), or None.

    >>> lookup_sym("identity", [".utils"]).__name__
    'identity'
    """
    found = (getattr(importlib.import_module(name, "penstock"), sym, None) for name in modules)
    return next((value for value in found if value is not None), None)


def guess_batchsize(batch: Sequence[Any]) -> int:
    """Return the number of samples in a batch: the length of its first column.

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
    """Repeat the items of the source, up to a number of passes, batches or samples.

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
            return  # an empty source would be repeated forever
        passes += 1


def repeatedly0(
    loader: Iterable[Any], nepochs: int = sys.maxsize, nbatches: int = sys.maxsize
) -> Iterator[Any]:
    """Iterate over a loader ``nepochs`` times, up to ``nbatches`` batches each."""
    for _ in range(nepochs):
        yield from islice(loader, nbatches)


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Return rank, world size, worker and number of workers.

    >>> pytorch_worker_info()
    (0, 1, 0, 1)
    """
    context = current_context(group=group)
    return context.rank, context.world_size, context.worker, context.num_workers


def pytorch_worker_seed(group: Any = None) -> int:
    """Return a seed that is different for every worker.

    >>> pytorch_worker_seed()
    0
    """
    context = current_context(group=group)
    return context.rank * 1000 + context.worker


def compute_sample_weights(n_w_pairs: Sequence[tuple[float, float]]) -> Any:
    """Return the probability to keep a sample for each pair (number, weight); the largest is 1.

    >>> compute_sample_weights([(10, 1), (20, 1)])
    array([0.5, 1. ])
    """
    import numpy as np

    weighted = np.array([number * weight for number, weight in n_w_pairs])
    return weighted / np.amax(weighted)


class SwitchedModule(WarningModule):
    """A module whose attribute ``enforce_security`` can be set: the same as ``WDS_SECURE=1``.

    Setting it sets the variable, so that it applies to processes started later. Setting it back to
    False undoes only an earlier assignment, never the user's environment.
    """

    _by_code = False

    @property
    def enforce_security(self) -> bool:
        return env.flag("WDS_SECURE")

    @enforce_security.setter
    def enforce_security(self, value: Any) -> None:
        if value and not env.flag("WDS_SECURE"):
            env.export("WDS_SECURE", "1")
            self._by_code = True
        elif not value and self._by_code:
            env.export("WDS_SECURE", None)
            self._by_code = False


sys.modules[__name__].__class__ = SwitchedModule

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

_SPEECHBRAIN = ("data_pipeline", "data_utils", "depgraph")


def __getattr__(name: str) -> Any:
    if name in _SPEECHBRAIN:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
