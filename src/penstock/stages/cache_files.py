"""The base of all caches of samples, and how a cache on disk is filled and replayed.

A cache on disk is one file per rank and worker. It is written under a temporary name and renamed
when complete, so that a killed pass leaves nothing that looks like a cache. Every item is stored
with a checksum of its number and bytes, and an empty item without a value ends the file. Caches of
earlier versions have neither; they are read without a check.
"""

from __future__ import annotations

import logging
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from typing import Any, ClassVar, TypeVar

from penstock.codecs.safe_pickle.unpickler import pickle_dumps, unpickle_loads
from penstock.context import Context
from penstock.errors import Origin, PipelineError, StorageError, UnsafeError, WriteError
from penstock.stages.run import Run, Ticket, add_origin
from penstock.stages.stage import Stage
from penstock.storage.local.file_locks import HAS_LOCKS, flock, unlock

T = TypeVar("T")
Put = Callable[[int, bytes], None]
Get = Callable[[int], Any]

logger = logging.getLogger("penstock.stages")

_ITEM = b"\xffpstk-1\n"
"""Begins a checked item. No pickle and no text begins with this byte."""
_END = b"\xffpstk-E\n"
_HEAD = struct.Struct(">8sLQ")
"""The mark, the CRC-32 of number and bytes, and the number of bytes."""


def _checked(mark: bytes, number: int, data: bytes = b"") -> bytes:
    return _HEAD.pack(mark, zlib.crc32(data, number), len(data)) + data


def _verify(number: int, stored: Any) -> bytes | None:
    """Return the bytes of a stored item; None if they are not those that were stored."""
    if stored is None or len(stored) < _HEAD.size:
        return None
    mark, crc, size = _HEAD.unpack_from(stored)
    if mark != _ITEM or size != len(stored) - _HEAD.size:
        return None  # without reading it: what a damaged size claims may be outside the file
    data = bytes(stored[_HEAD.size :])
    return data if zlib.crc32(data, number) == crc else None


class CacheRun(Run[T]):
    """Runs a cache. A replayed item's ticket is its number; while filling, the source's."""

    source: Run[T]
    _number: int | None = None

    @property
    def ticket(self) -> Ticket:
        return self.source.ticket if self._number is None else self._number

    def is_empty(self) -> bool:
        return self._number is None and super().is_empty()

    def origin(self, ticket: Ticket) -> Origin | None:
        # A replayed sample still has its shard and key in __url__ and __key__.
        return self.source.origin(ticket) if self._number is None else None


def part_name(context: Context) -> str:
    """Return a name for this lane, or rank and worker, with their number: another split differs.

    >>> part_name(Context(rank=1, world_size=2))
    'rank1of2-worker0of1'
    """
    if context.lane is not None:
        return f"lane{context.lane}of{context.lanes}"
    rank = f"rank{context.rank}of{context.world_size}"
    return f"{rank}-worker{context.worker}of{context.num_workers}"


class SampleFileCache(Stage[T, T]):
    """A cache in one file per rank and worker. Subclasses define how a file is written and read."""

    keeps_ranks_equal = True

    remedy: ClassVar[str] = "put the cache before the stage that makes it"
    limit: int | None = None
    shuffle = False
    verbose = False
    dumps: Callable[[Any], bytes] = staticmethod(pickle_dumps)
    loads: Callable[[bytes], Any] = staticmethod(unpickle_loads)

    def path(self, context: Context) -> str | None:
        """Return the file of this rank and worker, or None to cache nothing."""
        raise NotImplementedError

    def writer(self, path: str) -> AbstractContextManager[Put]:
        """Yield a function that adds an item to a new file, complete when the context ends."""
        raise NotImplementedError

    def reader(self, path: str) -> AbstractContextManager[tuple[int, Get]]:
        """Yield the number of items in the file, and a function that returns the bytes of one.

        It returns bytes or a view of them, or None for an item that is not there.
        """
        raise NotImplementedError

    def start(self, source: Run[T] | None, context: Context) -> Run[T]:
        if source is None:
            raise PipelineError(f"{self.name} needs a source: it cannot begin a pipeline")
        return SampleFileCacheRun(self, source, context)

    def encode(self, item: Any) -> bytes:
        """Return the item as bytes; raise now, not an epoch later, if it cannot be read again."""
        try:
            return self._encode_readable(item)
        except _REFUSED as error:
            raise WriteError(
                f"{self.name}: {self._describe_refused(item)}, which cannot be kept; {self.remedy}"
            ) from error

    def _encode_readable(self, item: Any) -> bytes:
        data = self.dumps(item)
        if self.loads is unpickle_loads:
            unpickle_loads(data)
        return data

    def _describe_refused(self, item: Any) -> str:
        for field, value in item.items() if isinstance(item, dict) else ():
            try:
                self._encode_readable(value)
            except _REFUSED:
                return f"the field {field!r} is a {_kind(value)}"
        return f"the item is a {_kind(item)}"


_REFUSED = (UnsafeError, pickle.PicklingError, TypeError, AttributeError)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class SampleFileCacheRun(CacheRun[T]):
    """Runs a :class:`SampleFileCache`: fills the file, or replays it, or passes everything on."""

    stage: SampleFileCache[T]

    def __iter__(self) -> Iterator[T]:
        path = self.stage.path(self.context)
        if path is None:
            yield from self.source
            return
        if not os.path.exists(path):
            with _claim(path) as mine:
                if not os.path.exists(path):  # another process may have just completed it
                    yield from self._fill(path) if mine else islice(self.source, self.stage.limit)
                    return
        yield from self._replay(path)

    def _fill(self, path: str) -> Iterator[T]:
        stage, partial = self.stage, f"{path}.partial"
        with suppress(FileNotFoundError):
            os.unlink(partial)  # from a pass that was not completed
        last = []
        number = -1
        with stage.writer(partial) as put:
            for number, item in enumerate(self.source):
                try:
                    put(number, _checked(_ITEM, number, stage.encode(item)))
                except WriteError as error:
                    add_origin(error, stage, self.source, item)
                    raise
                if number + 1 == stage.limit:
                    last = [item]  # yielded below: a consumer of just this many asks for no more
                    break
                yield item
            put(number + 1, _checked(_END, number + 1))
        os.replace(partial, path)
        if stage.verbose:
            logger.info("%s: %s is complete", stage.name, path)
        yield from last

    def _replay(self, path: str) -> Iterator[T]:
        stage = self.stage
        with stage.reader(path) as (count, get):
            last = get(count - 1) if count else b""
            checked = count > 0 and last == _checked(_END, count - 1)
            count -= checked
            numbers: Any = range(count)
            if stage.shuffle:
                numbers = list(numbers)
                self.context.rng(stage.name, self.depth, *self.stream_id).shuffle(numbers)
            for self._number in numbers:
                data = get(self._number)
                if checked:
                    data = _verify(self._number, data)
                elif data is not None:
                    data = bytes(data)
                if data is None or data.startswith((_ITEM, _END)):
                    raise StorageError(
                        f"{stage.name}: item {self._number} is damaged; delete the file, and the "
                        "next pass makes it again",
                        origin=Origin(path),
                    )
                try:
                    item = stage.loads(data)
                except Exception as error:
                    error.add_note(f"in {stage.name}: {path}, item {self._number}")
                    raise
                yield item

    def again(self, context: Context) -> Run[T]:
        return SampleFileCacheRun(self.stage, self.source.again(context), context)


@contextmanager
def _claim(path: str) -> Iterator[bool]:
    """Yield True if only this process may now make the file; a killed one holds no claim."""
    owner, name = os.getpid(), f"{path}.lock"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        lock = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StorageError(f"cannot make a cache: {error.strerror}", origin=Origin(path)) from error
    try:
        # On a system without locks only one process may fill a cache.
        mine = not HAS_LOCKS or flock(lock, shared=False, wait=False)
        if not mine:
            logger.info("%s is being written by another process; nothing is cached here", path)
        yield mine
        if mine and os.path.exists(path):
            with suppress(FileNotFoundError):
                os.unlink(name)
    finally:
        # A forked child shares the lock: unlocking there would unlock it in the parent.
        (unlock if os.getpid() == owner else os.close)(lock)


@contextmanager
def convert_errors(what: str, path: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise a database's errors as :class:`~penstock.errors.StorageError`."""
    try:
        yield
    except kinds as error:
        raise StorageError(f"{what}: {error}", origin=Origin(path)) from error
