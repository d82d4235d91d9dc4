"""How the states of worker processes reach the loader: each item comes with its lane's state.

Workers run ahead of the training loop. What counts is where each lane stood when the item that the
loop was given last was made, so that travels with the item; it is a few hundred bytes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

from penstock.context import Context, here
from penstock.errors import Origin
from penstock.pipeline.lanes import LanesRun, owned
from penstock.pipeline.pipeline import DataPipeline
from penstock.stages.stage import Run, Ticket


class Stamp:
    """An item on its way from a worker, with where its lane stands behind it."""

    __slots__ = ("item", "lane", "state", "ticket", "worker")

    def __init__(self, item: Any, lane: str, state: Any, ticket: Ticket, worker: int) -> None:
        self.item, self.lane, self.state = item, lane, state
        self.ticket, self.worker = ticket, worker

    def pin_memory(self) -> Stamp:
        """The stamp with its item in pinned memory: torch asks each object to do that itself."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.item = pin_memory(self.item)
        return self


class StampedCollate:
    """The loader's collate function, for stamped items: the batch carries the last one's state."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self.collate = collate

    def __call__(self, stamps: list[Any]) -> Any:
        from torch.utils.data import default_collate

        collate = self.collate or default_collate
        if not stamps or not isinstance(stamps[0], Stamp):
            return collate(stamps)
        last = stamps[-1]
        batch = collate([stamp.item for stamp in stamps])
        # The lanes that the batch's items came from: the last state of each.
        states = {stamp.lane: stamp.state for stamp in stamps}
        tickets = [stamp.ticket for stamp in stamps]
        return Stamp(batch, last.lane, _Several(states), tickets, last.worker)


class _Several(dict[str, Any]):
    """States of several lanes at once."""


class StampedDataset(DataPipeline[Any]):
    """A pipeline whose items come stamped."""

    def __init__(self, pipeline: DataPipeline[Any]) -> None:
        super().__init__()
        self.wrapped = pipeline
        self._plan: dict[str, Any] | None = None
        self._fetchers: dict[int, Run[Any]] = {}

    @property
    def pipeline(self) -> Any:  # type: ignore[override]
        return self.wrapped

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


__all__ = ["Stamp", "StampedCollate", "StampedDataset"]
_ = (dataclasses, os, here, Origin, LanesRun, owned)
