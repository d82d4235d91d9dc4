"""Opening shards and reading their samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError, ShardError
from penstock.handlers import Handler, reraise_exception
from penstock.shards.opening import open_shard
from penstock.shards.samples import Sample, Samples, base_plus_ext, is_meta, text_of
from penstock.stages.shardlist import Shard
from penstock.stages.stage import Run, Stage, Ticket
from penstock.urls import local_path

REMEMBERED = 10_000
"""Shards whose URL is remembered for the origin of samples that wait in buffers."""


class tarfile_to_samples(Stage[Shard, Sample]):
    """Reads every sample of every shard: ``{"__key__": …, "__url__": …, field: bytes, …}``.

    ``select_files(name)`` chooses members, the others are passed over; ``rename_files(name)``
    gives members other names first. With ``concatenated=True`` tars that were joined
    with ``cat`` are read to the end. With ``local_paths=True`` samples of local shards carry
    ``__local_path__``. A damaged shard gives the samples before the damage, then
    goes to ``handler``; if that says go on, the next shard follows.

    >>> from penstock import DataPipeline, SimpleShardList
    >>> pipeline = DataPipeline(SimpleShardList("shard-000000.tar"), tarfile_to_samples())
    """

    def __init__(
        self,
        handler: Handler = reraise_exception,
        select_files: Callable[[str], bool] | None = None,
        rename_files: Callable[[str], str] | None = None,
        *,
        concatenated: bool = False,
        empty_check: bool = False,
        local_paths: bool = False,
    ) -> None:
        self.handler, self.select_files, self.rename_files = handler, select_files, rename_files
        self.concatenated, self.empty_check = concatenated, empty_check
        self.local_paths = local_paths

    def want(self) -> Callable[[bytes], bool] | None:
        """Whether a member's data is needed, as the tape asks it."""
        select, rename = self.select_files, self.rename_files
        if select is None:
            return None

        def wanted(name: bytes) -> bool:
            text = text_of(name)
            if is_meta(text):
                return False
            text = rename(text) if rename is not None else text
            return base_plus_ext(text)[0] is not None and select(text)

        return wanted

    def start(self, source: Run[Shard], context: Context) -> Run[Sample]:
        return ReadRun(self, source, context)


class ReadRun(Run[Sample]):
    """Reading at work. A ticket is (the shard's ticket, the sample's offset)."""

    source: Run[Shard]
    stage: tarfile_to_samples

    def __init__(self, stage: Any, source: Run[Shard], context: Context) -> None:
        super().__init__(stage, source, context)
        self.samples: Samples | None = None
        self._shard: Ticket = None
        self._urls: dict[Any, str] = {}

    def __iter__(self) -> Iterator[Sample]:
        stage = self.stage
        shards = 0
        nothing = True
        for shard in self.source:
            shards += 1
            url, stream = shard_place(shard)
            self._remember(url)
            try:
                with open_shard(
                    url, stream=stream, want=stage.want(), concatenated=stage.concatenated
                ) as tape:
                    self.samples = Samples(
                        tape,
                        stage.handler,
                        local_path=local_path(url) if stage.local_paths else None,
                        rename=stage.rename_files,
                        on_skip=self.skip,
                    )
                    yield from self.samples
            except PenstockError as error:
                if not stage.handler(error):
                    return
                self.skip()
            nothing = nothing and (self.samples is None or self.samples.offset < 0)
        if nothing and stage.empty_check:
            self._complain(shards)

    def _remember(self, url: str) -> None:
        self.samples = None
        self._shard = self.source.ticket
        if len(self._urls) >= REMEMBERED:
            del self._urls[next(iter(self._urls))]
        self._urls[self._shard] = url

    def _complain(self, shards: int) -> None:
        context = self.context
        if shards == 0 and context.worker > 0:
            return  # more workers than shards: the others have them all
        raise PipelineError(
            f"No samples found in dataset: {shards} shards were read on rank {context.rank} of "
            f"{context.world_size}, worker {context.worker} of {context.num_workers}"
            + ("; perhaps there are fewer shards than ranks" if shards == 0 else "")
            + ". Turn this check off with empty_check=False."
        )

    @property
    def ticket(self) -> Ticket:
        return (self._shard, self.samples.offset if self.samples is not None else -1)

    def origin(self, ticket: Ticket) -> Origin | None:
        if ticket is None or ticket[0] not in self._urls:
            return None
        url, offset = self._urls[ticket[0]], ticket[1]
        return Origin(url, self._key_at(url, offset), offset)

    def _key_at(self, url: str, offset: int) -> str | None:
        """The key of the sample at an offset, read again: only errors ask for it."""
        if local_path(url) is None:
            return None
        try:
            with open_shard(url, start=offset, want=lambda name: False) as tape:
                member = tape.next_member()
        except PenstockError:
            return None
        return base_plus_ext(text_of(member.name))[0] if member is not None else None


def shard_place(shard: Any) -> tuple[str, Any]:
    """URL and open stream (or None) of what a shard list gave: a dict, or just a URL."""
    if isinstance(shard, str):
        return shard, None
    if isinstance(shard, dict) and isinstance(shard.get("url"), str):
        return shard["url"], shard.get("stream")
    raise ShardError(f"a shard list must give dicts with 'url', not {type(shard).__name__}")
