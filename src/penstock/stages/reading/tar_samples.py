"""Opening shards and reading their samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError, ShardError, StateError
from penstock.handlers import Handler, ask, reraise_exception
from penstock.redact import redact
from penstock.shards.byte_windows import FileWindow
from penstock.shards.lazy_bytes import ShardFile
from penstock.shards.open_shard import open_shard, open_stream
from penstock.shards.sample_reader import (
    Sample,
    Samples,
    base_plus_ext,
    check_group,
    is_meta,
    text_of,
)
from penstock.shards.tar_reader import TarReader
from penstock.stages.drop_guard import Dropping
from penstock.stages.reading.open_ahead import OPEN_AHEAD_BYTES, OpenedAhead
from penstock.stages.reading.shard_versions import ShardVersions
from penstock.stages.run import FunctionRun, Run, State, Ticket, as_count, fetch_again
from penstock.stages.sources.shard_list import Shard
from penstock.stages.stage import Stage
from penstock.storage.cache.shard_cache import ShardCache, path_of
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.urls import is_remote, local_path, scheme_of

REMEMBERED = 10_000
"""Shards whose URL is remembered for the origin of samples that wait in buffers."""


class tarfile_to_samples(Stage[Shard, Sample]):
    """Reads every sample of every shard: ``{"__key__": …, "__url__": …, field: bytes, …}``.

    ``select_files(name)`` chooses members, the others are skipped; ``rename_files(name)`` renames
    members first. With ``concatenated=True`` tars that were joined with ``cat`` are read to the
    end. With ``local_paths=True`` samples of local and of cached shards carry ``__local_path__``.
    Remote shards are kept in ``cache``, and requested with ``patience`` (a
    :class:`~penstock.storage.client.retry_policy.RetryPolicy`: retries, pauses, time-outs).
    ``group="dashed"`` reads interleaved documents: members ``KEY-NAME.jpg`` after ``KEY.json`` are
    its fields ``name.jpg`` (:mod:`penstock.documents`). A damaged shard yields the complete samples
    before the damage, then goes to ``handler``; if that returns true, the next shard follows.

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
        patience: RetryPolicy | None = None,
        group: str = "key",
    ) -> None:
        self.handler, self.select_files, self.rename_files = handler, select_files, rename_files
        self.group = check_group(group)
        self.concatenated, self.empty_check = concatenated, empty_check
        self.local_paths, self.cache, self.patience = local_paths, cache, patience

    @property
    def cache_dir(self) -> str | None:
        """The folder of the cache, if there is one."""
        return None if self.cache is None else self.cache.folder.path

    @property
    def url_to_name(self) -> Callable[[str], str] | None:
        """The function that names the files of the cache, if one was passed."""
        return None if self.cache is None else self.cache.url_to_name

    def open(self, url: str) -> Any:
        """Open the shard's stream, from the cache if there is one."""
        gopen = find_assigned_gopen()
        if gopen is None or (self.local_paths and local_path(url) is not None):
            return open_stream(url, self.cache, self.patience)
        if self.cache is not None:
            raise PipelineError(
                "cache_dir= cannot be combined with a function assigned to webdataset.gopen.gopen:"
                f" assign the opener to gopen_schemes[{scheme_of(url)!r}] instead"
            )
        return open_stream(url, opener=gopen)

    def start(self, source: Run[Shard], context: Context) -> Run[Sample]:
        replaced = find_replaced(self)
        return (
            ReadRun(self, source, context)
            if replaced is None
            else StepsRun(replaced, source, context)
        )


def find_replaced(stage: tarfile_to_samples) -> Any:
    """Return what reads instead of a stage, or None: ``penstock.tariterators`` replaces this."""
    return None


def list_assigned_steps(stage: tarfile_to_samples | None = None) -> dict[str, Any]:
    """Return the functions that a program has assigned to steps of a stage, or of any, by the
    step's name: ``penstock.tariterators`` replaces this."""
    return {}


def find_assigned_gopen() -> Callable[[str], Any] | None:
    """Return what opens shards instead of ``open_url``, or None: ``penstock.gopen`` replaces
    this."""
    return None


class StopReading(Exception):
    """A handler said to end the stream."""


class Names:
    """The members' names after ``rename_files`` and ``select_files``, each called once per member.

    If one of them fails, the handler decides about that member.
    """

    def __init__(self, stage: tarfile_to_samples, url: str, on_skip: Callable[[], None]) -> None:
        self.stage, self.url, self.on_skip = stage, url, on_skip
        self.last = ""

    def want(self, name: bytes) -> bool:
        """Return whether the member's data is needed; the tar reader calls it for each member."""
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
            error.add_note(f"in {self.stage.name}: {redact(self.url)}, member {text!r}")
            if not ask(self.stage.handler, error):
                raise StopReading from error
            self.on_skip()
            return False

    def renamed(self, name: str) -> str:
        """Return the new name of the member last passed to :meth:`want`."""
        return self.last


class StepsRun(FunctionRun[Sample]):
    """Runs what :func:`find_replaced` returns, on the same part of the data as a ReadRun."""

    def __init__(self, stage: Any, source: Run[Shard], context: Context) -> None:
        super().__init__(stage, source, context)
        self.stream_id = self.stream_id or context.stream_id


@dataclasses.dataclass(slots=True)
class _Next:
    """The shard after the current one: taken from the source, with the source's state before
    that."""

    shard: Any
    ticket: Ticket
    before: State
    opened: OpenedAhead | None = None
    error: Exception | None = None


class ReadRun(Run[Sample]):
    """A run of the reader. A ticket is (the shard's ticket, the sample's offset).

    The state is the current shard and the offset of its next sample. Resuming is a seek in a file;
    a compressed shard or a pipe is read again up to that offset.
    """

    source: Run[Shard]
    stage: tarfile_to_samples
    resumable = True

    def __init__(self, stage: Any, source: Run[Shard], context: Context) -> None:
        super().__init__(stage, source, context)
        self.stream_id = self.stream_id or context.stream_id
        self.samples: Samples | None = None
        self.nothing = True
        self.opened = 0
        self._deferred = False
        self._shard: Ticket = None
        self._resume_at = -1
        self._urls: dict[str, str] = {}
        self._source: Iterator[Shard] | None = None
        self._next: _Next | None = None
        self._versions = ShardVersions(context, stage)

    def __iter__(self) -> Iterator[Sample]:
        try:
            yield from self._read()
        finally:
            if self._next is not None and self._next.opened is not None:
                self._next.opened.drop()

    def _read(self) -> Iterator[Sample]:
        stage, dropping, empty = self.stage, Dropping(self), 0
        if self.ended:  # in the state that it resumes from
            return
        resuming = self._resume_at >= 0
        for shard, start, ahead in self._shards():
            self.samples = None
            url, stream = parse_shard_item(shard)
            self._remember(url)
            try:
                names = self._names(url)
                if stream is None:
                    stream = stage.open(url) if ahead is None else ahead.take()
                if resuming:
                    self._versions.resumed(self._shard, url, stream)
                else:
                    self._versions.opened(self._shard, url, stream)
                resuming = False
                with open_shard(
                    url,
                    stream=stream,
                    want=names.want if names is not None else None,
                    concatenated=stage.concatenated,
                    start=start,
                ) as tape:
                    path = self._local_path(url, stream)
                    self.samples = self._samples(tape, url, names, path, self._deferred)
                    if is_remote(url):
                        yield from self._looking_ahead(self.samples, stream)
                    else:
                        yield from self.samples
                    self.ended = self.samples.stopped
            except StopReading:
                self.ended = True
            except StateError:
                raise
            except PenstockError as error:
                resuming = False
                if getattr(error, "asked", False):
                    raise
                self.ended = not ask(stage.handler, error)
                if not self.ended:
                    self.skip()
            found = self.samples is not None and self.samples.offset >= 0
            self.nothing = self.nothing and not found
            if self.ended:
                break
            empty = 0 if found else dropping.more(empty)
        else:
            self.samples, self._shard, self._resume_at = None, None, -1
        if self.nothing and stage.empty_check:
            self._complain()

    def _shards(self) -> Iterator[tuple[Any, int, OpenedAhead | None]]:
        """Yield the shards, the offset to start at in each, and its stream if it was opened ahead.

        First comes the one of a saved state, if any.
        """
        if self._resume_at >= 0:
            yield fetch_again(self.source, self._shard), self._resume_at, None
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
        """Take the next shard from the source; keep an exception until it is that shard's turn."""
        try:
            shard = next(self._source or iter(()))
        except StopIteration:  # a new one: the traceback of this one would hold the shard open
            return _Next(None, None, before, error=StopIteration())
        except Exception as error:  # noqa: BLE001 - raised when its turn comes
            return _Next(None, None, before, error=error)
        return _Next(shard, self.source.ticket, before)

    def _looking_ahead(self, samples: Samples, stream: Any) -> Iterator[Sample]:
        """Yield the samples of a remote shard, and open the next shard before its end."""
        size = getattr(stream, "size_bytes", None)
        from_here = -1 if size is None else size - OPEN_AHEAD_BYTES
        for sample in samples:
            if self._next is None and samples.next_offset >= from_here:
                self._open_next()
            yield sample

    def _open_next(self) -> None:
        if self._source is None or self.source.opaque():
            return  # an item taken from such a source cannot be left out of its state
        self._next = self._coming(self.source.saved())
        shard = self._next.shard
        if isinstance(shard, dict) and shard.get("stream") is None and is_remote(shard["url"]):
            self._next.opened = OpenedAhead(partial(self.stage.open, shard["url"]))

    def _names(self, url: str) -> Names | None:
        stage = self.stage
        if stage.select_files is None and stage.rename_files is None:
            return None
        return Names(stage, url, self.skip)

    def _local_path(self, url: str, stream: Any) -> str | None:
        """Return the value of ``__local_path__``: the shard's file, or its copy in the cache."""
        if not self.stage.local_paths:
            return None
        path = local_path(url)
        return path if path is not None else path_of(stream)

    def _samples(
        self, tape: TarReader, url: str, names: Names | None, path: str | None, later: bool = False
    ) -> Samples:
        return Samples(
            tape,
            self.stage.handler,
            local_path=path,
            rename=names.renamed if names is not None else None,
            on_skip=self.skip,
            later=ShardFile.of(tape.window) if later else None,
            group=self.stage.group,
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

    def is_empty(self) -> bool:
        return self.opened == 0 and self.nothing

    def _complain(self) -> None:
        context, shards = self.context, self.opened
        if shards == 0 and (context.worker > 0 or context.lane):
            return  # more workers or lanes than shards: the others have them all
        raise PipelineError(
            f"No samples found in dataset: {shards} shards were read on rank {context.rank} of "
            f"{context.world_size}, worker {context.worker} of {context.num_workers}"
            + ("; perhaps there are fewer shards than ranks" if shards == 0 else "")
            + ("; a handler ended the stream" if self.ended else "")
            + ". Turn this check off with empty_check=False."
        )

    @property
    def ticket(self) -> Ticket:
        return (self._shard, self.samples.offset if self.samples is not None else -1)

    def state(self) -> State:
        at = self.samples.next_offset if self.samples is not None else self._resume_at
        some = not self.nothing or self.samples is not None
        shards = self.source.saved() if self._next is None else self._next.before
        state = {"shard": self._shard, "at": at, "some": some, "shards": shards}
        versions = self._versions.state()
        return {**state, "versions": versions} if versions else state

    def restore(self, state: State) -> None:
        self._shard, self._resume_at = state["shard"], as_count(state["at"] + 1) - 1
        self.nothing = not state["some"]
        self._versions.restore(state.get("versions", []))
        self.source.take(state["shards"])

    def fetch(self, ticket: Ticket) -> Sample:
        shard, offset = ticket
        url, _ = parse_shard_item(self.source.fetch(shard))
        names = self._names(url)
        want = names.want if names is not None else None
        stream = self.stage.open(url)
        self._versions.check(shard, url, stream)
        path = self._local_path(url, stream)
        with open_shard(url, stream=stream, want=want, start=offset, only=True) as tape:
            for sample in self._samples(tape, url, names, path):
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
        """Read the key of the sample at an offset again, for an error message."""
        if local_path(url) is None:
            return None
        try:
            with open_shard(url, want=lambda name: False) as tape:
                if not isinstance(tape.window, FileWindow):
                    return None  # decompressing everything before it would take too long
                tape.base = offset
                member = tape.next_member()
        except PenstockError:
            return None
        name = text_of(member.name) if member is not None else ""
        return base_plus_ext(self.stage.rename_files(name) if self.stage.rename_files else name)[0]


def parse_shard_item(shard: Any) -> tuple[str, Any]:
    """Return the URL and open stream (or None) of an item of a shard list: a dict or a URL."""
    if isinstance(shard, str):
        return shard, None
    if isinstance(shard, dict) and isinstance(shard.get("url"), str):
        return shard["url"], shard.get("stream")
    raise ShardError(f"a shard list must yield dicts with 'url', not {type(shard).__name__}")
