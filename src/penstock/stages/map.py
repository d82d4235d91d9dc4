"""Stages that apply functions to samples, to their fields, or to elements of tuples."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from penstock.context import Context
from penstock.errors import PipelineError, SampleError
from penstock.handlers import Failed, Handler, reraise_exception
from penstock.rng import CounterRng, stable_hash
from penstock.shards.lazy_bytes import Later
from penstock.stages.run import Run, Ticket, Together
from penstock.stages.segment import EachRun
from penstock.stages.stage import Each
from penstock.stages.together import Turn, apply_column, goes_together, read

SHARD_TICKET = [int, int]
"""The types in a ticket of a sample in a shard: the shard's number, and the byte."""
map_ = map  # the builtin: the stage below has its name
In = TypeVar("In")
Out = TypeVar("Out")


class map(Each[In, Out]):
    """Applies ``f`` to each sample. A result of None drops the sample.

    If sample and result are dicts, the result keeps the sample's ``__key__``.
    With ``rng=True``, ``f(sample, rng)`` gets a ``numpy.random.Generator`` that depends only on the
    seed, the epoch and the sample's position in the order: the same sample is changed the same
    way on any hardware, and again after a resume. With ``rng="global"`` the generators of
    ``random``, numpy and torch are seeded this way while ``f`` runs, and restored after it: for
    transforms that use those.

    A function with the attribute ``takes_rng = True``, such as the random ones of
    :mod:`penstock.transforms`, is always called as ``f(sample, draws)``: ``draws.random()`` is a
    number from 0 to 1 and ``draws.below(n)`` one below n. They cost less than numpy's.

    >>> list(map(lambda x: x * 2)([1, 2]))
    [2, 4]
    >>> noisy = map(lambda x, rng: x + rng.integers(100), rng=True)
    >>> list(noisy([1, 2])) == list(noisy([1, 2]))
    True
    """

    keeps_count = True

    def __init__(
        self,
        f: Callable[..., Out | None],
        handler: Handler = reraise_exception,
        *,
        rng: bool | str = False,
    ) -> None:
        if not callable(f):
            raise PipelineError(f"map needs a function, not {f!r}")
        self.f, self.handler, self.rng = f, handler, _check_rng("map", rng)

    def apply(self, item: In) -> Out | None:
        result: Out | None = _with_key(self.f(item), item)
        return result

    def apply_drawing(self, item: In, key: int) -> Out | None:
        """Apply the function with the random numbers of a key."""
        if self.rng == "global":
            with seed_globals(key):
                return self.apply(item)
        rng = np.random.Generator(np.random.PCG64(key)) if self.rng else CounterRng(key)
        result: Out | None = _with_key(self.f(item, rng), item)
        return result

    def start(self, source: Run[In], context: Context) -> Run[Out]:
        draws = self.rng or takes_rng(self.f)
        return DrawingRun(self, source, context) if draws else EachRun(self, source, context)


def takes_rng(function: Any) -> bool:
    """Return True if a function takes random numbers: ``f(value, draws)``."""
    return bool(getattr(function, "takes_rng", False))


def _check_rng(stage: str, rng: Any) -> bool | str:
    if rng not in (False, True, "global"):
        raise PipelineError(f"{stage}: rng is True, False or 'global', not {rng!r}")
    checked: bool | str = rng
    return checked


def _call(function: Any, value: Any, draws: CounterRng, rng: Any) -> Any:
    """Call a function of ``map_tuple`` or ``map_dict`` with the random numbers that it takes."""
    if takes_rng(function):
        return function(value, draws)
    return function(value) if rng is None else function(value, rng)


@contextmanager
def _generator(rng: bool | str, key: int) -> Iterator[Any]:
    """Seed the global generators, or yield a numpy generator for functions that take one."""
    if rng == "global":
        with seed_globals(key):
            yield None
    else:
        yield np.random.Generator(np.random.PCG64(key)) if rng else None


def _with_key(result: Any, item: Any) -> Any:
    if isinstance(result, dict) and isinstance(item, dict):
        result["__key__"] = item.get("__key__")
    return result


class DrawingRun(EachRun[Out]):
    """Runs a stage that passes random numbers to its functions.

    The numbers depend on the seed, the epoch, the stage and the ticket, and not on earlier items:
    :meth:`at` may be called for any item, in any order, from any thread.
    """

    drops_at_random = True

    @property
    def whole_process(self) -> bool:
        return getattr(self.stage, "rng", False) == "global"

    @property
    def rows(self) -> bool:
        return not self.whole_process

    def apply(self, item: Any) -> Any:
        return self.at(item, self.source.ticket)

    def at(self, item: Any, ticket: Ticket) -> Any:
        """Apply the stage to the item of a ticket."""
        return self.stage.apply_drawing(item, self.key(ticket))

    def key(self, ticket: Ticket) -> int:
        """Return the key of the random numbers for the item of a ticket."""
        # JSON, because a saved ticket comes back with lists instead of tuples.
        if type(ticket) is tuple and [*map_(type, ticket)] == SHARD_TICKET:
            text = f"[{ticket[0]}, {ticket[1]}]"  # as json writes two numbers, but faster
        else:
            text = json.dumps(ticket)
        context = self.context
        return stable_hash(context.seed, context.epoch, self.depth, text, *self.stream_id)

    def together(self) -> Together | None:
        if type(self).at is not DrawingRun.at or not getattr(self.stage, "goes_together", False):
            return None
        apply, key = self.stage.apply_together, self.key
        return lambda items, tickets, turn: apply(items, [key(t) for t in tickets], turn)


@contextmanager
def seed_globals(key: int) -> Iterator[None]:
    """Seed the global generators of random, numpy and torch, and restore them afterwards."""
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


def _draws(keys: list[int] | None, count: int) -> list[CounterRng | None]:
    return [None] * count if keys is None else [CounterRng(key) for key in keys]


def _apply_at(
    function: Any,
    indices: list[int],
    results: list[Any],
    field: Any,
    draws: list[CounterRng | None],
    turn: Turn,
) -> None:
    """Apply a function to one field of the items at these indices, in place."""
    values = [results[index][field] for index in indices]
    if function is None and not any(type(value) is Later for value in values):
        return
    drawn = [draws[index] for index in indices]
    made = apply_column(function, values, drawn, lambda number: turn(indices[number]))
    for index, value in zip(indices, made):
        if type(value) is Failed:
            results[index] = value
        else:
            results[index][field] = value


class map_dict(Each[dict[str, Any], dict[str, Any]]):
    """Applies a function to each named field: ``map_dict(jpg=augment, cls=int)``.

    With ``rng=True`` each function is called as ``f(value, rng)``; with ``rng="global"`` the global
    generators are seeded while they run, for transforms such as torchvision's: see :class:`map`.
    Functions with ``takes_rng = True`` get random numbers in any case.

    >>> list(map_dict(cls=str)([{"__key__": "a", "cls": 3}]))
    [{'__key__': 'a', 'cls': '3'}]
    """

    keeps_count = True

    def __init__(
        self,
        handler: Handler = reraise_exception,
        *,
        rng: bool | str = False,
        **functions: Callable[..., Any],
    ) -> None:
        if not functions:
            raise PipelineError("map_dict needs at least one field=function")
        self.handler, self.functions, self.rng = handler, functions, _check_rng("map_dict", rng)

    def apply(self, item: dict[str, Any]) -> dict[str, Any]:
        for field, function in self.functions.items():
            item[field] = function(item[field])
        return item

    def apply_drawing(self, item: dict[str, Any], key: int) -> dict[str, Any]:
        """Apply the functions with the random numbers of a key, which they draw in turn."""
        draws = CounterRng(key)
        with _generator(self.rng, key) as rng:
            for field, function in self.functions.items():
                item[field] = _call(function, item[field], draws, rng)
        return item

    @property
    def goes_together(self) -> bool:
        """True if a function takes many values at once, and no subclass overrides ``apply``."""
        kind = type(self)
        own = (kind.apply, kind.apply_drawing) != (map_dict.apply, map_dict.apply_drawing)
        return not (own or self.rng) and any(map_(goes_together, self.functions.values()))

    def apply_together(
        self, items: list[dict[str, Any]], keys: list[int] | None, turn: Turn
    ) -> list[Any]:
        """Return the result of each item, or a :class:`Failed`, as if it came alone."""
        draws = _draws(keys, len(items))
        results: list[Any] = list(items)
        alone = set[int]()  # items of other types, which may look up fields in another way
        for index, item in enumerate(items):
            if type(item) is not dict:
                turn(index)
                alone.add(index)
                results[index] = self._apply_alone(item, keys[index] if keys is not None else None)
                continue
            for field, value in item.items():
                if type(value) is Later and field not in self.functions:
                    item[field] = read(value)
                    if type(item[field]) is Failed:
                        results[index] = item[field]
        for field, function in self.functions.items():
            indices = list[int]()
            for index, item in enumerate(results):
                if index in alone:
                    continue
                if type(item) is not Failed and field in item:
                    indices.append(index)
                elif type(item) is not Failed:
                    results[index] = Failed(KeyError(field))
            _apply_at(function, indices, results, field, draws, turn)
        return results

    def _apply_alone(self, item: Any, key: int | None) -> Any:
        # A separate call: the error's traceback must not refer to the list that holds the error.
        try:
            return self.apply(item) if key is None else self.apply_drawing(item, key)
        except BaseException as error:  # noqa: BLE001 - raised when the item's turn comes
            return Failed(error)

    def start(self, source: Run[dict[str, Any]], context: Context) -> Run[dict[str, Any]]:
        draws = self.rng or any(takes_rng(function) for function in self.functions.values())
        return DrawingRun(self, source, context) if draws else EachRun(self, source, context)


class map_tuple(Each[Any, tuple[Any, ...]]):
    """Applies a function to each element of a tuple; None leaves the element unchanged.

    With ``rng=True`` each function is called as ``f(value, rng)``; with ``rng="global"`` the global
    generators are seeded while they run, for transforms such as torchvision's: see :class:`map`.
    Functions with ``takes_rng = True`` get random numbers in any case.

    >>> list(map_tuple(str, None)([(1, 2)]))
    [('1', 2)]
    """

    keeps_count = True

    def __init__(
        self,
        *functions: Callable[..., Any] | None,
        handler: Handler = reraise_exception,
        rng: bool | str = False,
    ) -> None:
        self.functions, self.handler, self.rng = functions, handler, _check_rng("map_tuple", rng)

    def apply(self, item: Any) -> tuple[Any, ...]:
        values = self._values(item)
        for index, function in enumerate(self.functions[: len(values)]):
            if function is not None:
                values[index] = function(values[index])
        return tuple(values)

    def apply_drawing(self, item: Any, key: int) -> tuple[Any, ...]:
        """Apply the functions with the random numbers of a key, which they draw in turn."""
        values, draws = self._values(item), CounterRng(key)
        with _generator(self.rng, key) as rng:
            for index, function in enumerate(self.functions[: len(values)]):
                if function is not None:
                    values[index] = _call(function, values[index], draws, rng)
        return tuple(values)

    @staticmethod
    def _wrong_type(item: Any) -> SampleError:
        return SampleError(
            f"map_tuple needs tuples, not {type(item).__name__}: to_tuple(...) makes them"
        )

    def _values(self, item: Any) -> list[Any]:
        if not isinstance(item, (tuple, list)):
            raise self._wrong_type(item)
        return list(item)

    @property
    def goes_together(self) -> bool:
        """True if a function takes many values at once, and no subclass overrides ``apply``."""
        kind = type(self)
        own = (kind.apply, kind.apply_drawing) != (map_tuple.apply, map_tuple.apply_drawing)
        return not (own or self.rng) and any(map_(goes_together, self.functions))

    def apply_together(self, items: list[Any], keys: list[int] | None, turn: Turn) -> list[Any]:
        """Return the result of each item, or a :class:`Failed`, as if it came alone."""
        draws = _draws(keys, len(items))
        results: list[Any] = []
        for item in items:
            right = isinstance(item, (tuple, list))
            results.append(list(item) if right else Failed(self._wrong_type(item)))
        longest = max((len(r) for r in results if type(r) is not Failed), default=0)
        for column in range(longest):
            function = self.functions[column] if column < len(self.functions) else None
            fits = [i for i, r in enumerate(results) if type(r) is not Failed and column < len(r)]
            _apply_at(function, fits, results, column, draws, turn)
        return [result if type(result) is Failed else tuple(result) for result in results]

    def start(self, source: Run[Any], context: Context) -> Run[tuple[Any, ...]]:
        draws = self.rng or any(takes_rng(function) for function in self.functions)
        return DrawingRun(self, source, context) if draws else EachRun(self, source, context)
