"""Applying functions to samples, to their fields, to their places in a tuple."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.errors import PipelineError, SampleError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.stage import Each

In = TypeVar("In")
Out = TypeVar("Out")


class map(Each[In, Out]):
    """Applies ``f`` to each sample. A result of None drops the sample.

    Where sample and result are dicts, the result keeps the sample's ``__key__``.

    >>> list(map(lambda x: x * 2)([1, 2]))
    [2, 4]
    """

    def __init__(self, f: Callable[[In], Out | None], handler: Handler = reraise_exception) -> None:
        if not callable(f):
            raise PipelineError(f"map needs a function, not {f!r}")
        self.f, self.handler = f, handler

    def apply(self, item: In) -> Out | None:
        result = self.f(item)
        if isinstance(result, dict) and isinstance(item, dict):
            result["__key__"] = item.get("__key__")
        return result


class map_dict(Each[dict[str, Any], dict[str, Any]]):
    """Applies a function to each named field: ``map_dict(jpg=augment, cls=int)``.

    >>> list(map_dict(cls=str)([{"__key__": "a", "cls": 3}]))
    [{'__key__': 'a', 'cls': '3'}]
    """

    def __init__(
        self, handler: Handler = reraise_exception, **functions: Callable[[Any], Any]
    ) -> None:
        if not functions:
            raise PipelineError("map_dict needs at least one field=function")
        self.handler, self.functions = handler, functions

    def apply(self, item: dict[str, Any]) -> dict[str, Any]:
        for field, function in self.functions.items():
            item[field] = function(item[field])
        return item


class map_tuple(Each[Any, tuple[Any, ...]]):
    """Applies a function to each place of a tuple; None leaves the place as it is.

    >>> list(map_tuple(str, None)([(1, 2)]))
    [('1', 2)]
    """

    def __init__(
        self, *functions: Callable[[Any], Any] | None, handler: Handler = reraise_exception
    ) -> None:
        self.functions, self.handler = functions, handler

    def apply(self, item: Any) -> tuple[Any, ...]:
        if not isinstance(item, (tuple, list)):
            raise SampleError(
                f"map_tuple needs tuples, not {type(item).__name__}: to_tuple(...) makes them"
            )
        values = list(item)
        for place, function in enumerate(self.functions[: len(values)]):
            if function is not None:
                values[place] = function(values[place])
        return tuple(values)
