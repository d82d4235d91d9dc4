"""Make the right loader for a data set."""

from __future__ import annotations

from typing import Any

from penstock import env
from penstock.batches.padding.padded_batch import PaddedBatch
from penstock.datasets.manifests.dynamic_item_dataset import DynamicItemDataset
from penstock.datasets.samplers.reproducible import ReproducibleRandomSampler
from penstock.errors import PipelineError
from penstock.loaders.looped_loader import LoopedLoader
from penstock.loaders.webloader import WebLoader
from penstock.pipeline.data_pipeline import DataPipeline

SEED = 563375142


def make_dataloader(
    dataset: Any, looped_nominal_epoch: int | None = None, **loader_kwargs: Any
) -> Any:
    """Return a loader for a data set, with suitable defaults.

    ``loader_kwargs`` are those of torch's ``DataLoader``. A pipeline gets a
    :class:`penstock.WebLoader` that does not batch (``batch_size=None``). Any other data set gets
    a :class:`penstock.SaveableDataLoader`: a :class:`penstock.DynamicItemDataset` with
    :class:`penstock.PaddedBatch` as ``collate_fn``, a pipeline of the package ``webdataset`` with
    ``batch_size=None``. The order of ``shuffle=True`` depends on the variable ``SB_GLOBAL_SEED``
    and the epoch. With ``looped_nominal_epoch`` an epoch has that many batches: see
    :class:`penstock.LoopedLoader`. All of them have ``state_dict``.

    >>> import penstock as wds
    >>> data = wds.DataPipeline([1, 2, 3]).listed(1)
    >>> loader = make_dataloader(data, looped_nominal_epoch=2)
    >>> list(loader), list(loader)
    ([[1], [2]], [[3], [1]])
    """
    kwargs = dict(loader_kwargs)
    if isinstance(dataset, DataPipeline) or getattr(dataset, "is_stage", False):
        kwargs.setdefault("batch_size", None)
        loader: Any = WebLoader(dataset, **kwargs)
    else:
        from penstock.loaders.saveable_dataloader import SaveableDataLoader

        if isinstance(dataset, DynamicItemDataset):
            kwargs.setdefault("collate_fn", PaddedBatch)
        if _is_webdataset(dataset):
            kwargs.setdefault("batch_size", None)
        if kwargs.get("shuffle"):
            kwargs = _replace_shuffle(dataset, kwargs)
        loader = SaveableDataLoader(dataset, **kwargs)
    return LoopedLoader(loader, looped_nominal_epoch) if looped_nominal_epoch else loader


def _is_webdataset(dataset: Any) -> bool:
    """Return whether it is a pipeline of the package ``webdataset``, which makes batches itself."""
    return any(kind.__module__.split(".")[0] == "webdataset" for kind in type(dataset).__mro__)


def _replace_shuffle(dataset: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Replace ``shuffle=True`` by a sampler with a reproducible order."""
    for name in ("sampler", "batch_sampler"):
        if kwargs.get(name) is not None:
            raise PipelineError(f"shuffle=True and {name}= both decide the order: give one of them")
    seed = env.integer("SB_GLOBAL_SEED")
    sampler = ReproducibleRandomSampler(dataset, seed=SEED if seed is None else seed)
    return {**kwargs, "shuffle": False, "sampler": sampler}
