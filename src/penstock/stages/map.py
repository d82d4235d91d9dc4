"""Applying functions to samples, to their fields, to their places in a tuple."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np

from penstock.context import Context, Draws, mixed
from penstock.errors import PipelineError, SampleError
from penstock.handlers import Failed, Handler, reraise_exception
from penstock.shards.lazy_bytes import Later
from penstock.stages.segment import EachRun
from penstock.stages.run import Run, Ticket, Together
from penstock.stages.stage import Each
from penstock.stages.together import Turn, apply_column, goes_together, read

PLACE = [int, int]
"""The tickets of samples in shards: which shard, and at which byte."""
map_ = map  # the builtin, whose name a stage has below
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

    A function that says ``takes_rng = True``, as the random ones of :mod:`penstock.transforms` do,
    is given such numbers without being asked for: ``f(sample, draws)``, where ``draws.random()``
    is a number from 0 to 1 and ``draws.below(n)`` one below n. They cost less than numpy's.

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

    def apply_drawing(self, item: In, key: int) -> Out | None:
        """The same with the random numbers of a key."""
        if self.rng == "global":
            with seeded(key):
                return self.apply(item)
        rng = np.random.Generator(np.random.PCG64(key)) if self.rng else Draws(key)
        result: Out | None = _with_key(self.f(item, rng), item)
        return result

    def start(self, source: Run[In], context: Context) -> Run[Out]:
        draws = self.rng or takes_rng(self.f)
        return DrawingRun(self, source, context) if draws else EachRun(self, source, context)


def takes_rng(function: Any) -> bool:
    """Whether a function wants random numbers: ``f(value, draws)``."""
    return bool(getattr(function, "takes_rng", False))


def _with_key(result: Any, item: Any) -> Any:
    if isinstance(result, dict) and isinstance(item, dict):
        result["__key__"] = item.get("__key__")
    return result


class DrawingRun(EachRun[Out]):
    """A stage that gives its functions random numbers, at work.

    The numbers depend on the seed, the epoch, the stage and the ticket, and on nothing that came
    before: :meth:`at` may be called for any item, in any order, from any thread.
    """

    @property
    def whole_process(self) -> bool:
        return getattr(self.stage, "rng", False) == "global"

    @property
    def rows(self) -> bool:
        return not self.whole_process

    def apply(self, item: Any) -> Any:
        return self.at(item, self.source.ticket)

    def at(self, item: Any, ticket: Ticket) -> Any:
        """What happens to the item of a ticket."""
        return self.stage.apply_drawing(item, self.key(ticket))

    def key(self, ticket: Ticket) -> int:
        """What the random numbers of a ticket's item depend on."""
        # json: a ticket that was saved comes back with lists in place of tuples.
        if type(ticket) is tuple and [*map_(type, ticket)] == PLACE:
            text = f"[{ticket[0]}, {ticket[1]}]"  # what json says of two numbers, sooner
        else:
            text = json.dumps(ticket)
        context = self.context
        return mixed(context.seed, context.epoch, self.depth, text, *self.place)

    def together(self) -> Together | None:
        if type(self).at is not DrawingRun.at or not getattr(self.stage, "goes_together", False):
            return None
        apply, key = self.stage.apply_together, self.key
        return lambda items, tickets, turn: apply(items, [key(t) for t in tickets], turn)


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


def _draws(keys: list[int] | None, count: int) -> list[Draws | None]:
    return [None] * count if keys is None else [Draws(key) for key in keys]


def _apply_at(
    function: Any,
    there: list[int],
    results: list[Any],
    field: Any,
    draws: list[Draws | None],
    turn: Turn,
) -> None:
    """Apply a function to one field of those items that are there, in place."""
    values = [results[place][field] for place in there]
    if function is None and not any(type(value) is Later for value in values):
        return
    drawn = [draws[place] for place in there]
    made = apply_column(function, values, drawn, lambda place: turn(there[place]))
    for place, value in zip(there, made):
        if type(value) is Failed:
            results[place] = value
        else:
            results[place][field] = value


class map_dict(Each[dict[str, Any], dict[str, Any]]):
    """Applies a function to each named field: ``map_dict(jpg=augment, cls=int)``.

    Functions that say ``takes_rng = True`` are given random numbers, as :class:`map` says.

    >>> list(map_dict(cls=str)([{"__key__": "a", "cls": 3}]))
    [{'__key__': 'a', 'cls': '3'}]
    """

    def __init__(
        self, handler: Handler = reraise_exception, **functions: Callable[..., Any]
    ) -> None:
        if not functions:
            raise PipelineError("map_dict needs at least one field=function")
        self.handler, self.functions = handler, functions

    def apply(self, item: dict[str, Any]) -> dict[str, Any]:
        for field, function in self.functions.items():
            item[field] = function(item[field])
        return item

    def apply_drawing(self, item: dict[str, Any], key: int) -> dict[str, Any]:
        """The same with the random numbers of a key, which the functions draw one after another."""
        draws = Draws(key)
        for field, function in self.functions.items():
            value = item[field]
            item[field] = function(value, draws) if takes_rng(function) else function(value)
        return item

    @property
    def goes_together(self) -> bool:
        """Whether a function among them takes many values at once; not in someone's own stage."""
        kind = type(self)
        own = (kind.apply, kind.apply_drawing) != (map_dict.apply, map_dict.apply_drawing)
        return not own and any(map_(goes_together, self.functions.values()))

    def apply_together(
        self, items: list[dict[str, Any]], keys: list[int] | None, turn: Turn
    ) -> list[Any]:
        """The results of many items, each as if it came alone, or a :class:`Failed`."""
        draws = _draws(keys, len(items))
        results: list[Any] = list(items)
        alone = set[int]()  # of other kinds: theirs is to say what they have, or to refuse
        for place, item in enumerate(items):
            if type(item) is not dict:
                turn(place)
                alone.add(place)
                results[place] = self._alone(item, keys[place] if keys is not None else None)
                continue
            for field, value in item.items():
                if type(value) is Later and field not in self.functions:
                    item[field] = read(value)
                    if type(item[field]) is Failed:
                        results[place] = item[field]
        for field, function in self.functions.items():
            there = list[int]()
            for place, item in enumerate(results):
                if place in alone:
                    continue
                if type(item) is not Failed and field in item:
                    there.append(place)
                elif type(item) is not Failed:
                    results[place] = Failed(KeyError(field))
            _apply_at(function, there, results, field, draws, turn)
        return results

    def _alone(self, item: Any, key: int | None) -> Any:
        # In a call of its own: the error's traceback must not hold what holds the error.
        try:
            return self.apply(item) if key is None else self.apply_drawing(item, key)
        except BaseException as error:  # noqa: BLE001 - told where the item's turn comes
            return Failed(error)

    def start(self, source: Run[dict[str, Any]], context: Context) -> Run[dict[str, Any]]:
        draws = any(takes_rng(function) for function in self.functions.values())
        return DrawingRun(self, source, context) if draws else EachRun(self, source, context)


class map_tuple(Each[Any, tuple[Any, ...]]):
    """Applies a function to each place of a tuple; None leaves the place as it is.

    Functions that say ``takes_rng = True`` are given random numbers, as :class:`map` says.

    >>> list(map_tuple(str, None)([(1, 2)]))
    [('1', 2)]
    """

    def __init__(
        self, *functions: Callable[..., Any] | None, handler: Handler = reraise_exception
    ) -> None:
        self.functions, self.handler = functions, handler

    def apply(self, item: Any) -> tuple[Any, ...]:
        return self._applied(item, None)

    def apply_drawing(self, item: Any, key: int) -> tuple[Any, ...]:
        """The same with the random numbers of a key, which the functions draw one after another."""
        return self._applied(item, Draws(key))

    @staticmethod
    def _wrong(item: Any) -> SampleError:
        return SampleError(
            f"map_tuple needs tuples, not {type(item).__name__}: to_tuple(...) makes them"
        )

    def _applied(self, item: Any, draws: Draws | None) -> tuple[Any, ...]:
        if not isinstance(item, (tuple, list)):
            raise self._wrong(item)
        values = list(item)
        for place, function in enumerate(self.functions[: len(values)]):
            if function is None:
                continue
            if draws is not None and takes_rng(function):
                values[place] = function(values[place], draws)
            else:
                values[place] = function(values[place])
        return tuple(values)

    @property
    def goes_together(self) -> bool:
        """Whether a function among them takes many values at once; not in someone's own stage."""
        kind = type(self)
        own = (kind.apply, kind.apply_drawing) != (map_tuple.apply, map_tuple.apply_drawing)
        return not own and any(map_(goes_together, self.functions))

    def apply_together(self, items: list[Any], keys: list[int] | None, turn: Turn) -> list[Any]:
        """The results of many items, each as if it came alone, or a :class:`Failed`."""
        draws = _draws(keys, len(items))
        results: list[Any] = []
        for item in items:
            fits = isinstance(item, (tuple, list))
            results.append(list(item) if fits else Failed(self._wrong(item)))
        longest = max((len(r) for r in results if type(r) is not Failed), default=0)
        for column in range(longest):
            function = self.functions[column] if column < len(self.functions) else None
            there = [p for p, r in enumerate(results) if type(r) is not Failed and column < len(r)]
            _apply_at(function, there, results, column, draws, turn)
        return [result if type(result) is Failed else tuple(result) for result in results]

    def start(self, source: Run[Any], context: Context) -> Run[tuple[Any, ...]]:
        draws = any(takes_rng(function) for function in self.functions)
        return DrawingRun(self, source, context) if draws else EachRun(self, source, context)
