"""Suggest the known name nearest to a misspelt one: a command, a field, an argument, a stage."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

MOST_NAMES = 100_000
"""More known names than this are not compared: it would take seconds."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'X'?"`` for the known name nearest to a word, or nothing.

    >>> suggest("verfy", ["verify", "stats"]), suggest("quux", ["verify", "stats"])
    ("; did you mean 'verify'?", '')
    """
    names = {name.lower(): name for name in known}
    if len(names) > MOST_NAMES:
        return ""
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


signature_of = functools.lru_cache(maxsize=256)(inspect.signature)  # every state needs it


def check_arguments(cls: Any, named: Iterable[str], *others: Any) -> None:
    """Raise a TypeError with the nearest name for an argument that a class or function refuses.

    ``others`` are classes that take the rest of its arguments.
    """
    for name in named:
        known: dict[str, inspect.Parameter] = {}
        for one in (cls, *others):
            known |= signature_of(one if inspect.isfunction(one) else one.__init__).parameters
        if not others and any(p.kind is p.VAR_KEYWORD for p in known.values()):
            return
        if name not in known:
            hint = suggest(name, known)
            raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {name!r}{hint}")


class ChecksArguments:
    """A base class of those that suggest the nearest name for a misspelt argument."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        check_arguments(cls, kwargs)
        return super().__new__(cls)


def checks_arguments(function: Function) -> Function:
    """Return the function, which then suggests the nearest name for a misspelt argument.

    >>> checks_arguments(suggest)("verfy", know=["verify"])
    Traceback (most recent call last):
    TypeError: suggest() got an unexpected keyword argument 'know'; did you mean 'known'?
    """

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check_arguments(function, kwargs)
        return function(*args, **kwargs)

    return cast(Function, checked)
