"""A buffer of samples sorted by length, which also finds the sample that has waited longest.

Bucketing and packing choose batches from it. Its state holds tickets, lengths and ages; after a
resume, a sample is read again when it is taken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.batches.batched import BatchedRun
from penstock.context import Context
from penstock.errors import StateError
from penstock.stages.run import Run, State, Ticket, as_count
from penstock.stages.shuffle import ABSENT


class LengthItem:
    """A sample in the buffer: its ``length``, the sample itself as ``data``, and its ticket.

    >>> LengthItem(3, "abc", 0) < LengthItem(4, "abcd", 1)
    True
    """

    __slots__ = ("arrival", "data", "length", "ticket")

    def __init__(self, length: float, data: Any, ticket: Ticket, arrival: int = 0) -> None:
        self.length, self.data, self.ticket, self.arrival = length, data, ticket, arrival

    def __lt__(self, other: LengthItem) -> bool:
        return self.length < other.length

    def __repr__(self) -> str:
        return f"LengthItem({self.length!r}, {self.data!r})"


class LengthBuffer:
    """Samples waiting for their batch, shortest first; of equal lengths, the oldest first.

    ``lengths[n]`` is the length of ``items[n]``. ``now`` counts all samples ever added.

    >>> buffer = LengthBuffer()
    >>> for length in (5, 2, 9, 2):
    ...     buffer.add(length, "x" * length, None)
    >>> buffer.lengths, buffer.oldest().length
    ([2, 2, 5, 9], 5)
    >>> [item.length for item in buffer.take(1, 3)], buffer.lengths, buffer.oldest().length
    ([2, 5], [2, 9], 2)
    """

    def __init__(self) -> None:
        self.lengths: list[float] = []
        self.items: list[LengthItem] = []
        self.now = 0
        # By age. Taken items are removed at once: they hold samples, and others wait much longer.
        self._order: OrderedDict[int, LengthItem] = OrderedDict()

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, length: float, data: Any, ticket: Ticket) -> None:
        item = self._order[self.now] = LengthItem(length, data, ticket, self.now)
        self.now += 1
        index = bisect_right(self.lengths, length)
        self.lengths.insert(index, length)
        self.items.insert(index, item)

    def oldest(self) -> LengthItem:
        """Return the item that has waited longest."""
        return next(iter(self._order.values()))

    def by_age(self) -> Iterator[LengthItem]:
        """Return an iterator over the items, oldest first."""
        return iter(self._order.values())

    def first_of(self, length: float) -> int:
        """Return the index of the oldest item of a length, which must be in the buffer."""
        return bisect_left(self.lengths, length)

    def longest_within(self, limit: float) -> int:
        """Return the index of the longest item up to ``limit``, the oldest of equals; else -1."""
        index = bisect_right(self.lengths, limit)
        return bisect_left(self.lengths, self.lengths[index - 1]) if index else -1

    def take(self, begin: int, end: int) -> list[LengthItem]:
        """Remove and return the items from index ``begin`` up to ``end``."""
        found = self.items[begin:end]
        for item in found:
            del self._order[item.arrival]
        del self.items[begin:end]
        del self.lengths[begin:end]
        return found

    def drop(self, item: LengthItem) -> None:
        """Remove an item, which must be in the buffer."""
        index = self.first_of(item.length)
        while self.items[index] is not item:
            index += 1
        self.take(index, index + 1)

    def take_all(self, indices: Sequence[int]) -> list[LengthItem]:
        """Remove and return the items at these indices, the longest first."""
        return [self.take(index, index + 1)[0] for index in sorted(set(indices), reverse=True)]

    def state(self) -> State:
        return {
            "now": self.now,
            "tickets": [item.ticket for item in self.items],
            "lengths": list(self.lengths),
            "arrivals": [item.arrival for item in self.items],
        }

    def restore(self, state: State) -> None:
        self.now, self.lengths = as_count(state["now"]), list(state["lengths"])
        tickets, arrivals = state["tickets"], state["arrivals"]
        arrived = {as_count(arrival, self.now - 1) for arrival in arrivals}
        if sorted(self.lengths) != self.lengths or len(arrived) < len(arrivals):
            raise StateError("the state is damaged: the buffer of lengths is not in order")
        rows = zip(self.lengths, tickets, arrivals, strict=True)
        self.items = [LengthItem(length, ABSENT, ticket, at) for length, ticket, at in rows]
        by_age = sorted(self.items, key=lambda item: item.arrival)
        self._order = OrderedDict((item.arrival, item) for item in by_age)


class LengthBufferRun(BatchedRun):
    """A run that chooses its batches from a :class:`LengthBuffer` of ``size`` samples."""

    ended_early = False
    """True once a handler has ended the stream: the buffer is emptied, nothing more is read."""

    def __init__(self, stage: Any, source: Run[Any], context: Context, size: int) -> None:
        super().__init__(stage, source, context)
        # A buffer's size is that of all lanes together, once the data is split between them.
        self.lanes = context.lanes or 1 if self.stream_id else 1
        self.size = max(size // self.lanes, 1)
        self.waiting = LengthBuffer()

    def left(self) -> int | None:
        return None

    def skip_ahead(self, count: int) -> bool:
        return False
