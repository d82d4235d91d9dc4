"""Runs of the stages that work item by item: :class:`Each` and :class:`Many`.

They keep nothing of an item but its ticket, so their state is little more than their source's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

from penstock.errors import Origin, StateError
from penstock.stages.drop_guard import Dropping
from penstock.stages.run import Out, Run, State, Ticket, Together, as_count, fetch_again


class EachRun(Run[Out]):
    """Runs an :class:`Each`.

    If the context has an engine, the last of several consecutive ones runs them all as one
    :class:`~penstock.engine.segment_run.Row`, which takes items ahead.
    """

    source: Run[Any]
    resumable = True
    row: Any = None
    """The running row of which this is the last stage."""
    _behind = 0  # items of the source to skip: they were yielded after its state was saved

    def apply(self, item: Any) -> Any:
        """Apply the stage to the last item of the source."""
        return self.stage.apply(item)

    def at(self, item: Any, ticket: Ticket) -> Any:
        """Return the stage's result for an item and its ticket. Any thread may call it."""
        return self.stage.apply(item)

    @property
    def rows(self) -> bool:
        """True if it can be part of a row; not if it needs the current ticket of its source."""
        kind = type(self)
        return kind.apply is EachRun.apply or kind.at is not EachRun.at

    def together(self) -> Together | None:
        """Return a function that works on many items in one call, or None: one by one."""
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
        # The items that a row skips are those of its source, so its first run skips them.
        first = not (self.rows and isinstance(self.source, EachRun) and self.source.rows)
        if first and isinstance(state, dict) and state.keys() == {"behind", "source"}:
            self._behind, state = as_count(state["behind"]), state["source"]
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
        """Return the items of the source, from the position of the state."""
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
        """Take up to ``items`` items ahead, for threads to work on: they are needed soon."""
        if self.row is None:
            self.row = self.context.engine.row(self)
        self.row.prime(items)

    def close(self) -> None:
        if self.row is not None:
            self.row.close()

    def _each(self) -> Iterator[Out]:
        apply = self.apply if type(self) is not EachRun else self.stage.apply
        dropping, dropped = Dropping(self), 0
        counts = dropping.counts
        for item in () if self.ended else self.items():
            try:
                result = apply(item)
            except Exception as error:  # noqa: BLE001 - the handler decides
                if not self.failed(error, self.stage.handler, item):
                    self.ended = True
                    return
                result = None
            if result is not None:
                dropped = 0
                yield result
            elif counts:
                dropped = dropping.more(dropped)
        self.dropped = dropped


class ManyRun(Run[Out]):
    """Runs a :class:`Many`. Its tickets are (the item's ticket, the number of its result).

    Between two results it keeps the ticket of the current item, and how many were yielded.
    """

    source: Run[Any]
    resumable = True
    given = 0
    _at: Ticket = None  # of the item that the last result came from
    _half_done = False  # that item may have more results: between any two results

    def __iter__(self) -> Iterator[Out]:
        if self._half_done:  # after a restore: the rest of the current item
            yield from self._results(fetch_again(self.source, self._at), self.given)
        dropping, dropped = Dropping(self), 0
        counts, self._half_done = dropping.counts, True
        for item in () if self.ended else self.source:
            try:
                results = self.stage.expand(item)
            except Exception as error:  # noqa: BLE001 - the handler decides
                if not self.failed(error, self.stage.handler, item):
                    self.ended = True
                    return
                dropped = dropping.more(dropped)
                continue
            self._at, self.given = self.source.ticket, 0
            for result in results:
                self.given += 1
                yield result
            if counts:
                dropped = 0 if self.given else dropping.more(dropped)
        self.dropped, self._half_done = dropped, False

    def _results(self, item: Any, skip: int) -> Iterator[Out]:
        for number, result in enumerate(self.stage.expand(item)):
            if number >= skip:
                self.given = number + 1
                yield result

    @property
    def ticket(self) -> Ticket:
        return (self._at, self.given - 1)

    def origin(self, ticket: Ticket) -> Origin | None:
        return self.source.origin(ticket[0]) if ticket is not None else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.source.origins(ticket[0]) if ticket is not None else []

    def state(self) -> State:
        return [self._at if self._half_done else None, self.given, self.source.saved()]

    def restore(self, state: State) -> None:
        self._at, given, source = state
        self.given = as_count(given)
        self._half_done = self._at is not None
        self.source.take(source)

    def fetch(self, ticket: Ticket) -> Any:
        item, number = ticket
        for index, result in enumerate(self.stage.expand(self.source.fetch(item))):
            if index == number:
                return result
        raise StateError(f"{self.stage.name} returns fewer items now than when the state was saved")
