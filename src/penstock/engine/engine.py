"""What a row asks of the threads that work for it; those of a loader are in the loaders' folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.engine.checkpoints import Noted
    from penstock.engine.item_cost import Pace
    from penstock.engine.job import Chunk
    from penstock.engine.segment_run import Row


class Engine(Protocol):
    """What a row asks of the threads that work for it."""

    threads: int
    in_flight: int
    stopped: bool
    paces: dict[int, Pace]
    alone: bool
    """Whether there is one lane, which may go as far ahead as there is room."""
    look_ahead: int
    meter: Any
    """Hears what was done, chunk by chunk."""

    @property
    def spare(self) -> int:
        """How many more items there is memory for."""

    def number(self) -> int:
        """A number for a row."""

    def submit(self, chunk: Chunk) -> None:
        """Have a thread work on the chunk."""

    def room(self) -> bool:
        """Whether more items may be taken ahead."""

    def rows(self, chunk: Chunk) -> Any:
        """What gives memory for the chunk's results, if anything does; asked on the thread."""

    def notes(self, noted: Noted) -> None:
        """Report the shards that the source of a row opens."""

    def shard_opened(self, lane: int | None) -> None:
        """Have the state of the sources of a lane saved with their next item."""

    def closed(self, row: Row) -> None:
        """The row gives nothing more."""

    def weigh(self, result: Any) -> None:
        """Learn from a result how much memory items take."""

    def note(self, row: Row, chunk: Chunk) -> None:
        """The chunk is done: for the accounts of memory and time."""


class Stopped(BaseException):
    """The loader was closed: whoever runs its stages must let go of everything."""
