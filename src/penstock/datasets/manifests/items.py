"""Items of a manifest that are computed on demand: a function and its input and output keys."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from penstock.errors import PipelineError

Keys = Sequence[Any]
"""Names of items; a generator yields the values of a nested list of names together."""


class DynamicItem:
    """A function with the keys of its arguments (``takes``) and of its results (``provides``).

    With several keys in ``provides`` the function returns a tuple with a value for each. An item
    is called like the function. It is pickled by name if it is an attribute of a module, as
    decorated functions are, so it can be sent to loader workers of every kind.

    >>> item = DynamicItem(["a", "b"], lambda a, b: a + b, ["sum"])
    >>> item(1, 2)
    3
    """

    def __init__(
        self,
        takes: str | Keys = (),
        func: Callable[..., Any] | None = None,
        provides: str | Keys = (),
    ) -> None:
        if not callable(func):
            raise PipelineError(f"an item needs a function, not {func!r}")
        functools.update_wrapper(self, func, updated=())
        self.takes, self.func, self.provides = as_keys(takes), func, as_keys(provides)

    def __call__(self, *args: Any) -> Any:
        return self.func(*args)

    def calls(self) -> list[list[str]]:
        """Return the keys that each call provides: a function is called once."""
        return [list(self.provides)]

    def provided_in_order(self) -> list[list[str]]:
        """Return :meth:`calls`, under SpeechBrain's name."""
        return self.calls()

    def next_takes(self) -> Keys:
        """Return the keys of the arguments of the next direct call."""
        return tuple(self.takes)

    def next_provides(self) -> Keys:
        """Return the keys that the next direct call provides."""
        return tuple(self.provides)

    def reset(self) -> None:
        """Prepare for the next sample: a generator is closed, a function has no state."""

    @property
    def name(self) -> str:
        """The function's name, for errors."""
        return str(getattr(self.func, "__qualname__", repr(self.func)))

    def __reduce__(self) -> Any:
        # A decorated function's name refers to the item, so pickle could not find the function.
        found: Any = sys.modules.get(getattr(self.func, "__module__", ""))
        for part in self.name.split("."):
            found = getattr(found, part, None)
        return self.name if found is self else self._parts()

    def _parts(self) -> Any:
        return type(self), (self.takes, self.func, self.provides)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.takes} to {self.provides})"


class GeneratorDynamicItem(DynamicItem):
    """A generator function: each ``yield`` provides one key, or a list of keys as a tuple.

    In a pipeline it runs only as far as the requested keys need. Called directly, the first call
    takes the arguments and each call returns the next yielded value; :meth:`reset` starts over.
    Calls after the last yield raise a RuntimeError.

    >>> def steps(text):
    ...     words = text.split()
    ...     yield words
    ...     yield len(words)
    >>> item = GeneratorDynamicItem(["text"], steps, ["words", "count"])
    >>> item("one two"), item()
    (['one', 'two'], 2)
    """

    _running: Generator[Any, Any, Any] | None = None
    _given = 0

    def __call__(self, *args: Any) -> Any:
        if self._given == len(self.provides):
            raise RuntimeError(f"{self.name} has provided all of {self.provides}: call reset()")
        if self._running is None:
            self._running = self.func(*args)
        value = next(self._running)
        self._given += 1
        return value

    def calls(self) -> list[list[str]]:
        return [as_keys(keys) for keys in self.provides]

    def next_takes(self) -> Keys:
        """Return the keys of the arguments; none while the generator runs."""
        return tuple(self.takes) if self._running is None else ()

    def next_provides(self) -> Keys:
        """Return the keys of the next ``yield``."""
        return tuple(self.calls()[self._given])

    def reset(self) -> None:
        """Close the generator: the next direct call takes arguments again."""
        if self._running is not None:
            self._running.close()
        self._running, self._given = None, 0


def takes(*keys: str) -> Callable[[Any], DynamicItem]:
    """Decorate a function as an item with these keys for its arguments.

    A generator function becomes a :class:`GeneratorDynamicItem`. Setting the keys twice raises
    a :class:`~penstock.errors.PipelineError` (a ValueError).

    >>> @takes("text")
    ... @provides("words")
    ... def split(text):
    ...     return text.split()
    >>> split
    DynamicItem(split: ['text'] to ['words'])
    """
    return functools.partial(_set_keys, "takes", keys)


def provides(*keys: Any) -> Callable[[Any], DynamicItem]:
    """Decorate a function as an item with these keys for its results.

    A function with several keys returns a tuple; a generator function yields the keys one by one,
    and a list of keys as a tuple.

    >>> @provides("wav", ["left", "right"])
    ... @takes("path")
    ... def stereo(path):
    ...     yield [path]
    ...     yield 1, 2
    >>> stereo.calls()
    [['wav'], ['left', 'right']]
    """
    return functools.partial(_set_keys, "provides", keys)


def _set_keys(what: str, keys: Keys, function: Any) -> DynamicItem:
    item = function if isinstance(function, DynamicItem) else as_item(function)
    if getattr(item, what):
        raise PipelineError(f"{item!r} has its {what!r} already: name all keys at once")
    setattr(item, what, as_keys(keys))
    return item


def as_item(function: Any, takes: str | Keys = (), provides: str | Keys = ()) -> DynamicItem:
    """Return the item for a function or generator function."""
    generator = inspect.isgeneratorfunction(function)
    kind = GeneratorDynamicItem if generator else DynamicItem
    return kind(takes, function, provides)


def as_keys(keys: str | Iterable[Any]) -> list[Any]:
    """Return keys as a list; a single key may be given as a string.

    >>> as_keys("wav"), as_keys(("a", "b"))
    (['wav'], ['a', 'b'])
    """
    return [keys] if isinstance(keys, str) else list(keys)
