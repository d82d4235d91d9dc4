"""Functions as stages, in WebDataset's forms.

``pipelinefilter(f)`` turns ``f(source, …)`` into a function of the other arguments that returns a
stage. ``Plain`` is the opposite: it turns a stage of the library into ``f(source, …)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from penstock.stages.stage import Bound, Stage


class FilterFunction(Bound):
    """A stage that holds ``f(source, …)`` and all arguments but the source.

    >>> def add(source, n):
    ...     return (item + n for item in source)
    >>> list(FilterFunction(add, 3)([1, 2]))
    [4, 5]
    """

    def __str__(self) -> str:
        return f"<{getattr(self.f, '__name__', self.f)} {self.args} {self.kwargs}>"

    __repr__ = __str__


class RestCurried:
    """A function of all arguments of ``f`` but the source, which returns a stage."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        functools.update_wrapper(self, f)

    def __call__(self, *args: Any, **kwargs: Any) -> FilterFunction:
        return FilterFunction(self.f, *args, **kwargs)


def pipelinefilter(f: Callable[..., Any]) -> RestCurried:
    """Decorate ``f(source, …)`` so that a call without the source returns a stage.

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
