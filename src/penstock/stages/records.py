"""Shards that are streams of records: CBOR and MessagePack values one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.context import Context
from penstock.errors import MissingPackage, Origin, PenstockError, ShardError
from penstock.handlers import Handler, reraise_exception
from penstock.shards.window import WINDOW_BYTES
from penstock.stages.read import shard_place
from penstock.stages.shardlist import Shard
from penstock.stages.stage import Run, Stage, Ticket
from penstock.storage import open_url

MAX_RECORD_BYTES = 1 << 30


class Records(Stage[Shard, Any]):
    """Reads every record of every shard."""

    def __init__(self, handler: Handler = reraise_exception) -> None:
        self.handler = handler

    def records(self, stream: Any, run: RecordsRun) -> Iterator[Any]:
        """The records of one open shard; keeps ``run.offset`` at the record just given."""
        raise NotImplementedError

    def start(self, source: Run[Shard], context: Context) -> Run[Any]:
        return RecordsRun(self, source, context)


class RecordsRun(Run[Any]):
    """Reading records at work. A ticket is (the shard's ticket, the record's offset)."""

    source: Run[Shard]
    offset = 0
    url = ""

    def __iter__(self) -> Iterator[Any]:
        for shard in self.source:
            self.url, stream = shard_place(shard)
            try:
                opened = open_url(self.url) if stream is None else stream
                with opened:
                    yield from self.stage.records(opened, self)
            except PenstockError as error:
                if not self.stage.handler(error):
                    return
                self.skip()

    def damaged(self, error: object, offset: int) -> ShardError:
        return ShardError(f"a damaged record: {error}", origin=Origin(self.url, offset=offset))

    @property
    def ticket(self) -> Ticket:
        return (self.source.ticket, self.offset)

    def origin(self, ticket: Ticket) -> Origin | None:
        return Origin(self.url, offset=ticket[1]) if ticket is not None else None


class cbors_to_samples(Records):
    """Reads shards that are CBOR values one after another.

    >>> from penstock import DataPipeline, SimpleShardList
    >>> pipeline = DataPipeline(SimpleShardList("test.cbors"), cbors_to_samples())
    """

    def records(self, stream: Any, run: RecordsRun) -> Iterator[Any]:
        try:
            import cbor2
        except ImportError:
            raise MissingPackage.of("reading .cbors", "cbor2", "cbor") from None
        counted: Any = CountedReader(stream)
        decoder = cbor2.CBORDecoder(counted, read_size=1)
        while counted.more():
            run.offset = counted.position
            try:
                record = decoder.decode()
            except PenstockError:
                raise
            except Exception as error:
                raise run.damaged(error, run.offset) from error
            yield record


class msgpacks_to_samples(Records):
    """Reads shards that are MessagePack values one after another.

    >>> from penstock import DataPipeline, SimpleShardList
    >>> pipeline = DataPipeline(SimpleShardList("test.mps"), msgpacks_to_samples())
    """

    def records(self, stream: Any, run: RecordsRun) -> Iterator[Any]:
        try:
            import msgpack
        except ImportError:
            raise MissingPackage.of("reading MessagePack", "msgpack", "msgpack") from None
        unpacker = msgpack.Unpacker(max_buffer_size=MAX_RECORD_BYTES, strict_map_key=False)
        fed = 0
        while data := stream.read(WINDOW_BYTES):
            unpacker.feed(data)
            fed += len(data)
            while True:
                run.offset = unpacker.tell()
                try:
                    record = unpacker.unpack()
                except msgpack.OutOfData:
                    break
                except Exception as error:
                    raise run.damaged(error, run.offset) from error
                yield record
        if unpacker.tell() < fed:
            raise run.damaged("the shard ends inside it", run.offset)


class CountedReader:
    """A stream read in large pieces, that knows its position and whether there is more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._data, self._at = b"", 0
        self._base = 0

    @property
    def position(self) -> int:
        return self._base + self._at

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
