"""An assertion with a message, shared by the contract suites."""

from __future__ import annotations


def expect(condition: bool, promise: str) -> None:
    """Raise an AssertionError with the promise if the condition is false."""
    if not condition:
        raise AssertionError(promise)
