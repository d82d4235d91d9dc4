"""Dealing shards out to ranks and to loader workers, each shard to exactly one.

These stages stand in a pipeline as they are, without being called: ``wds.split_by_worker``.
They come after the shards are shuffled: the order is the same everywhere, the parts differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.context import Context, here
from penstock.errors import PipelineError
from penstock.stages.run import Run, State, as_run
from penstock.stages.stage import Stage


class Split(Stage[Any, Any]):
    """Every n-th item, beginning with one's own number."""

    def part(self, context: Context) -> tuple[int, int]:
        """This process's number, and of how many."""
        raise NotImplementedError

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return SplitRun(self, source, context)

    def __call__(self, source: Iterable[Any] | None = None, group: Any = None) -> Any:
        # wds.split_by_node, wds.split_by_node() and wds.split_by_node(src, group) all work.
        if source is None:
            return self
        return iter(self.start(as_run(source), here(group=group)))


class SplitRun(Run[Any]):
    """A split at work: keeps the number of items it has seen.

    Where the pipeline has lanes, the first split deals the items out to them, whatever it is
    called, and the others have nothing left to do: lanes belong to ranks and workers whole.
    """

    source: Run[Any]
    resumable = True
    seen = 0

    def __init__(self, stage: Any, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        if context.lane is None or context.lanes is None:
            self.number, self.of = stage.part(context)
        else:
            self.number, self.of = (0, 1) if self.place else (context.lane, context.lanes)
        self.dealt = self.dealt or context.lane is not None
        if self.of > 1:
            self.place = (*self.place, self.number)

    def __iter__(self) -> Iterator[Any]:
        number, of = self.number, self.of
        for item in self.source:
            self.seen += 1
            if (self.seen - 1) % of == number:
                yield item

    def state(self) -> State:
        return [self.seen, self.source.saved()]

    def restore(self, state: State) -> None:
        self.seen, source = state
        self.source.take(source)


class SplitByNode(Split):
    """Deals the items out to the ranks of a distributed job."""

    name = "split_by_node"

    def part(self, context: Context) -> tuple[int, int]:
        return context.rank, context.world_size


class SplitByWorker(Split):
    """Deals the items out to the workers of a loader."""

    name = "split_by_worker"

    def part(self, context: Context) -> tuple[int, int]:
        return context.worker, context.num_workers


class SingleNodeOnly(Split):
    """Lets everything through on one rank; on several it asks for a decision."""

    name = "single_node_only"

    def part(self, context: Context) -> tuple[int, int]:
        if context.world_size > 1:
            raise PipelineError(
                f"this job has {context.world_size} ranks and nothing says how they share the "
                "shards: you need to add an explicit nodesplitter "
                "(nodesplitter=wds.split_by_node gives each rank its own shards; "
                "nodesplitter=None gives all shards to every rank; or use resampled=True)"
            )
        return 0, 1


split_by_node = SplitByNode()
split_by_worker = SplitByWorker()
single_node_only = SingleNodeOnly()
