"""Runs: stages at work.

A run gives items, once. Of the item it gave last it knows the *ticket*, a small plain value that
says where the item stands in the source's order, and the *origin* (shard, key, byte), also when
the item has waited in a buffer. With tickets a run can save what it keeps and go on elsewhere:
see :class:`Run`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError, StateError
from penstock.handlers import Handler
from penstock.redact import shown_value

Out = TypeVar("Out")
Ticket = Any
"""Where an item stands in its source's order: numbers and lists of them."""
State = Any
"""What runs keep between two items: numbers, strings, lists and dicts of them."""
Together = Callable[[list[Any], list[Ticket], Callable[[int], None]], list[Any]]
"""From items and tickets to results, or ``Failed``; the third says whose memory is next."""
ENDED = "ended"


def shown(value: Any) -> str:
    """An argument for ``repr``: functions by name, long things shortened."""
    if isinstance(value, functools.partial):
        return f"partial({shown(value.func)})"
    text = getattr(value, "__qualname__", None) or repr(shown_value(value))
    return text if len(text) <= 60 else text[:57] + "..."


class Run(Generic[Out]):
    """A stage at work. Iterate once; ``ticket`` and ``origin`` speak of the item given last.

    A run that can be continued elsewhere sets ``resumable`` and implements, as far as it differs
    from passing them on to its source:

    * ``state()``: what it keeps, in plain values, between two items. Tickets, never samples.
    * ``restore(state)``: take that up, before the iteration begins.
    * ``fetch(ticket)``: make the item of a ticket again. Nothing else changes by it.
    """

    resumable = False
    one_each = False
    """Whether an item is a batch whose n-th part comes of the n-th of its origins."""
    ended = False
    """Set by runs that end before their source does, so that they stay ended when resumed."""

    def __init__(self, stage: Any, source: Run[Any] | None, context: Context) -> None:
        self.stage, self.source, self.context = stage, source, context
        self.skipped = 0
        self.on_skip: Callable[[], None] | None = None
        # Which part of the data this stream is: () for all of it, then ranks and workers.
        self.place: tuple[int, ...] = source.place if source is not None else ()
        self.depth: int = source.depth + 1 if source is not None else 0
        # Whether each lane gets a part of its own, or each would give everything.
        self.dealt: bool = source.dealt if source is not None else False

    def __iter__(self) -> Iterator[Out]:
        raise NotImplementedError

    @property
    def whole_process(self) -> bool:
        """Whether it changes what all threads share: it must run where the items are used."""
        return False

    @property
    def ticket(self) -> Ticket:
        """Where the item given last stands in the source's order."""
        return self.source.ticket if self.source is not None else None

    def teller(self) -> Any:
        """What tells the ticket, from the first item on: asking it saves the way through stages."""
        return self

    def origin(self, ticket: Ticket) -> Origin | None:
        """Where the item of a ticket comes from, as far as it is known."""
        return self.source.origin(ticket) if self.source is not None else None

    def saved(self) -> State:
        """The state, as the run behind this one saves it."""
        return ENDED if self.ended else self.state()

    def take(self, saved: State) -> None:
        """Take up what :meth:`saved` gave."""
        if saved == ENDED:
            self.ended = True
        else:
            self.restore(saved)

    def state(self) -> State:
        """What this run and those before it keep between two items."""
        return self.source.saved() if self.source is not None else None

    def restore(self, state: State) -> None:
        """Go on from a state, instead of from the beginning."""
        if self.source is not None:
            self.source.take(state)

    def fetch(self, ticket: Ticket) -> Any:
        """The item of a ticket, made again."""
        if self.source is None:
            raise StateError(f"{shown(self.stage)} cannot make an item again")
        return self.source.fetch(ticket)

    def defer(self) -> Run[Any] | None:
        """Leave large payloads for later: the one who asks makes the samples whole.

        Gives the run that reads them, whose handler hears of what fails then; None where samples
        come whole. Asked once, before the iteration begins, by whoever takes the items.
        """
        return None

    @property
    def gives_ready(self) -> bool:
        """Whether :meth:`ready` is worth asking."""
        return False

    def ready(self, most: int) -> tuple[list[Any], list[Ticket]]:
        """Up to so many of the next items that are at hand, with their tickets; often none.

        Between two items of the iteration, which goes on behind those that :meth:`passed` says
        were taken. Nobody is asked or told for it, and nothing is changed: an item that cannot be
        made, or would be dropped, ends it, and comes in its turn.
        """
        return [], []

    def passed(self, count: int) -> None:
        """The first so many of the items that :meth:`ready` gave last were taken."""

    def left(self) -> int | None:
        """How many items are still to come; None where nobody knows."""
        return None

    def skip_ahead(self, count: int) -> bool:
        """Pass over the next ``count`` items without making them; False where that cannot be."""
        return False

    def origins(self, ticket: Ticket) -> list[Origin]:
        """The origins of all samples in the item of a ticket."""
        origin = self.origin(ticket)
        return [origin] if origin is not None else []

    def parents(self) -> list[Run[Any]]:
        """The runs that this one takes its items from."""
        return [self.source] if self.source is not None else []

    def opaque(self) -> list[str]:
        """The stages, here and before, whose state only a replay can bring back."""
        names = [name for parent in self.parents() for name in parent.opaque()]
        # Once each: a pipeline has as many runs of a stage as it has lanes.
        return list(dict.fromkeys(names if self.resumable else [*names, shown(self.stage)]))

    def again(self, context: Context) -> Run[Out]:
        """The same stages at work anew, for another epoch."""
        source = self.source.again(context) if self.source is not None else None
        run: Run[Out] = start(self.stage, source, context)
        return run

    def skip(self) -> None:
        """Count a sample that a handler let us leave out."""
        self.skipped += 1
        if self.on_skip is not None:
            self.on_skip()

    def failed(
        self, error: Exception, handler: Handler, item: Any = None, ticket: Ticket = None
    ) -> bool:
        """Ask the handler about an error on an item; True: leave it out and go on.

        The error keeps its class; a note says in which stage and on which sample it happened.
        The item is that of the ticket, or the one the source gave last.
        """
        add_origin(error, self.stage, self.source, item, ticket)
        if handler(error):
            self.skip()
            return True
        return False

    def chain(self) -> Iterator[Run[Any]]:
        """This run and all before it, the last first."""
        run: Run[Any] | None = self
        while run is not None:
            yield run
            run = run.source

    def close(self) -> None:
        """Let go of files and children."""


def add_origin(
    error: BaseException, stage: Any, source: Run[Any] | None, item: Any, ticket: Ticket = None
) -> None:
    """Note on an error in which stage and on which sample it happened, unless it says so."""
    if any(note.startswith("in ") for note in getattr(error, "__notes__", ())):
        return
    known = error.origin if isinstance(error, PenstockError) else None
    if known is not None and known.offset is not None:
        return
    origin = None
    if source is not None:
        origin = source.origin(source.ticket if ticket is None else ticket)
    fields = item if isinstance(item, dict) else {}
    if origin is None and isinstance(fields.get("__url__"), str):
        origin = Origin(fields["__url__"])
    if origin is None:
        return
    if origin.key is None and isinstance(fields.get("__key__"), str):
        origin = Origin(origin.url, fields["__key__"], origin.offset)
    if isinstance(error, PenstockError):
        error.locate(origin)
    else:
        error.add_note(
            f"in {stage.name if getattr(stage, 'is_stage', False) else shown(stage)}: {origin}"
        )


class FunctionRun(Run[Out]):
    """A user's ``generator(iterator)`` at work.

    What it keeps between items is its own; an item's ticket is that of the last one it took, and
    how many it has given.
    """

    given = 0

    def __iter__(self) -> Iterator[Out]:
        call = getattr(self.stage, "run", None) or self.stage
        try:
            for item in call(iter(self.source)) if self.source is not None else call():
                self.given += 1
                yield item
        except Exception as error:
            add_origin(error, self.stage, self.source, None)
            raise

    @property
    def ticket(self) -> Ticket:
        return (super().ticket, self.given)

    def origin(self, ticket: Ticket) -> Origin | None:
        return super().origin(ticket[0])

    def fetch(self, ticket: Ticket) -> Any:
        raise StateError(f"{shown(self.stage)} cannot make an item again")

    def again(self, context: Context) -> Run[Out]:
        source = self.source.again(context) if self.source is not None else None
        return FunctionRun(self.stage, source, context)


class IterableRun(Run[Out]):
    """Anything that can be iterated, as a source. The ticket is the number of the item.

    Sequences can be gone back to; of other iterables only a replay brings the place back.
    """

    count = 0

    def __init__(self, stage: Any, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.resumable = isinstance(stage, Sequence)

    def __iter__(self) -> Iterator[Out]:
        items = islice(self.stage, self.count, None) if self.count else self.stage
        for item in items:
            self.count += 1
            yield item

    @property
    def ticket(self) -> Ticket:
        return self.count - 1

    def state(self) -> State:
        return self.count

    def restore(self, state: State) -> None:
        self.count = state

    def fetch(self, ticket: Ticket) -> Any:
        return self.stage[ticket]

    def again(self, context: Context) -> Run[Out]:
        return IterableRun(self.stage, None, context)


def as_run(source: Iterable[Out]) -> Run[Out]:
    """A run for anything iterable."""
    return source if isinstance(source, Run) else IterableRun(source, None, Context())


def start(stage: Any, source: Run[Any] | None, context: Context) -> Run[Any]:
    """Start anything that may stand in a pipeline: a stage, a function, a source to iterate."""
    if isinstance(stage, functools.partial) and getattr(stage.func, "is_stage", False):
        stage = stage()  # a stage's class with its arguments filled in: the stage itself
    if getattr(stage, "is_stage", False) and not isinstance(stage, type):
        return cast(Run[Any], stage.start(source, context))
    if hasattr(stage, "__penstock_start__"):
        return cast(Run[Any], stage.__penstock_start__(source, context))
    if isinstance(stage, type) and getattr(stage, "is_stage", False):
        raise PipelineError(f"{stage.__name__} is not a stage yet: write {stage.__name__}(...)")
    if source is None and not callable(stage) and isinstance(stage, Iterable):
        return IterableRun(stage, None, context)
    if source is None and hasattr(type(stage), "__iter__"):
        return IterableRun(stage, None, context)
    if callable(stage) or hasattr(stage, "run"):
        return FunctionRun(stage, source, context)
    raise PipelineError(f"not a pipeline stage: {shown(stage)} of type {type(stage).__name__}")
