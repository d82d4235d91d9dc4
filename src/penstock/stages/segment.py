"""Runs that go item by item: of stages that give one or none for each, and of those that give many.

They keep nothing of an item but its ticket, so their state is their source's, and little more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

from penstock.errors import Origin, StateError
from penstock.stages.run import Out, Run, State, Ticket, Together


class EachRun(Run[Out]):
    """An :class:`Each` at work.

    Where the context has an engine, the last of several in a row runs them all as one
    :class:`~penstock.engine.segment_run.Row`, which takes items ahead.
    """

    source: Run[Any]
    resumable = True
    row: Any = None
    """The row at work, of which this is the last."""
    _behind = 0  # items of the source to be passed over: they were given since its state was taken

    def apply(self, item: Any) -> Any:
        """What happens to the item that the source gave last."""
        return self.stage.apply(item)

    def at(self, item: Any, ticket: Ticket) -> Any:
        """What happens to the item of a ticket; for any item, on any thread."""
        return self.stage.apply(item)

    @property
    def rows(self) -> bool:
        """Whether it can be part of a row: a run that asks its source where it stands cannot."""
        kind = type(self)
        return kind.apply is EachRun.apply or kind.at is not EachRun.at

    def together(self) -> Together | None:
        """What works on many items in one go, where the stage can; None: one by one."""
        if type(self).at is not EachRun.at or not getattr(self.stage, "goes_together", False):
            return None
        apply = self.stage.apply_together
        return lambda items, tickets, turn: apply(items, None, turn)

    def fetch(self, ticket: Ticket) -> Any:
        return self.at(self.source.fetch(ticket), ticket)

    @property
    def ticket(self) -> Ticket:
        return self.source.ticket if self.row is None else self.row.ticket

    def teller(self) -> Any:
        return self.source.teller() if self.row is None else self.row

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.source.origins(ticket)

    def left(self) -> int | None:
        items = self.source.left() if self.stage.keeps_count else None
        return None if items is None else items - self._behind

    def skip_ahead(self, count: int) -> bool:
        return self.stage.keeps_count and self.source.skip_ahead(count)

    def saved(self) -> State:
        return super().saved() if self.row is None else self.row.saved()

    def state(self) -> State:
        source = self.source.saved()
        return {"behind": self._behind, "source": source} if self._behind else source

    def restore(self, state: State) -> None:
        # What a row passes over are items of its source: a matter of the first run of the row.
        first = not (self.rows and isinstance(self.source, EachRun) and self.source.rows)
        if first and isinstance(state, dict) and state.keys() == {"behind", "source"}:
            self._behind, state = state["behind"], state["source"]
        self.source.take(state)

    @property
    def gives_ready(self) -> bool:
        return type(self).apply is EachRun.apply and self.stage.quiet and self.source.gives_ready

    def ready(self, most: int) -> tuple[list[Any], list[Ticket]]:
        if self.row is not None:
            return cast(tuple[list[Any], list[Ticket]], self.row.ready(most))
        items, tickets = self.source.ready(most)
        if not items:
            return items, tickets
        results = self.stage.apply_ready(items)
        return results, tickets[: len(results)]

    def passed(self, count: int) -> None:
        if self.row is not None:
            self.row.passed(count)
        else:
            self.source.passed(count)

    def items(self) -> Iterator[Any]:
        """What the source gives, from where the state stood."""
        behind, self._behind = self._behind, 0
        return islice(self.source, behind, None) if behind else iter(self.source)

    def __iter__(self) -> Iterator[Out]:
        engine = self.context.engine
        if engine is None or not self.rows:
            return self._each()
        if self.row is None:
            self.row = engine.row(self)
        return cast(Iterator[Out], self.row.items())

    def prime(self, items: int) -> None:
        """Take up to so many items ahead, for threads to work on: their turn comes soon."""
        if self.row is None:
            self.row = self.context.engine.row(self)
        self.row.prime(items)

    def close(self) -> None:
        if self.row is not None:
            self.row.close()

    def _each(self) -> Iterator[Out]:
        apply = self.apply if type(self) is not EachRun else self.stage.apply
        for item in () if self.ended else self.items():
            try:
                result = apply(item)
            except Exception as error:  # noqa: BLE001 - the handler decides
                if self.failed(error, self.stage.handler, item):
                    continue
                self.ended = True
                return
            if result is not None:
                yield result


class ManyRun(Run[Out]):
    """A :class:`Many` at work. Its tickets are (the item's ticket, which of its results).

    Between two results it keeps the ticket of the item it is at, and how many were given.
    """

    source: Run[Any]
    resumable = True
    given = 0
    _at: Ticket = None  # the item's ticket
    _half_done = False

    def __iter__(self) -> Iterator[Out]:
        if self._half_done:  # after a restore: the rest of the item we were at
            self._half_done = False
            yield from self._results(self.source.fetch(self._at), self.given)
        for item in () if self.ended else self.source:
            self._at = self.source.ticket
            try:
                results = self.stage.expand(item)
            except Exception as error:  # noqa: BLE001 - the handler decides
                if self.failed(error, self.stage.handler, item):
                    continue
                self.ended = True
                return
            self.given = 0
            for result in results:
                self.given += 1
                yield result
            self._at = None

    def _results(self, item: Any, skip: int) -> Iterator[Out]:
        for number, result in enumerate(self.stage.expand(item)):
            if number >= skip:
                self.given = number + 1
                yield result
        self._at = None

    @property
    def ticket(self) -> Ticket:
        return (self._at, self.given - 1)

    def origin(self, ticket: Ticket) -> Origin | None:
        return self.source.origin(ticket[0]) if ticket is not None else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.source.origins(ticket[0])

    def state(self) -> State:
        return [self._at, self.given, self.source.saved()]

    def restore(self, state: State) -> None:
        self._at, self.given, source = state
        self._half_done = self._at is not None
        self.source.take(source)

    def fetch(self, ticket: Ticket) -> Any:
        item, number = ticket
        for place, result in enumerate(self.stage.expand(self.source.fetch(item))):
            if place == number:
                return result
        raise StateError(f"{self.stage.name} gives fewer items now than when the state was saved")
