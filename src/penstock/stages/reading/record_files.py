"""Stages that read shards of records: CBOR or MessagePack values one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.codecs.cbor_scan import end_of_item
from penstock.codecs.hash_collisions import check_hashes
from penstock.context import Context
from penstock.errors import (
    DecodingError,
    Origin,
    PenstockError,
    ShardError,
    StateError,
    optional,
)
from penstock.handlers import Handler, ask, reraise_exception
from penstock.shards.byte_windows import WINDOW_BYTES
from penstock.stages.drop_guard import Dropping
from penstock.stages.reading.shard_versions import ShardVersions
from penstock.stages.reading.tar_samples import parse_shard_item
from penstock.stages.run import Run, State, Ticket, as_count, fetch_again
from penstock.stages.sources.shard_list import Shard
from penstock.stages.stage import Stage
from penstock.storage import open_url

MAX_RECORD_BYTES = 1 << 30
MAX_ITEMS = 1 << 22
QUICK_ITEMS = 1024
"""Maps with up to this many keys cannot take long, even if all keys share a hash."""


class Records(Stage[Shard, Any]):
    """Reads every record of every shard."""

    def __init__(self, handler: Handler = reraise_exception) -> None:
        self.handler = handler

    def records(self, stream: Any, run: RecordsRun, start: int) -> Iterator[Any]:
        """Yield the records of an open shard from byte ``start`` on, and set the run's offsets."""
        raise NotImplementedError

    def start(self, source: Run[Shard], context: Context) -> Run[Any]:
        return RecordsRun(self, source, context)


Compare = Callable[[Ticket, str, Any], None]


class RecordsRun(Run[Any]):
    """Runs :class:`Records`. A ticket is (the shard's ticket, the record's offset)."""

    source: Run[Shard]
    resumable = True
    offset = 0
    next_offset = -1
    url = ""

    def __init__(self, stage: Records, source: Run[Shard], context: Context) -> None:
        super().__init__(stage, source, context)
        self.stream_id = self.stream_id or context.stream_id
        self._shard: Ticket = None
        self._found = False  # True once a record of the shard was read
        self._versions = ShardVersions(context, stage)

    def __iter__(self) -> Iterator[Any]:
        if self.next_offset >= 0 and not self.ended:
            shard = fetch_again(self.source, self._shard)
            yield from self._read_shard(shard, self.next_offset, self._versions.resumed)
        dropping, empty = Dropping(self), 0
        for shard in () if self.ended else self.source:
            self._shard, self._found = self.source.ticket, False
            yield from self._read_shard(shard, 0, self._versions.opened)
            if self.ended:
                return
            empty = 0 if self._found else dropping.more(empty)

    def _read_shard(self, shard: Any, start: int, compare: Compare) -> Iterator[Any]:
        """Yield the records of one shard; call the handler if reading fails."""
        try:
            yield from self._read(shard, start, compare)
        except StateError:
            raise
        except PenstockError as error:
            if not ask(self.stage.handler, error):
                self.ended = True
                return
            self.skip()
        self._found, self.next_offset = self.next_offset >= 0, -1

    def is_empty(self) -> bool:
        return self._shard is None

    def _read(self, shard: Any, start: int, compare: Compare) -> Iterator[Any]:
        self.url, stream = parse_shard_item(shard)
        with open_url(self.url) if stream is None else stream as opened:
            compare(self._shard, self.url, opened)
            left = start
            while left and (piece := opened.read(min(left, WINDOW_BYTES))):
                left -= len(piece)
            yield from self.stage.records(opened, self, start)

    def damaged(self, error: object, offset: int) -> ShardError:
        return ShardError(f"a damaged record: {error}", origin=Origin(self.url, offset=offset))

    @property
    def ticket(self) -> Ticket:
        return (self._shard, self.offset)

    def origin(self, ticket: Ticket) -> Origin | None:
        if ticket is None or ticket[0] is None:
            return None
        shard = self.source.origin(ticket[0])
        return Origin(shard.url if shard is not None else self.url, offset=ticket[1])

    def state(self) -> State:
        state = {"shard": self._shard, "at": self.next_offset, "shards": self.source.saved()}
        versions = self._versions.state()
        return {**state, "versions": versions} if versions else state

    def restore(self, state: State) -> None:
        self._shard, self.next_offset = state["shard"], as_count(state["at"] + 1) - 1
        self._versions.restore(state.get("versions", []))
        self.source.take(state["shards"])

    def fetch(self, ticket: Ticket) -> Any:
        other = RecordsRun(self.stage, self.source, self.context)
        other._shard = ticket[0]
        return next(other._read(self.source.fetch(ticket[0]), ticket[1], self._versions.check))


class cbors_to_samples(Records):
    """Reads shards that are CBOR values one after another.

    >>> from penstock import DataPipeline, SimpleShardList
    >>> pipeline = DataPipeline(SimpleShardList("test.cbors"), cbors_to_samples())
    """

    def records(self, stream: Any, run: RecordsRun, start: int) -> Iterator[Any]:
        cbor2 = optional("cbor2", "cbor", "reading .cbors")
        data, at, base = b"", 0, start
        while True:
            offset = base + at
            try:
                end = end_of_item(data, at) if at < len(data) else at + 1
            except IndexError:
                end = len(data) + 1
            except DecodingError as error:
                raise run.damaged(error, offset) from error
            if end > len(data):  # read as much again as there is: a large record needs few reads
                pending = data[at:]
                if len(pending) > MAX_RECORD_BYTES:
                    raise run.damaged(f"it is larger than {MAX_RECORD_BYTES:,} bytes", offset)
                more = stream.read(max(WINDOW_BYTES, len(pending)))
                if not more and pending:
                    raise run.damaged("the shard ends inside it", offset)
                if not more:
                    return
                data, at, base = pending + more, 0, offset
                continue
            try:
                record = cbor2.loads(data[at:end])
            except MemoryError:
                raise
            except Exception as error:
                raise run.damaged(error, offset) from error
            at = end
            run.offset, run.next_offset = offset, base + at
            yield record


class msgpacks_to_samples(Records):
    """Reads shards that are MessagePack values one after another.

    >>> from penstock import DataPipeline, SimpleShardList
    >>> pipeline = DataPipeline(SimpleShardList("test.mps"), msgpacks_to_samples())
    """

    def records(self, stream: Any, run: RecordsRun, start: int) -> Iterator[Any]:
        msgpack = optional("msgpack", "msgpack", "reading MessagePack")
        options: dict[str, Any] = {
            "max_buffer_size": MAX_RECORD_BYTES,
            "max_array_len": MAX_ITEMS,  # memory is allocated for the announced number
            "strict_map_key": False,
        }
        unpacker, base = msgpack.Unpacker(max_map_len=QUICK_ITEMS, **options), 0
        careful = False
        windows = list[bytes]()  # those that the current record may begin in
        fed = done = 0  # tell() also counts the beginning of an incomplete record
        while data := stream.read(WINDOW_BYTES):
            unpacker.feed(data)
            windows.append(data)
            fed += len(data)
            while True:
                try:
                    record = unpacker.unpack()
                except msgpack.OutOfData:
                    break
                except MemoryError:
                    raise
                except Exception as error:
                    if careful:
                        raise run.damaged(error, start + done) from error
                    # Perhaps a large map: try again with an unpacker that checks its keys.
                    unpacker = msgpack.Unpacker(
                        max_map_len=MAX_ITEMS, object_pairs_hook=_make_map, **options
                    )
                    unpacker.feed(b"".join(windows)[-(fed - done) :])
                    careful, base = True, done
                    continue
                run.offset, done = start + done, base + unpacker.tell()
                run.next_offset = start + done
                yield record
            if done > fed - len(data):
                windows = [data]
        if done < fed:
            raise run.damaged("the shard ends inside it", start + done)


def _make_map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    check_hashes([key for key, _ in pairs])
    return dict(pairs)
