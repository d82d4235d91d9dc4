"""What all caches of samples share, and how a cache on disk is filled and replayed.

A cache on disk is one file per rank and worker. It is written under a name of its own and renamed
when complete, so that a killed pass leaves nothing that could be taken for a cache.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from typing import Any, ClassVar, TypeVar

from penstock.codecs.safe_pickle.unpickler import pickle_dumps, unpickle_loads
from penstock.context import Context, here
from penstock.errors import Origin, PipelineError, StorageError, UnsafeError, WriteError
from penstock.stages.run import Run, Ticket, add_origin, as_run
from penstock.stages.stage import Stage
from penstock.storage.local.file_locks import HAS_LOCKS, flock, unlock

T = TypeVar("T")
Put = Callable[[int, bytes], None]
Get = Callable[[int], Any]

logger = logging.getLogger("penstock.stages")


class CacheStage(Stage[T, T]):
    """A cache of any kind. On an iterable, outside a pipeline, it still knows rank and worker."""

    def __call__(self, source: Iterable[T]) -> Any:
        return iter(self.start(as_run(source), here()))


class CacheRun(Run[T]):
    """A cache at work. A replayed item's ticket is its number; before that, the source's."""

    source: Run[T]
    _number: int | None = None

    @property
    def ticket(self) -> Ticket:
        return self.source.ticket if self._number is None else self._number

    def origin(self, ticket: Ticket) -> Origin | None:
        # A replayed sample still says its shard and key itself, in __url__ and __key__.
        return self.source.origin(ticket) if self._number is None else None


def place_name(context: Context) -> str:
    """A name for this lane, or rank and worker, and of how many: another split is other data.

    >>> place_name(Context(rank=1, world_size=2))
    'rank1of2-worker0of1'
    """
    if context.lane is not None:
        return f"lane{context.lane}of{context.lanes}"
    rank = f"rank{context.rank}of{context.world_size}"
    return f"{rank}-worker{context.worker}of{context.num_workers}"


class FileCache(CacheStage[T]):
    """A cache in one file per rank and worker. Its kinds say how a file is written and read."""

    remedy: ClassVar[str] = "put the cache before the stage that makes it"
    limit: int | None = None
    shuffle = False
    verbose = False
    dumps: Callable[[Any], bytes] = staticmethod(pickle_dumps)
    loads: Callable[[bytes], Any] = staticmethod(unpickle_loads)

    def path(self, context: Context) -> str | None:
        """The file of this rank and worker; None keeps nothing."""
        raise NotImplementedError

    def writer(self, path: str) -> AbstractContextManager[Put]:
        """A function that puts an item into a new file, which is whole when the context ends."""
        raise NotImplementedError

    def reader(self, path: str) -> AbstractContextManager[tuple[int, Get]]:
        """How many items the file holds, and a function that gives one by its number."""
        raise NotImplementedError

    def start(self, source: Run[T] | None, context: Context) -> Run[T]:
        if source is None:
            raise PipelineError(f"{self.name} needs a source: it cannot begin a pipeline")
        return FileCacheRun(self, source, context)

    def encoded(self, item: Any) -> bytes:
        """The item as bytes. What could not be read again is refused now, not an epoch later."""
        try:
            return self._checked(item)
        except _REFUSED as error:
            raise WriteError(
                f"{self.name}: {self._refused(item)}, which cannot be kept; {self.remedy}"
            ) from error

    def _checked(self, item: Any) -> bytes:
        data = self.dumps(item)
        if self.loads is unpickle_loads:
            unpickle_loads(data)
        return data

    def _refused(self, item: Any) -> str:
        for field, value in item.items() if isinstance(item, dict) else ():
            try:
                self._checked(value)
            except _REFUSED:
                return f"the field {field!r} is a {_kind(value)}"
        return f"the item is a {_kind(item)}"


_REFUSED = (UnsafeError, pickle.PicklingError, TypeError, AttributeError)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class FileCacheRun(CacheRun[T]):
    """A :class:`FileCache` at work: fills the file, or replays it, or lets everything pass."""

    stage: FileCache[T]

    def __iter__(self) -> Iterator[T]:
        path = self.stage.path(self.context)
        if path is None:
            yield from self.source
            return
        if not os.path.exists(path):
            with _claimed(path) as mine:
                if not os.path.exists(path):  # else another process has just completed it
                    yield from self._fill(path) if mine else islice(self.source, self.stage.limit)
                    return
        yield from self._replay(path)

    def _fill(self, path: str) -> Iterator[T]:
        stage, partial = self.stage, f"{path}.partial"
        with suppress(FileNotFoundError):
            os.unlink(partial)  # of a pass that was not completed
        last = []
        with stage.writer(partial) as put:
            for number, item in enumerate(self.source):
                try:
                    put(number, stage.encoded(item))
                except WriteError as error:
                    add_origin(error, stage, self.source, item)
                    raise
                if number + 1 == stage.limit:
                    last = [item]  # given below: who takes just so many does not ask for more
                    break
                yield item
        os.replace(partial, path)
        if stage.verbose:
            logger.info("%s: %s is complete", stage.name, path)
        yield from last

    def _replay(self, path: str) -> Iterator[T]:
        stage = self.stage
        with stage.reader(path) as (count, get):
            numbers: Any = range(count)
            if stage.shuffle:
                numbers = list(numbers)
                self.context.rng(stage.name, self.depth, *self.place).shuffle(numbers)
            for self._number in numbers:
                data = get(self._number)
                if not isinstance(data, bytes):
                    raise StorageError(f"{stage.name}: damaged; delete it", origin=Origin(path))
                try:
                    item = stage.loads(data)
                except Exception as error:
                    error.add_note(f"in {stage.name}: {path}, item {self._number}")
                    raise
                yield item

    def again(self, context: Context) -> Run[T]:
        return FileCacheRun(self.stage, self.source.again(context), context)


@contextmanager
def _claimed(path: str) -> Iterator[bool]:
    """Whether this process, alone, may now make the file; a killed one holds no claim."""
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
            logger.info("%s is being made by another process; nothing is kept here", path)
        yield mine
        if mine and os.path.exists(path):
            with suppress(FileNotFoundError):
                os.unlink(name)
    finally:
        # A forked child shares the lock: unlocking there would take it from the parent.
        (unlock if os.getpid() == owner else os.close)(lock)


@contextmanager
def told(what: str, path: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns a database's errors into one of ours."""
    try:
        yield
    except kinds as error:
        raise StorageError(f"{what}: {error}", origin=Origin(path)) from error
