"""Applies functions to many values in one call, if they can do that.

Such a function sets ``goes_together`` and has ``many(values, draws, turn)`` besides its call, which
returns the result or a :class:`~penstock.handlers.Failed` for each value. The image transforms do,
so that a whole chunk is one call of the native module, which takes the GIL once and not once for
each image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.handlers import Failed
from penstock.rng import CounterRng
from penstock.shards.lazy_bytes import Later

Turn = Callable[[int], None]
"""Called with the index of a value: memory that is allocated next is for that one."""


def goes_together(function: Any) -> bool:
    """Return True if a function takes many values at once at present."""
    return bool(getattr(function, "goes_together", False))


def apply_column(
    function: Any,
    values: Sequence[Any],
    draws: Sequence[CounterRng | None],
    turn: Turn,
) -> list[Any]:
    """Return the function's result for each value, or a :class:`Failed`.

    The function None leaves values unchanged; unread payloads are read.

    >>> apply_column(int, ["1", "2"], [None, None], lambda index: None)
    [1, 2]
    """
    if goes_together(function):
        made: list[Any] = function.many(values, draws, turn)
        return made
    drawing = bool(getattr(function, "takes_rng", False))
    results = list[Any]()
    for index, value in enumerate(values):
        if type(value) is Later:
            value = read(value)
            if type(value) is Failed:
                results.append(value)
                continue
        if function is None:
            results.append(value)
            continue
        turn(index)
        results.append(apply_one(function, value, draws[index] if drawing else None))
    return results


def apply_one(function: Any, value: Any, draws: CounterRng | None) -> Any:
    """Return the function's result, or a :class:`Failed`.

    A separate call: the error's traceback must not refer to the list that holds the error.
    """
    try:
        return function(value) if draws is None else function(value, draws)
    except BaseException as error:  # noqa: BLE001 - raised when the item's turn comes
        return Failed(error)


def read(value: Later) -> Any:
    """Return the bytes of an unread payload, or a :class:`Failed`."""
    try:
        return value.read()
    except Exception as error:  # noqa: BLE001 - raised when the item's turn comes
        return Failed(error, reading=True)
