"""Stages that cache samples after the first pass: in memory, in LMDB files, in SQLite files.

The first pass yields the items of the source and stores them. The cache is complete only at the
end of the source; from then on the source is not read any more, and items come in the order of
that pass, with their number as ticket. The stages before a cache are not compared: if they change,
delete the cache.
"""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import sqlite3
import struct
import threading
import urllib.parse
import weakref
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from types import ModuleType
from typing import Any, TypeVar

from penstock.codecs.safe_pickle.unpickler import unpickle_any
from penstock.context import Context, current_context
from penstock.errors import Origin, PipelineError, StorageError, optional
from penstock.stages.cache_files import (
    CacheRun,
    Get,
    Put,
    SampleFileCache,
    convert_errors,
    part_name,
)
from penstock.stages.run import Run, start
from penstock.stages.stage import Iterated, Stage

T = TypeVar("T")


class Cached(Stage[T, T]):
    """Keeps all items in memory after one complete pass; later passes are read from there.

    Dicts and lists are copied when stored and when replayed, so that later stages may add, change
    and remove fields. The values in them are not copied: an array that is changed in place stays
    changed. The memory belongs to one process: workers that end with the epoch lose it.

    >>> squares, numbers = Cached(), iter([1, 4, 9])
    >>> list(squares(numbers)), list(squares(numbers))
    ([1, 4, 9], [1, 4, 9])
    """

    keeps_ranks_equal = True

    def __init__(self) -> None:
        self.kept: dict[str, list[T]] = {}

    @property
    def cached(self) -> list[T] | None:
        """The items of this process after a complete pass, else None. Assign None to drop them."""
        return self.kept.get(part_name(current_context()))

    @cached.setter
    def cached(self, items: list[T] | None) -> None:
        self.kept.clear()
        if items is not None:
            self.kept[part_name(current_context())] = items

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": {}}

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return CachedRun(self, source, context)


class CachedRun(CacheRun[T]):
    """Runs :class:`Cached`."""

    def __iter__(self) -> Iterator[T]:
        kept: dict[str, list[T]] = self.stage.kept
        part = part_name(self.context)
        if part in kept:
            for self._number, item in enumerate(kept[part]):
                yield _copy(item)
            return
        items = []
        for item in self.source:
            items.append(_copy(item))
            yield item
        kept[part] = items


def _copy(item: T) -> T:
    return copy.copy(item) if isinstance(item, (dict, list)) else item


class LMDBCached(SampleFileCache[T]):
    """Keeps all samples in LMDB files after one complete pass; later passes are read from there.

    ``fname`` is a folder with a separate file for each rank and worker, because each sees another
    part of the data. With another number of workers the cache is filled again. A file may grow to
    ``map_size`` bytes and is written ``chunksize`` samples at a time. Plain values, arrays and
    tensors can be kept; for anything else pass a ``pickler`` with ``dumps`` and ``loads``, such as
    the module ``pickle``: then whoever wrote the file can run any code here. Needs the package
    ``lmdb``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = list(LMDBCached(folder)([{"__key__": "b"}, {"__key__": "a"}]))
    ...     list(LMDBCached(folder)([]))
    [{'__key__': 'b'}, {'__key__': 'a'}]
    """

    remedy = "put the cache before the stage that makes it, or pass a pickler"

    def __init__(
        self,
        fname: str | os.PathLike[str],
        map_size: float = 1e12,
        pickler: Any = None,
        chunksize: int = 500,
    ) -> None:
        if chunksize < 1:
            raise PipelineError(f"LMDBCached: chunksize must be at least 1, not {chunksize}")
        self.fname, self.map_size, self.chunksize = os.fspath(fname), int(map_size), chunksize
        if pickler is not None:
            # unpickle_any is pickle.loads, except that it respects WDS_SECURE.
            trusting = pickler.loads is pickle.loads
            self.dumps, self.loads = pickler.dumps, unpickle_any if trusting else pickler.loads

    def __reduce__(self) -> Any:
        kwargs = {name: _Import.of(value) for name, value in self.kwargs.items()}
        return (_construct, (type(self), [_Import.of(value) for value in self.args], kwargs))

    def path(self, context: Context) -> str:
        return os.path.join(self.fname, f"{part_name(context)}.lmdb")

    @contextmanager
    def writer(self, path: str) -> Iterator[Put]:
        lmdb = _lmdb()
        chunk: list[tuple[bytes, bytes]] = []

        def put(number: int, data: bytes) -> None:
            chunk.append((_KEY.pack(number), data))
            if len(chunk) >= self.chunksize:
                flush()

        def flush() -> None:
            small = f"LMDBCached: map_size={self.map_size} is too small"
            with (
                convert_errors("LMDBCached", path, lmdb.Error),
                convert_errors(small, path, lmdb.MapFullError),
                environment.begin(write=True) as change,
            ):
                change.cursor().putmulti(chunk, append=True)
            chunk.clear()

        with convert_errors("LMDBCached", path, lmdb.Error):
            environment = lmdb.open(
                path, subdir=False, map_size=self.map_size, lock=False, sync=False
            )
        with closing(environment):
            yield put
            flush()
            with convert_errors("LMDBCached", path, lmdb.Error):
                environment.sync(True)

    @contextmanager
    def reader(self, path: str) -> Iterator[tuple[int, Get]]:
        lmdb = _lmdb()
        damaged = "LMDBCached: damaged; delete it"
        with open(path, "rb") as file:
            with convert_errors(damaged, path, lmdb.Error):
                environment = _open_complete(path)
            page_bytes, count = environment.stat()["psize"], environment.stat()["entries"]
            least = (environment.info()["last_pgno"] + 1) * page_bytes
            descriptor = file.fileno()
            if count == 0 and os.fstat(descriptor).st_size > 2 * page_bytes:
                raise StorageError(f"{damaged}: it has data, but no items", origin=Origin(path))

            def get(number: int) -> Any:
                # LMDB maps the file: reading a page that was cut off would raise SIGBUS.
                if os.fstat(descriptor).st_size < least:
                    raise StorageError(f"{damaged}: it was cut short", origin=Origin(path))
                with convert_errors(damaged, path, lmdb.Error):
                    return view.get(key(number))

            key = _KEY.pack
            with environment.begin(buffers=True) as view:
                yield count, get


_KEY = struct.Struct(">Q")  # big-endian, so that LMDB's order of keys is that of the numbers
_open: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _open_complete(path: str) -> Any:
    """Open a complete file for reading. LMDB opens a file once per process, so it is shared."""
    with _opening:
        status = os.stat(path)
        environment = _open.get((status.st_dev, status.st_ino))
        if environment is None:
            # Nobody writes to a complete file: no locks, and a forked child can read it, too.
            environment = _lmdb().open(path, subdir=False, readonly=True, lock=False)
            _open[status.st_dev, status.st_ino] = environment
        return environment


def _lmdb() -> Any:
    return optional("lmdb", "lmdb", "LMDBCached")


class _Import:
    """Replaces a module in a pickle: modules themselves cannot be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def of(cls, value: Any) -> Any:
        return cls(value.__name__) if isinstance(value, ModuleType) else value

    def __reduce__(self) -> Any:
        return (importlib.import_module, (self.name,))


def _construct(cls: type[T], args: Iterable[Any], kwargs: dict[str, Any]) -> T:
    return cls(*args, **kwargs)


class DBCache(Iterated[T, T], SampleFileCache[T]):
    """Keeps the first ``size`` samples in an SQLite file; later passes are read from there.

    A pass ends after ``size`` samples, or at the end of a shorter source: either completes the
    cache. With ``shuffle=True`` the samples come in another random order every epoch. The file is
    ``dbname``; several ranks and workers have separate files, whose names begin with it. With
    ``dbname=None`` everything passes and nothing is kept. ``verbose`` logs when the cache is
    complete. Plain values, arrays and tensors can be kept. Put it into a pipeline, call it with a
    data set, or pass one as ``source``:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cached = DBCache(f"{folder}/samples.db", 2)([{"cls": 1}, {"cls": 2}, {"cls": 3}])
    ...     list(cached), list(cached)
    ([{'cls': 1}, {'cls': 2}], [{'cls': 1}, {'cls': 2}])
    """

    def __init__(
        self,
        dbname: str | os.PathLike[str] | None,
        size: int,
        source: Iterable[T] | None = None,
        shuffle: bool = False,
        verbose: bool = True,
    ) -> None:
        if size < 1:
            raise PipelineError(f"DBCache: size must be at least 1, not {size}")
        self.dbname = None if dbname is None else os.fspath(dbname)
        self.limit, self.source, self.shuffle, self.verbose = int(size), source, shuffle, verbose

    def __call__(self, source: Iterable[T]) -> Any:
        return DBCache(self.dbname, self.limit or 0, source, self.shuffle, self.verbose)

    source_ = __call__

    def start(self, source: Run[T] | None, context: Context) -> Run[T]:
        if self.source is not None:
            if source is not None:
                raise PipelineError("DBCache has a source=, so it must begin the pipeline")
            source = start(self.source, None, context)
        return super().start(source, context)

    def path(self, context: Context) -> str | None:
        alone = context.world_size == context.num_workers == 1 and context.lane is None
        if self.dbname is None or alone:
            return self.dbname
        return f"{self.dbname}.{part_name(context)}"

    @contextmanager
    def writer(self, path: str) -> Iterator[Put]:
        def put(number: int, data: bytes) -> None:
            with convert_errors("DBCache", path, sqlite3.Error, OverflowError):
                database.execute("insert into samples values (?, ?)", (number, data))

        with convert_errors("DBCache", path, sqlite3.Error):
            database = sqlite3.connect(path, check_same_thread=False)
        with closing(database):
            with convert_errors("DBCache", path, sqlite3.Error):
                # No journal: an incomplete file is deleted as a whole.
                database.execute("pragma journal_mode = off")
                database.execute(f"CREATE {_TABLE}")
                database.execute("pragma user_version = 1")  # the file has an end
            yield put
            with convert_errors("DBCache", path, sqlite3.Error):
                database.commit()

    @contextmanager
    def reader(self, path: str) -> Iterator[tuple[int, Get]]:
        url = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro&immutable=1"
        steps = 0

        def stop() -> bool:
            nonlocal steps
            steps += 1
            return steps > _MOST_STEPS

        def ask(query: str, *values: Any) -> Any:
            nonlocal steps
            steps = 0
            return database.execute(query, values).fetchone()

        def get(number: int) -> Any:
            with convert_errors("DBCache: damaged; delete it", path, *_DAMAGE):
                row = ask("select data from samples where number = ?", number)
            return row[0] if row is not None and isinstance(row[0], bytes) else None

        with convert_errors("DBCache", path, sqlite3.Error):
            database = sqlite3.connect(url, uri=True, check_same_thread=False)
        with closing(database):
            with convert_errors("DBCache: not a cache made by this library", path, *_DAMAGE):
                # A query in our own files takes a few steps. In any other it might never end.
                database.set_progress_handler(stop, 1000)
                found = ask("select type, sql from sqlite_master where name = 'samples'")
                if found != ("table", f"CREATE {_TABLE}"):
                    raise sqlite3.DatabaseError("it has no table of samples")
                # Not count(*), which would read every page, and in a damaged file may loop.
                last = ask("select max(number) from samples")[0]
                has_end = ask("pragma user_version")[0] == 1
            count = 0 if last is None else last + 1
            if not has_end <= count <= os.path.getsize(path):
                raise StorageError(
                    f"DBCache: damaged, it claims to hold {count} samples; delete it",
                    origin=Origin(path),
                )
            yield count, get


_TABLE = "TABLE samples (number integer primary key, data blob)"
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""A damaged file may have names and messages that are not text."""
_MOST_STEPS = 100
"""The most instructions of SQLite's virtual machine per query, in thousands."""
