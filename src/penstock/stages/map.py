"""Applying functions to samples, to their fields, to their places in a tuple."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from penstock.context import Context, mixed
from penstock.errors import PipelineError, SampleError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.run import EachRun, Run, Ticket
from penstock.stages.stage import Each

In = TypeVar("In")
Out = TypeVar("Out")


class map(Each[In, Out]):
    """Applies ``f`` to each sample. A result of None drops the sample.

    Where sample and result are dicts, the result keeps the sample's ``__key__``.
    With ``rng=True``, ``f(sample, rng)`` gets a ``numpy.random.Generator`` that depends only on the
    seed, the epoch and the sample's place in the order: the same sample is changed the same
    way on any hardware, and again after a resume. With ``rng="global"`` the generators of
    ``random``, numpy and torch are seeded so while ``f`` runs, and put back after it: for
    transforms that use those.

    >>> list(map(lambda x: x * 2)([1, 2]))
    [2, 4]
    >>> noisy = map(lambda x, rng: x + rng.integers(100), rng=True)
    >>> list(noisy([1, 2])) == list(noisy([1, 2]))
    True
    """

    def __init__(
        self,
        f: Callable[..., Out | None],
        handler: Handler = reraise_exception,
        *,
        rng: bool | str = False,
    ) -> None:
        if not callable(f):
            raise PipelineError(f"map needs a function, not {f!r}")
        if rng not in (False, True, "global"):
            raise PipelineError(f"map: rng is True, False or 'global', not {rng!r}")
        self.f, self.handler, self.rng = f, handler, rng

    def apply(self, item: In) -> Out | None:
        result: Out | None = _with_key(self.f(item), item)
        return result

    def start(self, source: Run[In], context: Context) -> Run[Out]:
        return RandomMapRun(self, source, context) if self.rng else EachRun(self, source, context)


def _with_key(result: Any, item: Any) -> Any:
    if isinstance(result, dict) and isinstance(item, dict):
        result["__key__"] = item.get("__key__")
    return result


class RandomMapRun(EachRun[Out]):
    """:class:`map` with a generator, at work."""

    @property
    def whole_process(self) -> bool:
        return bool(self.stage.rng == "global")

    @property
    def rows(self) -> bool:
        return not self.whole_process

    def apply(self, item: Any) -> Any:
        return self.at(item, self.source.ticket)

    def at(self, item: Any, ticket: Ticket) -> Any:
        # json: a ticket that was saved comes back with lists in place of tuples.
        context = self.context
        key = mixed(context.seed, context.epoch, self.depth, json.dumps(ticket), *self.place)
        if self.stage.rng == "global":
            with seeded(key):
                return _with_key(self.stage.f(item), item)
        return _with_key(self.stage.f(item, np.random.Generator(np.random.PCG64(key))), item)


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """The global generators of random, numpy and torch seeded for a while, then as they were."""
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]) if torch is not None else nullcontext():
        random.seed(key)
        np.random.seed(key & 0xFFFFFFFF)
        if torch is not None:
            torch.manual_seed(key >> 1)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


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
