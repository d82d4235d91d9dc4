"""Stages that make batches of a fixed size, and take batches apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from penstock.batches.collate import Collation, default_collation_fn
from penstock.context import Context
from penstock.errors import Origin, PipelineError, SampleError
from penstock.handlers import reraise_exception
from penstock.stages.run import Run, State, Ticket, add_origin
from penstock.stages.segment import ManyRun
from penstock.stages.stage import Many, Stage

T = TypeVar("T")


class batched(Stage[Any, Any]):
    """Collects ``batchsize`` samples into one batch.

    ``collation_fn`` makes the batch of a list of samples (None: the list itself). The last
    batch may be smaller, unless ``partial=False`` drops it.

    >>> list(batched(2)([(1,), (2,), (3,)]))
    [(array([1, 2]),), (array([3]),)]
    """

    keeps_ranks_equal = True

    def __init__(
        self,
        batchsize: int = 20,
        collation_fn: Collation | None = default_collation_fn,
        partial: bool = True,
    ) -> None:
        if batchsize < 1:
            raise PipelineError(f"{self.name}: batchsize must be at least 1, not {batchsize}")
        self.batchsize, self.collation_fn, self.partial = batchsize, collation_fn, partial

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return BatchedRun(self, source, context)


class listed(batched):
    """Collects ``batchsize`` samples into a list, as they are.

    >>> list(listed(2)([1, 2, 3]))
    [[1, 2], [3]]
    """

    def __init__(self, batchsize: int = 20, partial: bool = True) -> None:
        super().__init__(batchsize, None, partial)


class BatchedRun(Run[Any]):
    """Runs :class:`batched`: keeps the samples of the next batch, with their tickets."""

    source: Run[Any]
    resumable = True

    def __init__(self, stage: batched, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        self.samples: list[Any] = []
        self.tickets: list[Ticket] = []
        self._ticket: list[Ticket] = []
        nested = any(isinstance(run, BatchedRun) for run in source.chain())
        self.one_each = not nested and stage.collation_fn in (None, default_collation_fn)

    def __iter__(self) -> Iterator[Any]:
        stage, source, size = self.stage, self.source, self.stage.batchsize
        samples, tickets, teller = self.samples, self.tickets, None
        asks = source.gives_ready
        for item in source:
            if teller is None:
                teller = source.teller()
            samples.append(item)
            del item  # a row of a batch's memory is reused only without other references
            tickets.append(teller.ticket)
            while asks and (missing := size - len(samples)):
                more, theirs = source.ready(missing)
                if not more:
                    break
                samples += more
                tickets += theirs
                source.passed(len(more))
            if len(samples) == size:
                yield self._batch()
                samples, tickets = self.samples, self.tickets
        if self.samples and stage.partial:
            yield self._batch()

    def _batch(self) -> Any:
        samples, self.samples = self.samples, []
        self._ticket, self.tickets = self.tickets, []
        if self.stage.collation_fn is None:
            return samples
        try:
            return self.stage.collation_fn(samples)
        except Exception as error:
            first = samples[0] if samples else None
            add_origin(error, self.stage, None, first)
            self._note_range(error)
            raise

    def _note_range(self, error: Exception) -> None:
        origins = [self.source.origin(self._ticket[index]) for index in (0, -1)]
        if origins[0] is not None and origins[1] is not None:
            error.add_note(f"in the batch from {origins[0]} to {origins[1]}")

    @property
    def ticket(self) -> Ticket:
        return self._ticket

    def origin(self, ticket: Ticket) -> Origin | None:
        return self.source.origin(ticket[0]) if ticket else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        return [origin for one in ticket or () for origin in self.source.origins(one)]

    def left(self) -> int | None:
        samples: int | None = self.source.left()
        if samples is None:
            return None
        full, rest = divmod(samples + len(self.samples), int(self.stage.batchsize))
        return full + (1 if rest and self.stage.partial else 0)

    def skip_ahead(self, count: int) -> bool:
        return not self.samples and self.source.skip_ahead(count * int(self.stage.batchsize))

    def state(self) -> State:
        return [list(self.tickets), self.source.saved()]

    def restore(self, state: State) -> None:
        self.tickets, source = list(state[0]), state[1]
        self.samples = [self.source.fetch(ticket) for ticket in self.tickets]
        self.source.take(source)

    def fetch(self, ticket: Ticket) -> Any:
        samples = [self.source.fetch(one) for one in ticket]
        return samples if self.stage.collation_fn is None else self.stage.collation_fn(samples)


class unbatched(Many[Any, Any]):
    """Takes batches apart into samples again.

    >>> list(unbatched()([([1, 2], ["a", "b"])]))
    [(1, 'a'), (2, 'b')]
    """

    handler = staticmethod(reraise_exception)

    def __init__(self) -> None:
        pass

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return UnbatchedRun(self, source, context)

    def expand(self, item: Any) -> Iterable[Any]:
        if isinstance(item, (tuple, list)):
            if not item:
                return []
            _check_equal_lengths([len(column) for column in item], "columns")
            return list(zip(*item))
        if isinstance(item, dict):
            # Values without a length, such as one number for the batch, belong to every sample.
            columns = {k: v for k, v in item.items() if hasattr(v, "__len__")}
            _check_equal_lengths([len(column) for column in columns.values()], "fields")
            size = len(next(iter(columns.values()))) if columns else 0
            return [
                {k: (v[index] if k in columns else v) for k, v in item.items()}
                for index in range(size)
            ]
        raise SampleError(f"unbatched needs batches, tuples or dicts, not {type(item).__name__}")


class UnbatchedRun(ManyRun[Any]):
    """Runs :class:`unbatched`.

    If :class:`batched` made the batch, a sample's ticket is the one it had before batching, so a
    later buffer saves one ticket per sample instead of those of the whole batch.
    """

    def __init__(self, stage: Any, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        self._single = isinstance(source, BatchedRun) and source.stage.collation_fn in (
            None,
            default_collation_fn,
        )

    @property
    def ticket(self) -> Ticket:
        if self._single:
            return self._at[self.given - 1] if self._at is not None else None
        return super().ticket

    def origin(self, ticket: Ticket) -> Origin | None:
        if self._single and self.source.source is not None:
            return self.source.source.origin(ticket)
        return next(iter(self.origins(ticket)), None) if ticket is not None else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        if self._single and self.source.source is not None:
            return self.source.source.origins(ticket)
        found = super().origins(ticket)
        return found[ticket[1] : ticket[1] + 1] if found and self.source.one_each else found

    def fetch(self, ticket: Ticket) -> Any:
        if self._single:
            return next(iter(self.stage.expand(self.source.fetch([ticket]))))
        return super().fetch(ticket)


def _check_equal_lengths(lengths: list[int], what: str) -> None:
    if len(set(lengths)) > 1:
        raise SampleError(f"unbatched: the batch's {what} have different lengths: {lengths}")


class unlisted(Many[list[T], T]):
    """Takes lists apart into their items.

    >>> list(unlisted()([[1, 2], [3]]))
    [1, 2, 3]
    """

    handler = staticmethod(reraise_exception)

    def __init__(self) -> None:
        pass

    def start(self, source: Run[list[T]], context: Context) -> Run[T]:
        return UnbatchedRun(self, source, context)

    def expand(self, item: list[T]) -> Iterable[T]:
        if not isinstance(item, list):
            raise SampleError(f"unlisted needs lists, not {type(item).__name__}")
        return item
