"""What the source of a row would have saved behind an item, without asking it behind each.

A source's state may be large. It is noted now and then, and of the other items only how many came
since: whoever takes that up reads those again, and passes over them.
"""

from __future__ import annotations

from typing import Any

from penstock.stages.run import State
from penstock.stages.segment import EachRun

Mark = tuple[State, int]
"""What a source saved at some item, and how many items came since."""

MANY_TICKETS = 32
NOTED_ITEMS, NOTED_LEAVES = 16, 256
"""The source's state is noted every so many items, and that much less often the larger it is."""


def leaves(state: State) -> int:
    """How many values a state has, roughly."""
    if isinstance(state, dict):
        return sum(map(leaves, state.values()))
    if isinstance(state, (list, tuple)):
        if state and isinstance(state[0], (int, float, str)):
            return len(state)
        if len(state) > MANY_TICKETS:  # a buffer's: all of a kind
            return len(state) * sum(map(leaves, state[:8])) // 8
        return sum(map(leaves, state))
    return 1


def every(state: State) -> int:
    """After how many items the source's state is noted again."""
    return NOTED_ITEMS * (1 + leaves(state) // NOTED_LEAVES)


class Noted:
    """Where the source of a row stands; it is told of each item that the source gives."""

    def __init__(self, first: EachRun[Any]) -> None:
        self.source = first.source
        self._replayed = bool(self.source.opaque())
        behind, saved = first._behind, first.state()
        self.state: State = saved["source"] if behind else saved
        self.since = behind
        self.every = every(self.state)

    @property
    def mark(self) -> Mark:
        """Behind the item that the source gave last."""
        return self.state, self.since

    def count(self) -> Mark:
        """The source gave an item, behind which this is the mark."""
        self.since += 1
        if self.since >= self.every:
            self.note()
        return self.state, self.since

    def note_next(self) -> None:
        """Save the source's state with its next item: a shard was opened, and the state says which
        version of it."""
        self.every = 1

    def note(self) -> None:
        """Items are counted from here: what the source would save now is known."""
        self.since = 0
        if not self._replayed:
            self.state = self.source.saved()
            self.every = every(self.state)

    def passed(self, count: int) -> None:
        """So many of the items that the source had ready were taken.

        The state is noted behind the same items as if each had come by itself: of the places
        passed over now, all in one shard, the last.
        """
        beyond = (self.since + count) % self.every
        if count > beyond:
            self.source.passed(count - beyond)
            self.note()
            count = beyond
        if count:
            self.source.passed(count)
        self.since += count
