"""Small functions on stages, samples and tuples that programs import from WebDataset."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from typing import Any, TypeVar

from penstock.errors import PipelineError
from penstock.stages.field_names import parse_fields

T = TypeVar("T")


def identity(x: T) -> T:
    """Return the argument."""
    return x


def compose2(f: Callable[[Any], Any], g: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that applies ``f``, then ``g``.

    >>> compose2(abs, str)(-1)
    '1'
    """
    return lambda x: g(f(x))


def compose(*functions: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that applies all functions, the first one first.

    >>> compose(abs, str, len)(-10)
    2
    """
    return functools.reduce(compose2, functions)


def pipeline(source: Any, *stages: Callable[[Any], Any]) -> Any:
    """Apply all stages to the source.

    >>> import penstock as wds
    >>> list(pipeline([1, 2], wds.map(str)))
    ['1', '2']
    """
    return compose(identity, *stages)(source)


def parse_field_spec(fields: str | Iterable[str]) -> list[list[str]]:
    """Split fields at spaces, and each into its alternatives.

    >>> parse_field_spec("jpg;png cls")
    [['jpg', 'png'], ['cls']]
    """
    return [
        parse_fields(field) for field in (fields.split() if isinstance(fields, str) else fields)
    ]


def transform_with(sample: Sequence[Any], transformers: Sequence[Any] | None) -> Sequence[Any]:
    """Apply a function to each value; None, or no function, leaves it unchanged.

    >>> transform_with([1, 2, 3], [str, None])
    ['1', 2, 3]
    """
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise PipelineError(f"{len(transformers)} functions for a sample of {len(sample)} values")
    functions = [*transformers, *[None] * (len(sample) - len(transformers))]
    return [value if f is None else f(value) for f, value in zip(functions, sample)]


def transformer(transformers: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return :func:`transform_with` as a function of the sample alone."""
    return functools.partial(transform_with, transformers=transformers)


def pick(buf: list[T], rng: random.Random) -> T:
    """Remove and return a random item of a list; the last item moves to its index.

    >>> items = [1, 2, 3]
    >>> pick(items, random.Random(0)), items
    (2, [1, 3])
    """
    index = rng.randint(0, len(buf) - 1)
    buf[index], buf[-1] = buf[-1], buf[index]
    return buf.pop()


def tuple2dict(values: Any) -> dict[Any, Any]:
    """Return the values by their index; a dict is returned unchanged.

    >>> tuple2dict(("a", "b"))
    {0: 'a', 1: 'b'}
    """
    return values if isinstance(values, dict) else dict(enumerate(values))


def dict2tuple(d: dict[int, Any]) -> tuple[Any, ...]:
    """Return the tuple of a dict made by :func:`tuple2dict`.

    >>> dict2tuple({1: "b", 0: "a"})
    ('a', 'b')
    """
    return tuple(d[index] for index in range(1 + max(d)))


def find_decoder(
    decoders: Sequence[tuple[str, Callable[[Any], Any]]], path: str
) -> Callable[[Any], Any] | None:
    """Return the function of the last pattern that matches the name, or None.

    >>> find_decoder([("*.txt", len)], "a/b.TXT")
    <built-in function len>
    """
    name = path.rpartition("/")[2].lower()
    if name.startswith("__"):
        return identity
    found = [f for pattern, f in decoders if fnmatch(name, pattern) or fnmatch(f".{name}", pattern)]
    return found[-1] if found else None
