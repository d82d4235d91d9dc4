"""Stages are values; runs are stages at work.

A *stage* describes what happens to a stream: ``shuffle(1000)``. It prints, compares and pickles.
Calling it with an iterator runs it. Inside a pipeline it is *started* on the run before it:

    stage.start(source, context) → Run

A *run* yields items. For the last item it has the *ticket* (a small plain value: the item's
position in the source's order) and the *origin* (shard, key, byte), even if the item has waited in
a buffer. Three kinds of stages cover nearly everything:

* :class:`Each`: one item in, one or none out. Write ``apply``.
* :class:`Many`: one item in, any number out. Write ``expand``.
* :class:`Stage` with a separate :class:`Run` class: it keeps something between items.

A user's generator function, or a partial of one, can be used as a stage: :class:`FunctionRun`.

A subclass may also replace ``run``, ``__call__`` or ``__iter__`` of a stage, as with WebDataset.
Then the pipeline calls that method, and only a replay restores its position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from penstock.context import Context, SharedCounts, current_context
from penstock.handlers import Handler, reraise_exception
from penstock.nearest_name import check_arguments, signature_of
from penstock.stages.iterable_dataset import IterableDataset
from penstock.stages.run import Run, as_run, short_repr
from penstock.stages.segment import EachRun, ManyRun

In = TypeVar("In")
Out = TypeVar("Out")
STARTED_BY = frozenset(("start", "apply", "expand"))
"""The methods that define a stage of this library."""
REPLACED = ("__iter__", "run", "__call__")
"""The methods that subclasses written for WebDataset override."""


class Stage(Generic[In, Out]):
    """What happens to a stream, as a value.

    The arguments are kept for printing and comparing:

    >>> from penstock import shuffle
    >>> shuffle(1000, seed=1)
    shuffle(1000, seed=1)
    >>> shuffle(3) == shuffle(3), shuffle(3) == shuffle(4)
    (True, False)
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_stage = True
    keeps_count: bool | None = False
    """True if as many items come out as go in, unless a user's function drops some.

    None if unknown: a pipeline with such a stage has no length.
    """
    keeps_ranks_equal = False
    """True if ranks that receive equally many items return equally many, as after ``slice(9)``."""
    overridden = ""
    """The method of ``REPLACED`` that a subclass overrides and that runs the stage; or ""."""
    _context: Context | None = None  # of the pipeline that runs the replaced method

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in map(vars, cls.__mro__):
            started = not STARTED_BY.isdisjoint(base)
            cls.overridden = "" if started else next((n for n in REPLACED if n in base), "")
            if started or cls.overridden:
                break

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        check_arguments(cls, kwargs)
        stage = super().__new__(cls)
        stage.args, stage.kwargs = args, kwargs
        return stage

    # Not __getnewargs_ex__: pickle refuses it for objects whose __class__ is not their type.
    def __reduce__(self) -> Any:
        return (_remake, (type(self), self.args, self.kwargs), self.__getstate__())

    @property
    def name(self) -> str:
        """The stage's name in messages."""
        return type(self).__name__

    def start(self, source: Run[In], context: Context) -> Run[Out]:
        """Return a run of the stage on a source."""
        raise NotImplementedError

    def __call__(self, source: Iterable[In]) -> Iterator[Out]:
        """Run the stage on any iterable, outside a pipeline."""
        return iter(self.start(as_run(source), self.call_context()))

    run = __call__

    def call_context(self) -> Context:
        """Return the context of a call: that of this process, or of the pipeline.

        An overridden method that calls ``super()`` inside a pipeline gets the pipeline's.
        """
        context, self._context = self._context, None
        return current_context() if context is None else context

    def __penstock_expect__(self, context: Context) -> None:
        """Use this context for the next call."""
        self._context = dataclasses.replace(context, engine=None)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in one form, without those that equal their defaults.

        A number or text as the first argument is always included: readers look for it.
        """
        signature = signature_of(type(self).__init__)
        bound = signature.bind(self, *self.args, **self.kwargs)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        by_name = False  # after an omitted argument, the others need their names
        for index, (name, parameter) in enumerate(list(signature.parameters.items())[1:]):
            value = bound.arguments.get(name, parameter.default)
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional.extend(bound.arguments.get(name, ()))
            elif parameter.kind is parameter.VAR_KEYWORD:
                named.update(bound.arguments.get(name, {}))
            elif index == 0 and type(value) in (int, float, str):
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
        words = [short_repr(arg) for arg in args]
        words += [f"{name}={short_repr(value)}" for name, value in kwargs.items()]
        return f"{self.name}({', '.join(words)})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return bool(self.arguments() == cast(Any, other).arguments())

    def __hash__(self) -> int:
        return hash(type(self))


def _remake(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cls.__new__(cls, *args, **kwargs)


def _same(value: Any, default: Any) -> bool:
    """Return True if a value is the default. Only plain values are compared, not arrays."""
    plain = type(value) is type(default) and isinstance(value, (int, float, str))
    return value is default or (plain and bool(value == default))


def nested_stages(source: Any) -> list[Any] | None:
    """Return the stages of a pipeline; None for anything else, such as a map-style dataset, whose
    ``pipeline`` is a method."""
    stages = getattr(source, "pipeline", None)
    return stages if isinstance(stages, list) else None


class Each(Stage[In, Out]):
    """A stage that turns one item into one, or into none by returning None.

    A stage that never returns None should set ``keeps_count = True``. Then the length of a pipeline
    with it is known, and ``ends="drop"`` and ``"pad"`` can make ranks equal.
    """

    handler: Handler = staticmethod(reraise_exception)
    keeps_count: bool | None = None
    looks = True
    """True if it reads the values of fields; False if it only moves them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "apply" in vars(cls) and "keeps_count" not in vars(cls) and cls.keeps_count:
            cls.keeps_count = None  # the inherited value describes the base class's apply

    @property
    def quiet(self) -> bool:
        """True if ``apply`` is pure: it may run early or more than once."""
        return False

    def apply(self, item: In) -> Out | None:
        raise NotImplementedError

    def apply_ready(self, items: list[In]) -> list[Out]:
        """Return the results of the next items, up to one that fails or is dropped.

        Called only if the stage is ``quiet``.
        """
        results = list[Out]()
        try:
            for item in items:
                result = self.apply(item)
                if result is None:
                    break
                results.append(result)
        except Exception:  # noqa: BLE001 - raised again when the item's turn comes
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
    """A user's ``generator(iterator, …)`` with the arguments after the iterator bound.

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
        words = [short_repr(arg) for arg in self.args]
        words += [f"{name}={short_repr(value)}" for name, value in self.kwargs.items()]
        return f"{short_repr(self.f)}({', '.join(words)})"


class Iterated(Stage[In, Out], IterableDataset[Out]):
    """A stage that can be iterated without a pipeline; an ``IterableDataset`` if torch is loaded.

    Each ``iter()`` is the next epoch, also in the workers that a loader forks for every epoch.
    """

    _passes: SharedCounts  # passes over the stage alone, by worker; a pipeline counts separately

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        stage = super().__new__(cls, *args, **kwargs)
        stage._passes = SharedCounts(1)
        return stage

    def __iter__(self) -> Iterator[Out]:
        return iter(self.start(cast(Any, None), self.call_context()))

    def call_context(self) -> Context:
        if self._context is not None:
            return super().call_context()
        context = current_context()
        epoch = self._passes.get(0, context.worker)
        self._passes.set(0, epoch + 1, context.worker)
        return dataclasses.replace(context, epoch=epoch)


class Source(Iterated[None, Out]):
    """A stage at the beginning of a pipeline. It can be iterated without a pipeline.

    >>> from penstock import SimpleShardList
    >>> list(SimpleShardList("x-{0..1}.tar"))
    [{'url': 'x-0.tar'}, {'url': 'x-1.tar'}]
    """

    splits = False
    """True if the source itself splits the data between ranks and workers."""

    def start(self, source: Run[None] | None, context: Context) -> Run[Out]:
        raise NotImplementedError

    def __call__(self, source: Any = None) -> Iterator[Out]:
        return iter(self)
