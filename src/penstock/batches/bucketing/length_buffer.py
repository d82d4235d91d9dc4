"""A buffer of samples sorted by length, which also knows who has waited longest.

Buckets and packing choose from it. What it saves are tickets, lengths and ages; a sample that
a saved state names is made again when it is taken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.stages.run import State, Ticket
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


class Waiting:
    """Samples waiting for their batch, shortest first; of equal ones the first come stands first.

    ``lengths`` and ``items`` go together. ``now`` counts the samples that ever came in.

    >>> buffer = Waiting()
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
        # By age. Those taken are not kept: they hold samples, and others wait much longer.
        self._order: OrderedDict[int, LengthItem] = OrderedDict()

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, length: float, data: Any, ticket: Ticket) -> None:
        item = self._order[self.now] = LengthItem(length, data, ticket, self.now)
        self.now += 1
        place = bisect_right(self.lengths, length)
        self.lengths.insert(place, length)
        self.items.insert(place, item)

    def oldest(self) -> LengthItem:
        """The one that has waited longest."""
        return next(iter(self._order.values()))

    def by_age(self) -> Iterator[LengthItem]:
        """Those that wait, in the order in which they came."""
        return iter(self._order.values())

    def first_of(self, length: float) -> int:
        """The place of the first come among those of a length that is there."""
        return bisect_left(self.lengths, length)

    def longest_within(self, room: float) -> int:
        """The place of the longest that fits, of equal ones the first come; -1 where none does."""
        place = bisect_right(self.lengths, room)
        return bisect_left(self.lengths, self.lengths[place - 1]) if place else -1

    def take(self, begin: int, end: int) -> list[LengthItem]:
        """Take out those from place ``begin`` up to ``end``."""
        found = self.items[begin:end]
        for item in found:
            del self._order[item.arrival]
        del self.items[begin:end]
        del self.lengths[begin:end]
        return found

    def drop(self, item: LengthItem) -> None:
        """Take out one that is there."""
        place = self.first_of(item.length)
        while self.items[place] is not item:
            place += 1
        self.take(place, place + 1)

    def take_all(self, places: Sequence[int]) -> list[LengthItem]:
        """Take out those at the places, the longest first."""
        return [self.take(place, place + 1)[0] for place in sorted(set(places), reverse=True)]

    def state(self) -> State:
        return {
            "now": self.now,
            "tickets": [item.ticket for item in self.items],
            "lengths": list(self.lengths),
            "arrivals": [item.arrival for item in self.items],
        }

    def restore(self, state: State) -> None:
        self.now, self.lengths = state["now"], list(state["lengths"])
        rows = zip(self.lengths, state["tickets"], state["arrivals"])
        self.items = [LengthItem(length, ABSENT, ticket, at) for length, ticket, at in rows]
        by_age = sorted(self.items, key=lambda item: item.arrival)
        self._order = OrderedDict((item.arrival, item) for item in by_age)
