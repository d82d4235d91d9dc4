"""Apply to each sample of a mixture the stages of its source."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.context import Context
from penstock.handlers import reraise_exception
from penstock.stages.run import Run, Ticket, start
from penstock.stages.segment import EachRun
from penstock.stages.stage import Each


class SourceStages(Each[Any, Any]):
    """Applies to each sample the stages of the source that it comes from."""

    keeps_count = True

    def __init__(self, stages: Mapping[str, Sequence[Each[Any, Any]]]) -> None:
        self.stages = dict(stages)

    def handler(self, error: Exception) -> bool:
        asked = getattr(error, "penstock_handler", None)
        if asked is None:
            raise error
        return bool(asked(error))

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {}

    def __repr__(self) -> str:
        return f"SourceStages(of {sum(map(bool, self.stages.values()))} sources)"

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return SourceStagesRun(self, source, context)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SourceStages):
            return NotImplemented
        return self.stages == other.stages

    __hash__ = Each.__hash__


class SourceStagesRun(EachRun[Any]):
    """A run of :class:`SourceStages`: a chain of runs for each source, started at its first
    sample."""

    stage: SourceStages

    def __init__(self, stage: SourceStages, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        self._chains: dict[str, list[Any]] = {}

    @property
    def whole_process(self) -> bool:
        stages = (stage for chain in self.stage.stages.values() for stage in chain)
        return any(getattr(stage, "rng", False) == "global" for stage in stages)

    @property
    def rows(self) -> bool:
        return not self.whole_process

    def apply(self, item: Any) -> Any:
        return self.at(item, self.source.ticket)

    def at(self, item: Any, ticket: Ticket) -> Any:
        name = item["__source__"]
        chain = self._chains.get(name)
        if chain is None:
            chain = self._start(name)
        for run in chain:
            try:
                item = run.at(item, ticket)
            except Exception as error:
                handler = run.stage.handler
                if handler is not reraise_exception:
                    with contextlib.suppress(AttributeError):
                        error.penstock_handler = handler  # type: ignore[attr-defined]
                raise
            if item is None:
                return None
        return item

    def _start(self, name: str) -> list[Any]:
        chain: list[Any] = []
        run: Run[Any] = self.source
        for stage in self.stage.stages[name]:
            run = start(stage, run, self.context)
            chain.append(run)
        self._chains = {**self._chains, name: chain}
        return chain
