"""Functions as stages, in the forms WebDataset has for it.

``pipelinefilter(f)`` makes of ``f(source, …)`` a function of the other arguments, which gives a
stage. ``Plain`` goes the other way: from a stage of the library to ``f(source, …)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from penstock.stages.stage import Bound, Stage


class FilterFunction(Bound):
    """``f(source, …)`` with all arguments but the source: a stage.

    >>> def add(source, n):
    ...     return (item + n for item in source)
    >>> list(FilterFunction(add, 3)([1, 2]))
    [4, 5]
    """

    def __str__(self) -> str:
        return f"<{getattr(self.f, '__name__', self.f)} {self.args} {self.kwargs}>"

    __repr__ = __str__


class RestCurried:
    """A function of everything but the source of ``f``; called, it gives a stage."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        functools.update_wrapper(self, f)

    def __call__(self, *args: Any, **kwargs: Any) -> FilterFunction:
        return FilterFunction(self.f, *args, **kwargs)


def pipelinefilter(f: Callable[..., Any]) -> RestCurried:
    """Decorator: ``f(source, …)`` can be called without the source, and then is a stage.

    >>> @pipelinefilter
    ... def add(source, n):
    ...     return (item + n for item in source)
    >>> list(add(n=3)([1, 2]))
    [4, 5]
    """
    return RestCurried(f)


class Plain:
    """A stage of the library as a function of the source and the stage's arguments.

    >>> from penstock import map
    >>> list(Plain(map)([1, 2], str))
    ['1', '2']
    """

    def __init__(self, stage: type[Stage[Any, Any]]) -> None:
        self.stage = stage
        self.__name__ = f"_{stage.__name__}"
        self.__doc__ = stage.__doc__

    def __call__(self, source: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        result: Iterator[Any] = self.stage(*args, **kwargs)(source)
        return result

    def __repr__(self) -> str:
        return self.__name__
