"""torch's DataLoader with every stage as a method behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.context import Context
from penstock.errors import MissingPackage
from penstock.pipeline.pipeline import DataPipeline
from penstock.stages.stage import IterableRun, Run


class WebLoader(DataPipeline[Any]):
    """A loader: takes what torch's ``DataLoader`` takes, and is a pipeline behind it.

    It is best to batch in the data set and to rebatch behind the loader, which mixes the samples
    of different workers::

        dataset = WebDataset(urls).shuffle(1000).decode("torchrgb").to_tuple("jpg", "cls").batched(16)
        loader = WebLoader(dataset, num_workers=4, batch_size=None)
        loader = loader.unbatched().shuffle(1000).batched(32)

    Each ``iter(loader)`` is the data set's next epoch, also in workers that are started anew.

    >>> from penstock import DataPipeline
    >>> data = DataPipeline(lambda: iter([1, 2, 3]))
    >>> list(WebLoader(data, batch_size=None).map(lambda x: x + 1))
    [2, 3, 4]
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        try:
            from torch.utils.data import DataLoader
        except ImportError:
            raise MissingPackage.of("WebLoader", "torch", "torch") from None
        self.loader = DataLoader(*args, **kwargs)
        self.append(Loader(self.loader))


class Loader:
    """A DataLoader as the source of a pipeline: tells the data set which epoch begins."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __repr__(self) -> str:
        loader = self.loader
        return (
            f"DataLoader({loader.dataset!r}, num_workers={loader.num_workers}, "
            f"batch_size={loader.batch_size})"
        )

    def __penstock_start__(self, source: Run[Any] | None, context: Context) -> Run[Any]:
        return LoaderRun(self, None, context)


class LoaderRun(IterableRun[Any]):
    """A DataLoader at work."""

    def __iter__(self) -> Iterator[Any]:
        loader = self.stage.loader
        if hasattr(loader.dataset, "set_epoch"):
            loader.dataset.set_epoch(self.context.epoch)
        for self.count, item in enumerate(loader):
            yield item

    def again(self, context: Context) -> Run[Any]:
        return LoaderRun(self.stage, None, context)
