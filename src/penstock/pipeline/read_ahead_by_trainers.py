"""Trainers that take a batch from a loader before they train on the one before it.

Lightning does so if a loader has no length, to know which batch is the last, and so do the loaders
that Accelerate's ``prepare`` makes. They do not say so, and are found by looking at the callers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
LIGHTNING = ("lightning.", "pytorch_lightning.")
PREPARED = ("DataLoaderShard", "DataLoaderDispatcher")
"""Accelerate's loaders that take a batch ahead."""


class ReadAhead:
    """The states before the last batches that Lightning has taken.

    A batch may consist of several items, if a loader of torch or a wrapper is between: what counts
    is the first item of each batch.
    """

    def __init__(self, fetcher: Any, save: Callable[[], Any]) -> None:
        self._fetcher, self._save = fetcher, save
        self._saved: list[tuple[int, Any]] = []  # of the last two batches: its number, the state
        self._ended = self._failed = False

    def stream(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; save the state before each batch if Lightning takes one ahead."""
        stream, fetcher = iter(items), self._fetcher
        while True:
            if fetcher.length is None and self._last != fetcher.fetched:
                self._saved = [*self._saved[-1:], (fetcher.fetched, self._save())]
            self._failed = True
            try:
                item = next(stream)
            except StopIteration:
                self._ended = True
                return
            self._failed = False
            try:
                yield item
            except GeneratorExit:  # dropped by a wrapper that has ended, or by Lightning's reset
                self._ended = fetcher.fetched == self._last + 1
                raise
            del item  # do not keep a batch that the trainer has released

    def state(self) -> Any:
        """Return the state after the batch that Lightning trains on, or None if it is the present
        one."""
        fetched = self._fetcher.fetched  # 0 after a run
        if not self._saved or self._ended or self._fetcher.done or fetched > self._last + 1:
            return None
        failed = self._failed or fetched == self._last
        return self._saved[-2 if failed and len(self._saved) > 1 else -1][1]

    @property
    def _last(self) -> int:
        return self._saved[-1][0] if self._saved else -1


def find_lightning_fetcher() -> Any:
    """Return Lightning's data fetcher that is starting an iteration; None if there is none."""
    if sys.modules.keys().isdisjoint(("lightning.pytorch", "pytorch_lightning")):
        return None
    return next((one for one in _callers(LIGHTNING) if hasattr(one, "prefetch_batches")), None)


def is_read_by_accelerate() -> bool:
    """Return whether a loader that Accelerate's ``prepare`` made is starting an iteration."""
    if "accelerate" not in sys.modules:
        return False
    return any(type(one).__name__ in PREPARED for one in _callers(("accelerate.",)))


def is_prepared_by_accelerate(dataset: Any) -> bool:
    """Return whether an Accelerator that is saving or loading has made another loader of a data
    set."""
    if "accelerate" not in sys.modules:
        return False
    accelerators = _callers(("accelerate.",))
    loaders = [loader for one in accelerators for loader in getattr(one, "_dataloaders", ())]
    return any(getattr(loader, "dataset", None) is dataset for loader in loaders)


def _callers(modules: tuple[str, ...]) -> Iterator[Any]:
    """Yield ``self`` of the callers whose functions are defined in some modules."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(modules):
            yield frame.f_locals.get("self")
        frame = frame.f_back
