"""Shards that are streams of records: CBOR and MessagePack values one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.context import Context
from penstock.errors import MissingPackage, Origin, PenstockError, ShardError
from penstock.handlers import Handler, reraise_exception
from penstock.shards.byte_windows import WINDOW_BYTES
from penstock.stages.reading.tar_samples import shard_place
from penstock.stages.run import Run, State, Ticket
from penstock.stages.sources.shard_list import Shard
from penstock.stages.stage import Stage
from penstock.storage import open_url

MAX_RECORD_BYTES = 1 << 30
MAX_ITEMS = 1 << 22


class Records(Stage[Shard, Any]):
    """Reads every record of every shard."""

    def __init__(self, handler: Handler = reraise_exception) -> None:
        self.handler = handler

    def records(self, stream: Any, run: RecordsRun, start: int) -> Iterator[Any]:
        """The records of an open shard, from byte ``start`` on; keeps the run's offsets."""
        raise NotImplementedError

    def start(self, source: Run[Shard], context: Context) -> Run[Any]:
        return RecordsRun(self, source, context)


class RecordsRun(Run[Any]):
    """Reading records at work. A ticket is (the shard's ticket, the record's offset)."""

    source: Run[Shard]
    resumable = True
    offset = 0
    next_offset = -1
    url = ""

    def __init__(self, stage: Records, source: Run[Shard], context: Context) -> None:
        super().__init__(stage, source, context)
        self.place = self.place or context.place
        self._shard: Ticket = None

    def __iter__(self) -> Iterator[Any]:
        if self.next_offset >= 0 and not self.ended:
            yield from self._shard_from(self.source.fetch(self._shard), self.next_offset)
        for shard in () if self.ended else self.source:
            self._shard = self.source.ticket
            yield from self._shard_from(shard, 0)
            if self.ended:
                return

    def _shard_from(self, shard: Any, start: int) -> Iterator[Any]:
        """The records of one shard; where its reading fails, the handler is asked."""
        try:
            yield from self._read(shard, start)
        except PenstockError as error:
            if not self.stage.handler(error):
                self.ended = True
                return
            self.skip()
        self.next_offset = -1

    def _read(self, shard: Any, start: int = 0) -> Iterator[Any]:
        self.url, stream = shard_place(shard)
        with open_url(self.url) if stream is None else stream as opened:
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
        shard = self.source.origin(ticket[0])
        return Origin(shard.url if shard is not None else self.url, offset=ticket[1])

    def state(self) -> State:
        return {"shard": self._shard, "at": self.next_offset, "shards": self.source.saved()}

    def restore(self, state: State) -> None:
        self._shard, self.next_offset = state["shard"], state["at"]
        self.source.take(state["shards"])

    def fetch(self, ticket: Ticket) -> Any:
        other = RecordsRun(self.stage, self.source, self.context)
        return next(other._read(self.source.fetch(ticket[0]), ticket[1]))


class cbors_to_samples(Records):
    """Reads shards that are CBOR values one after another.

    >>> from penstock import DataPipeline, SimpleShardList
    >>> pipeline = DataPipeline(SimpleShardList("test.cbors"), cbors_to_samples())
    """

    def records(self, stream: Any, run: RecordsRun, start: int) -> Iterator[Any]:
        try:
            import cbor2
        except ImportError:
            raise MissingPackage.of("reading .cbors", "cbor2", "cbor") from None
        counted: Any = CountedReader(stream)
        decoder = cbor2.CBORDecoder(counted, read_size=1)
        while counted.more():
            run.offset = start + counted.position
            try:
                record = decoder.decode()
            except PenstockError:
                raise
            except Exception as error:
                raise run.damaged(error, run.offset) from error
            run.next_offset = start + counted.position
            yield record


class msgpacks_to_samples(Records):
    """Reads shards that are MessagePack values one after another.

    >>> from penstock import DataPipeline, SimpleShardList
    >>> pipeline = DataPipeline(SimpleShardList("test.mps"), msgpacks_to_samples())
    """

    def records(self, stream: Any, run: RecordsRun, start: int) -> Iterator[Any]:
        try:
            import msgpack
        except ImportError:
            raise MissingPackage.of("reading MessagePack", "msgpack", "msgpack") from None
        unpacker = msgpack.Unpacker(
            max_buffer_size=MAX_RECORD_BYTES,
            max_array_len=MAX_ITEMS,  # memory for so many is taken before any has come
            max_map_len=MAX_ITEMS,
            strict_map_key=False,
        )
        fed = done = 0  # tell() also counts what it has seen of a record that is not complete
        while data := stream.read(WINDOW_BYTES):
            unpacker.feed(data)
            fed += len(data)
            while True:
                try:
                    record = unpacker.unpack()
                except msgpack.OutOfData:
                    break
                except Exception as error:
                    raise run.damaged(error, start + done) from error
                run.offset, done = start + done, unpacker.tell()
                run.next_offset = start + done
                yield record
        if done < fed:
            raise run.damaged("the shard ends inside it", start + done)


class CountedReader:
    """A stream read in large pieces, that knows its position and whether there is more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._data, self._at = b"", 0
        self._base = 0

    @property
    def position(self) -> int:
        return self._base + self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def more(self) -> bool:
        """True unless the stream has ended."""
        if self._at >= len(self._data):
            self._base += len(self._data)
            self._data, self._at = self._stream.read(WINDOW_BYTES), 0
        return bool(self._data)

    def read(self, count: int = -1) -> bytes:
        """``count`` bytes, or fewer at the end of the stream."""
        stop = self._at + count
        if stop <= len(self._data):
            data = self._data[self._at : stop]
            self._at = stop
            return data
        pieces = []
        while count > 0 and self.more():
            piece = self._data[self._at : self._at + count]
            self._at += len(piece)
            count -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)
