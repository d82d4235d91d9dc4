"""What can be known of a loader at work: called once per chunk or batch, never per item."""

from __future__ import annotations

from typing import Any


class StatsListener:
    """Hears what a loader's threads do. This one forgets it all; statistics are made by others.

    >>> StatsListener().gave(3, 1000, 0.5)
    """

    def took(self, row: Any, chunk: Any) -> None:
        """Items were read for a chunk, in ``chunk.read_seconds``; they are still there.

        ``row.reads`` where they come from the source itself, and not from another row.
        """

    def weigh(self, item: Any) -> None:
        """One of the next cheap items, as it comes from the source."""

    def stretch(
        self, row: Any, items: int, read_seconds: float, measured: int, times: list[float]
    ) -> None:
        """So many cheap items were worked on in the pipeline's thread.

        The source took ``read_seconds`` for all of them; of some, ``measured`` in number, the
        steps took ``times``.
        """

    def worked(self, row: Any, chunk: Any) -> None:
        """A thread of the pool is done with a chunk of a row; in the pipeline's thread.

        ``chunk.seconds`` it took, ``chunk.waited_seconds`` the pipeline's thread waited for it;
        ``row.runs`` are the stages at work, ``row.pending`` what is ahead.
        """

    def made(self, size_bytes: int, seconds: float) -> None:
        """The pipeline's thread has made a batch, which took so long since the one before."""

    def blocked(self, seconds: float) -> None:
        """The pipeline's thread had to wait so long for room in the queue."""

    def gave(self, waiting: int, size_bytes: int, seconds: float) -> None:
        """The training loop got a batch after it waited so long; so many are ready behind it."""
