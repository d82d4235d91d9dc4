"""What the source of a row would have saved behind an item, without asking it behind each."""

from __future__ import annotations

from penstock.stages.run import State

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
