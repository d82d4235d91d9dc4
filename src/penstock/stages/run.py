"""Runs: stages at work.

A run is iterated once. For the last item it yielded it has the *ticket*, a small plain value
(the item's position in the source's order), and the *origin* (shard, key, byte), even if the item
has waited in a buffer. With tickets a run can save its state and resume in another process: see
:class:`Run`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from penstock.context import Context
from penstock.errors import DecodingError, Origin, PenstockError, PipelineError, StateError
from penstock.handlers import Handler, ask
from penstock.redact import redact_value
from penstock.stages.drop_guard import CHECKED_ITEMS, Dropping, fewest

Out = TypeVar("Out")
Ticket = Any
"""An item's position in its source's order: numbers and lists of them."""
State = Any
"""What runs keep between two items: numbers, strings, lists and dicts of them."""
Together = Callable[[list[Any], list[Ticket], Callable[[int], None]], list[Any]]
"""Items and tickets → results, or ``Failed``; the third argument selects an item's memory."""
ENDED = "ended"


@contextlib.contextmanager
def reading_state() -> Iterator[None]:
    """Raise a :class:`~penstock.errors.StateError` for what a damaged state causes here.

    A state may be damaged in any way, so all exceptions are converted but those of the library that
    have another cause, such as a shard that cannot be read.
    """
    try:
        yield
    except PipelineError as error:
        raise StateError(f"the state is damaged: {error}") from error
    except (PenstockError, MemoryError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise StateError(f"the state is damaged, or of other data: {cause}") from error


def fetch_again(source: Run[Any], ticket: Ticket) -> Any:
    """Make the item of a ticket from a state again."""
    with reading_state():
        return source.fetch(ticket)


def as_count(value: Any, most: int = 1 << 62) -> int:
    """Return a number from a state; raise StateError unless it is a number from 0 to ``most``."""
    if type(value) is not int or not 0 <= value <= most:
        limit = f" up to {most}" if most < 1 << 62 else ""
        raise StateError(f"the state is damaged: {reprlib.repr(value)} is not a position{limit}")
    return value


def short_repr(value: Any) -> str:
    """Return an argument as text for ``repr``: functions by name, long texts shortened."""
    if isinstance(value, functools.partial):
        return f"partial({short_repr(value.func)})"
    text = getattr(value, "__qualname__", None) or repr(redact_value(value))
    return text if len(text) <= 60 else text[:57] + "..."


class Run(Generic[Out]):
    """A stage at work. Iterate it once; ``ticket`` and ``origin`` describe the last item.

    A run that can be resumed sets ``resumable`` and implements these, unless its source's are
    enough:

    * ``state()``: what it keeps between two items, in plain values: tickets, never samples.
    * ``restore(state)``: set that state, before the iteration begins.
    * ``fetch(ticket)``: make the item of a ticket again, without any other effect.
    """

    resumable = False
    one_each = False
    """True if an item is a batch whose part n comes from origin n."""
    ended = False
    """Set by runs that end before their source does, so that they stay ended when resumed."""
    dropped = 0
    """Consecutive items dropped up to the end of the pass, if the context counts them."""
    drops_at_random = False
    """True if another pass over the same items may keep others."""
    state_survives_errors = False
    """True if the state after an exception is that after the last item yielded."""
    may_keep_items = False
    """True if items that did not come out may still be kept by the stage."""

    def __init__(self, stage: Any, source: Run[Any] | None, context: Context) -> None:
        self.stage, self.source, self.context = stage, source, context
        self.skipped = 0
        self.on_skip: Callable[[], None] | None = None
        self.on_error: Callable[[Exception, Any], None] | None = None
        """Called with each error that the stage's handler did not raise, and the item."""
        # The part of the data that this stream reads, as (rank, worker, …); () is all of it.
        self.stream_id: tuple[int, ...] = source.stream_id if source is not None else ()
        self.depth: int = source.depth + 1 if source is not None else 0
        # True if each lane gets a separate part; otherwise each would repeat everything.
        self.dealt: bool = source.dealt if source is not None else False
        # True if the source may have no end: then stages check that they do not drop everything.
        self.endless: bool = source.endless if source is not None else False

    def __iter__(self) -> Iterator[Out]:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The stage's name in messages."""
        return short_repr(self.stage)

    @property
    def whole_process(self) -> bool:
        """True if it changes state that all threads share: it must run in the consumer's thread."""
        return False

    @property
    def ticket(self) -> Ticket:
        """The position of the last item in the source's order.

        Before the first item it may be None, which ``origin`` and ``origins`` accept: a user's
        generator may yield before it takes an item.
        """
        return self.source.ticket if self.source is not None else None

    def teller(self) -> Any:
        """Return the run that holds the ticket, from the first item on: a shortcut past stages."""
        return self

    def origin(self, ticket: Ticket) -> Origin | None:
        """Return where the item of a ticket comes from, or None if unknown."""
        return self.source.origin(ticket) if self.source is not None else None

    def saved(self) -> State:
        """Return the state as the next run saves it, or ``ENDED``."""
        return ENDED if self.ended else self.state()

    def take(self, saved: State) -> None:
        """Restore what :meth:`saved` returned."""
        if saved == ENDED:
            self.ended = True
        else:
            self.restore(saved)

    def state(self) -> State:
        """Return what this run and those before it keep between two items."""
        return self.source.saved() if self.source is not None else None

    def restore(self, state: State) -> None:
        """Resume from a state, instead of from the beginning."""
        if self.source is not None:
            self.source.take(state)

    def fetch(self, ticket: Ticket) -> Any:
        """Make the item of a ticket again and return it."""
        if self.source is None:
            raise StateError(f"{short_repr(self.stage)} cannot make an item again")
        return self.source.fetch(ticket)

    def defer(self) -> Run[Any] | None:
        """Ask for samples with unread payloads, which the caller must read.

        Return the run that reads them, whose handler gets the errors; None if samples come
        complete. Called at most once, before the iteration begins, by the consumer of the items.
        """
        return None

    @property
    def gives_ready(self) -> bool:
        """True if :meth:`ready` may return items."""
        return False

    def ready(self, most: int) -> tuple[list[Any], list[Ticket]]:
        """Return up to ``most`` of the next items that are already read, with their tickets.

        Called between two items of the iteration, which continues after those that :meth:`passed`
        reports as taken. No handler is called and no state changes: the list ends before an item
        that fails or would be dropped, which is left to the iteration.
        """
        return [], []

    def passed(self, count: int) -> None:
        """Report that the first ``count`` items of the last :meth:`ready` were taken."""

    def left(self) -> int | None:
        """Return how many items are still to come, or None if unknown."""
        return None

    def skip_ahead(self, count: int) -> bool:
        """Skip the next ``count`` items without making them; return False if impossible."""
        return False

    def origins(self, ticket: Ticket) -> list[Origin]:
        """Return the origins of all samples in the item of a ticket."""
        origin = self.origin(ticket)
        return [origin] if origin is not None else []

    def parents(self) -> list[Run[Any]]:
        """Return the runs that this one takes its items from."""
        return [self.source] if self.source is not None else []

    def full_passes(self) -> int | None:
        """Return the complete passes over an endless source so far; None if the source ends."""
        return fewest(parent.full_passes() for parent in self.parents())

    def is_empty(self) -> bool:
        """Return True if the source had no item for this stream; called at the end of a pass."""
        return all(parent.is_empty() for parent in self.parents())

    def opaque(self) -> list[str]:
        """Return the stages up to this one whose state cannot be saved; resuming replays them."""
        names = [name for parent in self.parents() for name in parent.opaque()]
        if not self.resumable:
            name, epoch = short_repr(self.stage), self.context.epoch & 0xFFFFFFFF
            if self.source is None and epoch and ignores_epoch(self.stage):
                name += f" (has no set_epoch(), and must yield what it yielded in epoch {epoch})"
            names.append(name)
        return list(dict.fromkeys(names))  # once: every lane has a separate run of a stage

    def again(self, context: Context) -> Run[Out]:
        """Return new runs of the same stages, for another epoch."""
        source = self.source.again(context) if self.source is not None else None
        run: Run[Out] = start(self.stage, source, context)
        return run

    def skip(self) -> None:
        """Count a sample that is left out."""
        self.skipped += 1
        if self.on_skip is not None:
            self.on_skip()

    def failed(
        self, error: Exception, handler: Handler, item: Any = None, ticket: Ticket = None
    ) -> bool:
        """Call the handler with an error on an item; return True to skip the item and continue.

        The error keeps its class; a note names the stage and the sample. The item is that of the
        ticket, or the last one of the source.
        """
        add_origin(error, self.stage, self.source, item, ticket)
        if isinstance(error, DecodingError) and error.sample is None:
            error.sample = item
        skips = ask(handler, error)
        if self.on_error is not None:
            self.on_error(error, item)
        if skips:
            self.skip()
        return skips

    def chain(self) -> Iterator[Run[Any]]:
        """Yield this run and all before it, the last first."""
        run: Run[Any] | None = self
        while run is not None:
            yield run
            run = run.source

    def close(self) -> None:
        """Release files and child processes."""


def add_origin(
    error: BaseException, stage: Any, source: Run[Any] | None, item: Any, ticket: Ticket = None
) -> None:
    """Add the stage and the sample to an error as a note, unless it has them."""
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
            f"in {stage.name if getattr(stage, 'is_stage', False) else short_repr(stage)}: {origin}"
        )


class CountedRun(Run[Out]):
    """A run that passes items on or drops them; its state is how many it has seen."""

    source: Run[Any]
    resumable = True
    seen = 0

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.source.origins(ticket)

    def state(self) -> State:
        return [self.seen, self.source.saved()]

    def restore(self, state: State) -> None:
        seen, source = state
        self.seen = as_count(seen)
        self.source.take(source)


class FunctionRun(Run[Out]):
    """Runs a user's ``generator(iterator)``, whose state is unknown.

    An item's ticket is that of the last item the generator took, and how many it has yielded.
    """

    given = 0
    may_keep_items = True

    def __iter__(self) -> Iterator[Out]:
        call = getattr(self.stage, getattr(self.stage, "overridden", "run"), None) or self.stage
        if hasattr(self.stage, "__penstock_expect__"):
            self.stage.__penstock_expect__(self.context)
        try:
            for item in call(self._items(self.source)) if self.source is not None else call():
                self.given += 1
                yield item
        except Exception as error:
            add_origin(error, self.stage, self.source, None)
            raise

    def _items(self, source: Run[Any]) -> Iterator[Any]:
        return self._check_drops(source) if source.endless else iter(source)

    def _check_drops(self, source: Run[Any]) -> Iterator[Any]:
        """Yield the items of an endless source; raise if the generator yields nothing for them."""
        dropping, given, taken = Dropping(self), self.given, 0
        for item in source:
            yield item
            taken += 1
            if self.given != given:
                given, taken = self.given, 0
            elif not taken % CHECKED_ITEMS:
                dropping.check(taken, source.full_passes())

    def is_empty(self) -> bool:
        return super().is_empty() if self.source is not None else not self.given

    @property
    def ticket(self) -> Ticket:
        return (super().ticket, self.given)

    def origin(self, ticket: Ticket) -> Origin | None:
        return super().origin(ticket[0])

    def fetch(self, ticket: Ticket) -> Any:
        raise StateError(f"{short_repr(self.stage)} cannot make an item again")

    def again(self, context: Context) -> Run[Out]:
        source = self.source.again(context) if self.source is not None else None
        return type(self)(self.stage, source, context)


class IterableRun(Run[Out]):
    """Runs any iterable as a source. The ticket is the number of the item.

    Sequences can be resumed at any item; other iterables only by a replay. An iterable with
    ``set_epoch`` begins the pipeline's epoch.
    """

    count = 0
    sets_epoch = True
    """False if a stage is called with the iterable: it counts its own epochs then."""

    def __init__(self, stage: Any, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.resumable = isinstance(stage, Sequence)

    def __iter__(self) -> Iterator[Out]:
        if self.sets_epoch:
            set_epoch(self.stage, self.context.epoch)
        items = islice(self.stage, self.count, None) if self.count else self.stage
        own = self.resumable
        for item in items:
            self.count += 1
            # Stages may change a sample, but not the caller's list, which comes again.
            yield cast(Out, item.copy()) if own and type(item) is dict else item

    @property
    def ticket(self) -> Ticket:
        return self.count - 1

    def is_empty(self) -> bool:
        return self.count == 0

    def state(self) -> State:
        return self.count

    def restore(self, state: State) -> None:
        sized = isinstance(self.stage, Sequence)
        self.count = as_count(state, len(self.stage)) if sized else as_count(state)

    def fetch(self, ticket: Ticket) -> Any:
        item = self.stage[as_count(ticket)]
        return item.copy() if type(item) is dict else item

    def again(self, context: Context) -> Run[Out]:
        return type(self)(self.stage, None, context)


class OverriddenRun(IterableRun[Out]):
    """Runs a source, or a pipeline, whose ``__iter__`` a subclass overrides."""

    sets_epoch = False

    def __iter__(self) -> Iterator[Out]:
        self.stage.__penstock_expect__(self.context)
        yield from super().__iter__()


def as_run(source: Iterable[Out]) -> Run[Out]:
    """Return a run for any iterable."""
    if isinstance(source, Run):
        return source
    run: IterableRun[Out] = IterableRun(source, None, Context())
    run.sets_epoch = False
    return run


def set_epoch(source: Any, epoch: int) -> bool:
    """Set the epoch of a data set of another library, or of those that it chains or wraps.

    A later pass of the same epoch gets another number, below 2³¹: it may become a seed. Return
    whether there was one to set.
    """
    passes, first = epoch >> 32, epoch & 0xFFFFFFFF
    number = (first + passes * 1_000_003) & 0x7FFFFFFF
    found = [(part, setter) for part in inner_datasets(source) if (setter := _epoch_setter(part))]
    for part, setter in found:
        if not hasattr(part, "__penstock_expect__"):
            _warn_of_other_epoch(part, number)
        setter(number)
    return bool(found)


def _epoch_setter(part: Any) -> Callable[[int], Any] | None:
    """Return the method that sets the epoch of a data set; None if there is none, or if the data
    set is a pipeline that resumes in the epoch of its own state."""
    setter = _attribute(part, "set_epoch")
    if not callable(setter) or _attribute(part, "_resume") is not None:
        return None
    try:
        inspect.signature(setter).bind(0)
    except TypeError:  # it needs other arguments
        return None
    except ValueError:  # a builtin, whose signature is not known
        pass
    return cast(Callable[[int], Any], setter)


def _warn_of_other_epoch(part: Any, number: int) -> None:
    """Warn if the caller has set another epoch than that of the pipeline."""
    last = _attribute(part, "_penstock_epoch")
    own = _attribute(part, "epoch")
    if type(own) is int and own not in (number, 0, last, -1 if last is None else last + 1):
        warnings.warn(
            f"{short_repr(part)} was set to epoch {own}, and its pipeline begins epoch {number} "
            "now: call set_epoch() of the pipeline or loader instead",
            stacklevel=2,
        )
    with contextlib.suppress(Exception):
        part._penstock_epoch = number


def ignores_epoch(source: Any) -> bool:
    """Return whether a source that is not a sequence cannot be told which epoch begins."""
    return any(
        _epoch_setter(part) is None
        and not hasattr(part, "__penstock_expect__")
        and not isinstance(part, Sequence)
        and (hasattr(type(part), "__iter__") or not hasattr(part, "__getitem__"))
        for part in inner_datasets(source)
    )


def inner_datasets(source: Any, outer: tuple[int, ...] = ()) -> Iterator[Any]:
    """Yield the data sets that a ``ChainDataset`` or another wrapper without ``set_epoch`` reads;
    of any other iterable, itself. ``outer`` are the ids of the wrappers around it."""
    parts = _attribute(source, "datasets")
    if not isinstance(parts, (list, tuple)):
        inside = _attribute(source, "dataset")
        parts = [] if inside is None else [inside]
    parts = [part for part in parts if id(part) not in (*outer, id(source))]
    if callable(_attribute(source, "set_epoch")) or not parts:
        yield source
    else:
        for part in parts:
            yield from inner_datasets(part, (*outer, id(source)))


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute of another library's object, or None, also if reading it fails."""
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a property may do anything
        return None


def start(stage: Any, source: Run[Any] | None, context: Context) -> Run[Any]:
    """Start anything that a pipeline may contain: a stage, a function, an iterable source."""
    if isinstance(stage, functools.partial) and getattr(stage.func, "is_stage", False):
        stage = stage()  # a partial of a stage's class
    if getattr(stage, "is_stage", False) and not isinstance(stage, type):
        if not stage.overridden:
            return cast(Run[Any], stage.start(source, context))
        if stage.overridden == "__iter__":
            return OverriddenRun(stage, None, context)
        return FunctionRun(stage, source, context)
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
    hint = ": MapSamples(dataset) makes a source of it" if hasattr(stage, "__getitem__") else ""
    kind = type(stage).__name__
    raise PipelineError(f"not a pipeline stage: {short_repr(stage)} of type {kind}{hint}")
