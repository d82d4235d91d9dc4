"""Stages that split shards between ranks and loader workers, each shard to exactly one.

They are put into a pipeline without being called: ``wds.split_by_worker``. They come after the
shards are shuffled: the order is the same everywhere, the parts differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.context import Context, current_context
from penstock.errors import PipelineError
from penstock.stages.run import CountedRun, Run, as_run
from penstock.stages.stage import Stage


class Split(Stage[Any, Any]):
    """Keeps every n-th item, beginning with this process's number."""

    def part(self, context: Context) -> tuple[int, int]:
        """Return this process's number, and the number of processes."""
        raise NotImplementedError

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return SplitRun(self, source, context)

    def __call__(self, source: Iterable[Any] | None = None, group: Any = None) -> Any:
        # wds.split_by_node, wds.split_by_node() and wds.split_by_node(src, group) all work.
        if source is None:
            return self
        return iter(self.start(as_run(source), current_context(group=group)))


class SplitRun(CountedRun[Any]):
    """Runs a :class:`Split`.

    If the pipeline has lanes, the first split assigns the items to lanes, whatever its name, and
    the others do nothing: a lane belongs to one rank and one worker as a whole.
    """

    def __init__(self, stage: Any, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context)
        if context.lane is None or context.lanes is None:
            self.number, self.of = stage.part(context)
        else:
            self.number, self.of = (0, 1) if self.stream_id else (context.lane, context.lanes)
        self.dealt = self.dealt or context.lane is not None
        if self.of > 1:
            self.stream_id = (*self.stream_id, self.number)

    def __iter__(self) -> Iterator[Any]:
        number, of = self.number, self.of
        for item in self.source:
            self.seen += 1
            if (self.seen - 1) % of == number:
                yield item

    def is_empty(self) -> bool:
        return bool(self.seen <= self.number)


class SplitByNode(Split):
    """Splits the items between the ranks of a distributed job."""

    name = "split_by_node"

    def part(self, context: Context) -> tuple[int, int]:
        return context.rank, context.world_size


class SplitByWorker(Split):
    """Splits the items between the workers of a loader."""

    name = "split_by_worker"

    def part(self, context: Context) -> tuple[int, int]:
        return context.worker, context.num_workers


class SingleNodeOnly(Split):
    """Passes everything on one rank, and raises an error on several."""

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
