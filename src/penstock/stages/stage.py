"""Stages are values; runs are stages at work.

A *stage* says what happens to a stream: ``shuffle(1000)``. It prints, compares and pickles.
Calling it with an iterator runs it. Inside a pipeline it is *started* on the run before it:

    stage.start(source, context) → Run

A *run* gives items, and knows of the item it gave last its *ticket* (a small plain value that
says where the item stands in the source's order) and its *origin* (shard, key, byte), also when
the item has waited in a buffer. Three kinds of stages cover nearly everything:

* :class:`Each`: one item in, one or none out. Write ``apply``.
* :class:`Many`: one item in, any number out. Write ``expand``.
* :class:`Stage` with a :class:`Run` of its own: it keeps something between items.

A user's generator function, or a partial of one, is a stage as it is: :class:`FunctionRun`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from penstock.context import Context, here
from penstock.handlers import Handler, reraise_exception
from penstock.stages.segment import EachRun, ManyRun
from penstock.stages.run import Run, as_run, shown

In = TypeVar("In")
Out = TypeVar("Out")


class Stage(Generic[In, Out]):
    """What happens to a stream, as a value.

    Arguments are remembered as they were given, for printing and comparing:

    >>> from penstock import shuffle
    >>> shuffle(1000, seed=1)
    shuffle(1000, seed=1)
    >>> shuffle(3) == shuffle(3), shuffle(3) == shuffle(4)
    (True, False)
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_stage = True
    keeps_count = False
    """Whether as many items come out as go in (unless a function given to it drops some)."""

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        stage = super().__new__(cls)
        stage.args, stage.kwargs = args, kwargs
        return stage

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.args, self.kwargs

    @property
    def name(self) -> str:
        """What messages call the stage."""
        return type(self).__name__

    def start(self, source: Run[In], context: Context) -> Run[Out]:
        """The stage at work on a source."""
        raise NotImplementedError

    def __call__(self, source: Iterable[In]) -> Iterator[Out]:
        """Run the stage on any iterable, outside a pipeline."""
        return iter(self.start(as_run(source), Context()))

    run = __call__

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in one form, without those that are defaults anyway.

        The first one is what a reader looks for: a number or text there is always told.
        """
        signature = inspect.signature(type(self).__init__)
        bound = signature.bind(self, *self.args, **self.kwargs)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        by_name = False  # behind an argument left out, the others need their names
        for place, (name, parameter) in enumerate(list(signature.parameters.items())[1:]):
            value = bound.arguments.get(name, parameter.default)
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional.extend(bound.arguments.get(name, ()))
            elif parameter.kind is parameter.VAR_KEYWORD:
                named.update(bound.arguments.get(name, {}))
            elif place == 0 and type(value) in (int, float, str):
                positional.append(value)
            elif _same(value, parameter.default):
                by_name = True
            elif (
                by_name
                or parameter.kind is parameter.KEYWORD_ONLY
                or (positional and parameter.default is not parameter.empty)
            ):
                named[name] = value
            else:
                positional.append(value)
        return tuple(positional), named

    def __repr__(self) -> str:
        args, kwargs = self.arguments()
        words = [shown(arg) for arg in args]
        words += [f"{name}={shown(value)}" for name, value in kwargs.items()]
        return f"{self.name}({', '.join(words)})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return bool(self.arguments() == cast(Any, other).arguments())

    def __hash__(self) -> int:
        return hash(type(self))


def _same(value: Any, default: Any) -> bool:
    """Whether a value is the default. Only plain ones are compared: arrays would not say."""
    plain = type(value) is type(default) and isinstance(value, (int, float, str))
    return value is default or (plain and bool(value == default))


class Each(Stage[In, Out]):
    """A stage that turns one item into one, or into none by giving None."""

    handler: Handler = staticmethod(reraise_exception)
    keeps_count = True
    looks = True
    """Whether it looks at the values of fields; False where it only moves them."""

    @property
    def quiet(self) -> bool:
        """Whether an item may be worked on before its turn, and twice: nobody sees it or minds."""
        return False

    def apply(self, item: In) -> Out | None:
        raise NotImplementedError

    def apply_ready(self, items: list[In]) -> list[Out]:
        """What comes of items whose turn is next, up to one that fails or is dropped.

        Asked only where the stage is quiet.
        """
        results = list[Out]()
        try:
            for item in items:
                result = self.apply(item)
                if result is None:
                    break
                results.append(result)
        except Exception:  # noqa: BLE001 - it is raised again when the item's turn comes
            pass
        return results

    def start(self, source: Run[In], context: Context) -> Run[Out]:
        return EachRun(self, source, context)


class Many(Stage[In, Out]):
    """A stage that turns one item into any number."""

    handler: Handler = staticmethod(reraise_exception)

    def expand(self, item: In) -> Iterable[Out]:
        raise NotImplementedError

    def start(self, source: Run[In], context: Context) -> Run[Out]:
        return ManyRun(self, source, context)


class Bound:
    """A user's ``generator(iterator, …)`` with the arguments behind the iterator filled in.

    >>> def every(source, n):
    ...     return (item for number, item in enumerate(source) if number % n == 0)
    >>> list(Bound(every, 2)("abcd"))
    ['a', 'c']
    """

    def __init__(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.f, self.args, self.kwargs = f, args, kwargs

    def __call__(self, source: Any) -> Any:
        return self.f(source, *self.args, **self.kwargs)

    def __repr__(self) -> str:
        words = [shown(arg) for arg in self.args]
        words += [f"{name}={shown(value)}" for name, value in self.kwargs.items()]
        return f"{shown(self.f)}({', '.join(words)})"


class Source(Stage[None, Out]):
    """A stage at the beginning of a pipeline. It can be iterated by itself.

    >>> from penstock import SimpleShardList
    >>> list(SimpleShardList("x-{0..1}.tar"))
    [{'url': 'x-0.tar'}, {'url': 'x-1.tar'}]
    """

    _epoch = 0  # of passes over the source alone; a pipeline counts its own
    splits = False
    """True where each rank and worker gets a part of its own from the source itself."""

    def start(self, source: Run[None] | None, context: Context) -> Run[Out]:
        raise NotImplementedError

    def __call__(self, source: Any = None) -> Iterator[Out]:
        return iter(self)

    def __iter__(self) -> Iterator[Out]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return iter(self.start(None, here(epoch=epoch)))
