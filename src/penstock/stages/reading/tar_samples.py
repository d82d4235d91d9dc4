"""Opening shards and reading their samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError, ShardError, StateError
from penstock.handlers import Handler, reraise_exception
from penstock.shards.lazy_bytes import ShardFile
from penstock.shards.open_shard import open_shard, open_stream
from penstock.shards.sample_reader import Sample, Samples, base_plus_ext, is_meta, text_of
from penstock.shards.tar_reader import Tape
from penstock.shards.byte_windows import FileWindow
from penstock.redact import shown
from penstock.stages.reading.open_ahead import OPEN_AHEAD_BYTES, OpenedAhead
from penstock.stages.run import Run, State, Ticket
from penstock.stages.sources.shard_list import Shard
from penstock.stages.stage import Stage
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import Patience
from penstock.storage.urls import is_remote, local_path

REMEMBERED = 10_000
"""Shards whose URL is remembered for the origin of samples that wait in buffers."""


class tarfile_to_samples(Stage[Shard, Sample]):
    """Reads every sample of every shard: ``{"__key__": …, "__url__": …, field: bytes, …}``.

    ``select_files(name)`` chooses members, the others are passed over; ``rename_files(name)``
    gives members other names first. With ``concatenated=True`` tars that were joined
    with ``cat`` are read to the end. With ``local_paths=True`` samples of local shards carry
    ``__local_path__``. Remote shards are kept in ``cache``, and asked for with ``patience``
    (a :class:`~penstock.storage.client.retry_policy.Patience`: retries, pauses, time-outs). A damaged
    shard gives the samples before the damage, then goes to ``handler``; if that says go on, the
    next shard follows.

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
        cache: ShardCache | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.handler, self.select_files, self.rename_files = handler, select_files, rename_files
        self.concatenated, self.empty_check = concatenated, empty_check
        self.local_paths, self.cache, self.patience = local_paths, cache, patience

    def open(self, url: str) -> Any:
        """The shard's stream, from the cache where there is one."""
        return open_stream(url, self.cache, self.patience)

    def start(self, source: Run[Shard], context: Context) -> Run[Sample]:
        return ReadRun(self, source, context)


class StopReading(Exception):
    """A handler said to end the stream."""


class Names:
    """The members' names as ``rename_files`` and ``select_files`` want them, asked once each.

    Where one of them fails, the handler decides about that member.
    """

    def __init__(self, stage: tarfile_to_samples, url: str, on_skip: Callable[[], None]) -> None:
        self.stage, self.url, self.on_skip = stage, url, on_skip
        self.last = ""

    def want(self, name: bytes) -> bool:
        """Whether the member's data is needed, as the tape asks it."""
        select, rename = self.stage.select_files, self.stage.rename_files
        text = text_of(name)
        if is_meta(text):
            return False
        try:
            self.last = rename(text) if rename is not None else text
            return base_plus_ext(self.last)[0] is not None and (
                select is None or bool(select(self.last))
            )
        except Exception as error:
            error.add_note(f"in {self.stage.name}: {shown(self.url)}, member {text!r}")
            if not self.stage.handler(error):
                raise StopReading from error
            self.on_skip()
            return False

    def renamed(self, name: str) -> str:
        """The new name of the member that was asked for last."""
        return self.last


@dataclasses.dataclass(slots=True)
class _Next:
    """The shard behind the one at hand: taken from the source, with its state before that."""

    shard: Any
    ticket: Ticket
    before: State
    opened: OpenedAhead | None = None
    error: Exception | None = None


class ReadRun(Run[Sample]):
    """Reading at work. A ticket is (the shard's ticket, the sample's offset).

    State is the shard at hand and where its next sample begins. Going on from there is a seek in
    a file; of a compressed shard or a pipe, that one shard is read again up to there.
    """

    source: Run[Shard]
    stage: tarfile_to_samples
    resumable = True

    def __init__(self, stage: Any, source: Run[Shard], context: Context) -> None:
        super().__init__(stage, source, context)
        self.place = self.place or context.place
        self.samples: Samples | None = None
        self.nothing = True
        self.opened = 0
        self._deferred = False
        self._shard: Ticket = None
        self._resume_at = -1
        self._urls: dict[str, str] = {}
        self._source: Iterator[Shard] | None = None
        self._next: _Next | None = None

    def __iter__(self) -> Iterator[Sample]:
        try:
            yield from self._read()
        finally:
            if self._next is not None and self._next.opened is not None:
                self._next.opened.drop()

    def _read(self) -> Iterator[Sample]:
        stage = self.stage
        for shard, start, ahead in self._shards():
            self.samples = None
            url, stream = shard_place(shard)
            self._remember(url)
            try:
                names = self._names(url)
                if stream is None:
                    stream = stage.open(url) if ahead is None else ahead.take()
                with open_shard(
                    url,
                    stream=stream,
                    want=names.want if names is not None else None,
                    concatenated=stage.concatenated,
                    start=start,
                ) as tape:
                    self.samples = self._samples(tape, url, names, self._deferred)
                    if is_remote(url):
                        yield from self._looking_ahead(self.samples, stream)
                    else:
                        yield from self.samples
                    if self.samples.stopped:
                        self.ended = True
                        return
            except StopReading:
                self.ended = True
                return
            except PenstockError as error:
                if getattr(error, "asked", False):
                    raise
                if not stage.handler(error):
                    self.ended = True
                    return
                self.skip()
            self.nothing = self.nothing and (self.samples is None or self.samples.offset < 0)
        self.samples, self._shard, self._resume_at = None, None, -1
        if self.nothing and stage.empty_check:
            self._complain()

    def _shards(self) -> Iterator[tuple[Any, int, OpenedAhead | None]]:
        """The shards, where to begin in each, and its stream if it was opened ahead.

        First comes the one of a saved state, if any.
        """
        if self._resume_at >= 0:
            yield self.source.fetch(self._shard), self._resume_at, None
        if self.ended:
            return
        self._source = iter(self.source)
        while True:
            coming, self._next = self._next or self._coming(), None
            if isinstance(coming.error, StopIteration):
                return
            if coming.error is not None:
                raise coming.error
            self.opened += 1
            self._shard = coming.ticket
            yield coming.shard, 0, coming.opened

    def _coming(self, before: State = None) -> _Next:
        """Takes the next shard from the source; what that raises is kept for its turn."""
        try:
            shard = next(self._source or iter(()))
        except Exception as error:  # noqa: BLE001 - raised when its turn comes
            return _Next(None, None, before, error=error)
        return _Next(shard, self.source.ticket, before)

    def _looking_ahead(self, samples: Samples, stream: Any) -> Iterator[Sample]:
        """The samples of a remote shard; before its end, the next one is opened."""
        size = getattr(stream, "size_bytes", None)
        from_here = -1 if size is None else size - OPEN_AHEAD_BYTES
        for sample in samples:
            if self._next is None and samples.next_offset >= from_here:
                self._open_next()
            yield sample

    def _open_next(self) -> None:
        if self._source is None or self.source.opaque():
            return  # what has been taken from such a source cannot be left out of its state
        self._next = self._coming(self.source.saved())
        shard = self._next.shard
        if isinstance(shard, dict) and shard.get("stream") is None and is_remote(shard["url"]):
            self._next.opened = OpenedAhead(partial(self.stage.open, shard["url"]))

    def _names(self, url: str) -> Names | None:
        stage = self.stage
        if stage.select_files is None and stage.rename_files is None:
            return None
        return Names(stage, url, self.skip)

    def _samples(self, tape: Tape, url: str, names: Names | None, later: bool = False) -> Samples:
        stage = self.stage
        return Samples(
            tape,
            stage.handler,
            local_path=local_path(url) if stage.local_paths else None,
            rename=names.renamed if names is not None else None,
            on_skip=self.skip,
            later=ShardFile.of(tape.window) if later else None,
        )

    def defer(self) -> Run[Any] | None:
        self._deferred = True
        return self

    @property
    def gives_ready(self) -> bool:
        return True

    def ready(self, most: int) -> tuple[list[Any], list[Ticket]]:
        if self.samples is None:
            return [], []
        samples, offsets = self.samples.ready(most)
        shard = self._shard
        return samples, [(shard, offset) for offset in offsets]

    def passed(self, count: int) -> None:
        if self.samples is not None:
            self.samples.passed(count)

    def _remember(self, url: str) -> None:
        if len(self._urls) >= REMEMBERED:
            del self._urls[next(iter(self._urls))]
        self._urls[str(self._shard)] = url

    def _complain(self) -> None:
        context, shards = self.context, self.opened
        if shards == 0 and (context.worker > 0 or context.lane):
            return  # more workers or lanes than shards: the others have them all
        raise PipelineError(
            f"No samples found in dataset: {shards} shards were read on rank {context.rank} of "
            f"{context.world_size}, worker {context.worker} of {context.num_workers}"
            + ("; perhaps there are fewer shards than ranks" if shards == 0 else "")
            + ". Turn this check off with empty_check=False."
        )

    @property
    def ticket(self) -> Ticket:
        return (self._shard, self.samples.offset if self.samples is not None else -1)

    def state(self) -> State:
        at = self.samples.next_offset if self.samples is not None else self._resume_at
        some = not self.nothing or self.samples is not None
        shards = self.source.saved() if self._next is None else self._next.before
        return {"shard": self._shard, "at": at, "some": some, "shards": shards}

    def restore(self, state: State) -> None:
        self._shard, self._resume_at = state["shard"], state["at"]
        self.nothing = not state["some"]
        self.source.take(state["shards"])

    def fetch(self, ticket: Ticket) -> Sample:
        shard, offset = ticket
        url, _ = shard_place(self.source.fetch(shard))
        names, stage = self._names(url), self.stage
        want = names.want if names is not None else None
        place: dict[str, Any] = {"cache": stage.cache, "patience": stage.patience}
        with open_shard(url, **place, want=want, start=offset, only=True) as tape:
            for sample in self._samples(tape, url, names):
                return sample
        raise StateError("there is no sample here any more", origin=Origin(url, offset=offset))

    def origin(self, ticket: Ticket) -> Origin | None:
        if ticket is None or ticket[1] < 0:
            return None
        url = self._urls.get(str(ticket[0]))
        if url is None:  # of an earlier pass, or long ago
            known = self.source.origin(ticket[0])
            if known is None:
                return None
            url = known.url
        return Origin(url, self._key_at(url, ticket[1]), ticket[1])

    def _key_at(self, url: str, offset: int) -> str | None:
        """The key of the sample at an offset, read again: only errors ask for it."""
        if local_path(url) is None:
            return None
        try:
            with open_shard(url, want=lambda name: False) as tape:
                if not isinstance(tape.window, FileWindow):
                    return None  # to decompress all that stands before it is too much to ask
                tape.base = offset
                member = tape.next_member()
        except PenstockError:
            return None
        name = text_of(member.name) if member is not None else ""
        return base_plus_ext(self.stage.rename_files(name) if self.stage.rename_files else name)[0]


def shard_place(shard: Any) -> tuple[str, Any]:
    """URL and open stream (or None) of what a shard list gave: a dict, or just a URL."""
    if isinstance(shard, str):
        return shard, None
    if isinstance(shard, dict) and isinstance(shard.get("url"), str):
        return shard["url"], shard.get("stream")
    raise ShardError(f"a shard list must give dicts with 'url', not {type(shard).__name__}")
