"""Functions applied to many values in one go, where they can do that.

A function says so by ``goes_together`` and has ``many(values, draws, turn)`` beside its call: what
it gives, or a :class:`~penstock.handlers.Failed`, for each value, as if it had been called
with each. The picture transforms do, so that a whole chunk is one call of the native module and
the interpreter's lock is asked for once, not once for each picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.context import Draws
from penstock.handlers import Failed
from penstock.shards.lazy_bytes import Later

Turn = Callable[[int], None]
"""Called with a place among the values: memory that is asked for next is for that one."""


def goes_together(function: Any) -> bool:
    """Whether a function takes many values at once, as things are now."""
    return bool(getattr(function, "goes_together", False))


def apply_column(
    function: Any,
    values: Sequence[Any],
    draws: Sequence[Draws | None],
    turn: Turn,
) -> list[Any]:
    """What the function gives for each value, or a :class:`Failed`.

    None leaves values as they are; payloads that were left for later are read.

    >>> apply_column(int, ["1", "2"], [None, None], lambda place: None)
    [1, 2]
    """
    if goes_together(function):
        made: list[Any] = function.many(values, draws, turn)
        return made
    drawing = bool(getattr(function, "takes_rng", False))
    results = list[Any]()
    for place, value in enumerate(values):
        if type(value) is Later:
            value = read(value)
            if type(value) is Failed:
                results.append(value)
                continue
        if function is None:
            results.append(value)
            continue
        turn(place)
        results.append(apply_one(function, value, draws[place] if drawing else None))
    return results


def apply_one(function: Any, value: Any, draws: Draws | None) -> Any:
    """What the function gives, or a :class:`Failed`.

    In a call of its own: the error's traceback must not hold what holds the error.
    """
    try:
        return function(value) if draws is None else function(value, draws)
    except BaseException as error:  # noqa: BLE001 - told where the item's turn comes
        return Failed(error)


def read(value: Later) -> Any:
    """The bytes of a payload that was left for later, or a :class:`Failed`."""
    try:
        return value.read()
    except Exception as error:  # noqa: BLE001 - told where the item's turn comes
        return Failed(error, reading=True)
