"""The loader that fits a data set."""

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
    """A loader for a data set, with what is usual for it where nothing is said.

    ``loader_kwargs`` are those of torch's ``DataLoader``. A pipeline gets a
    :class:`penstock.WebLoader` that makes no batches of its own (``batch_size=None``); all else a
    :class:`penstock.SaveableDataLoader`, for a :class:`penstock.DynamicItemDataset` with
    :class:`penstock.PaddedBatch` as its ``collate_fn``. ``shuffle=True`` is an order by the seed
    ``SB_GLOBAL_SEED`` and the epoch. With ``looped_nominal_epoch`` so many batches are an epoch:
    see :class:`penstock.LoopedLoader`. All of them have ``state_dict``.

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
        if kwargs.get("shuffle"):
            kwargs = _shuffled(dataset, kwargs)
        loader = SaveableDataLoader(dataset, **kwargs)
    return LoopedLoader(loader, looped_nominal_epoch) if looped_nominal_epoch else loader


def _shuffled(dataset: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """``shuffle=True`` as a sampler whose order can be told again."""
    for name in ("sampler", "batch_sampler"):
        if kwargs.get(name) is not None:
            raise PipelineError(f"shuffle=True and {name}= both decide the order: give one of them")
    seed = env.integer("SB_GLOBAL_SEED")
    sampler = ReproducibleRandomSampler(dataset, seed=SEED if seed is None else seed)
    return {**kwargs, "shuffle": False, "sampler": sampler}
