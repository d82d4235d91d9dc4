"""Keeping samples after the first pass: in memory, in LMDB files, in SQLite files.

The first pass gives what the source gives and keeps it aside. Only when the source has come to its
end is the cache complete; from then on the source is not asked any more, and items come in
the order of that pass, with their number as ticket. A cache knows nothing of what stands before it:
when that changes, delete the cache.
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
from penstock.context import Context, here
from penstock.errors import MissingPackage, PipelineError
from penstock.stages.cache_files import CacheRun, CacheStage, FileCache, Get, Put, place_name, told
from penstock.stages.run import Run, start

T = TypeVar("T")


class Cached(CacheStage[T]):
    """Keeps all items in memory after one complete pass; later passes come from there.

    Dicts and lists are copied when kept and when given again, so that later stages may add, change
    and remove fields. The values in them are not copied: change an array in place, and it stays
    changed. The memory belongs to one process: workers that end with the epoch start anew.

    >>> squares, numbers = Cached(), iter([1, 4, 9])
    >>> list(squares(numbers)), list(squares(numbers))
    ([1, 4, 9], [1, 4, 9])
    """

    def __init__(self) -> None:
        self.kept: dict[str, list[T]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": {}}

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return CachedRun(self, source, context)


class CachedRun(CacheRun[T]):
    """:class:`Cached` at work."""

    def __iter__(self) -> Iterator[T]:
        kept: dict[str, list[T]] = self.stage.kept
        place = place_name(self.context)
        if place in kept:
            for self._number, item in enumerate(kept[place]):
                yield _fresh(item)
            return
        items = []
        for item in self.source:
            items.append(_fresh(item))
            yield item
        kept[place] = items


def _fresh(item: T) -> T:
    return copy.copy(item) if isinstance(item, (dict, list)) else item


class LMDBCached(FileCache[T]):
    """Keeps all samples in LMDB files after one complete pass; later passes come from there.

    ``fname`` is a folder; each rank and worker has a file of its own in it, since each sees its own
    part of the data. With another number of workers the cache is made anew. A file may grow to
    ``map_size`` bytes and is written ``chunksize`` samples at a time. Plain values, arrays and
    tensors can be kept; for anything else give a ``pickler`` with ``dumps`` and ``loads``, such as
    the module ``pickle``: then whoever wrote the file can run any code here. Needs the package
    ``lmdb``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = list(LMDBCached(folder)([{"__key__": "b"}, {"__key__": "a"}]))
    ...     list(LMDBCached(folder)([]))
    [{'__key__': 'b'}, {'__key__': 'a'}]
    """

    remedy = "put the cache before the stage that makes it, or give a pickler"

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
            # unpickle_any is pickle.loads, except that it minds WDS_SECURE.
            trusting = pickler.loads is pickle.loads
            self.dumps, self.loads = pickler.dumps, unpickle_any if trusting else pickler.loads

    def __reduce__(self) -> Any:
        kwargs = {name: _Import.of(value) for name, value in self.kwargs.items()}
        return (_made, (type(self), [_Import.of(value) for value in self.args], kwargs))

    def path(self, context: Context) -> str:
        return os.path.join(self.fname, f"{place_name(context)}.lmdb")

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
                told("LMDBCached", path, lmdb.Error),
                told(small, path, lmdb.MapFullError),
                environment.begin(write=True) as change,
            ):
                change.cursor().putmulti(chunk, append=True)
            chunk.clear()

        with told("LMDBCached", path, lmdb.Error):
            environment = lmdb.open(
                path, subdir=False, map_size=self.map_size, lock=False, sync=False
            )
        with closing(environment):
            yield put
            flush()
            with told("LMDBCached", path, lmdb.Error):
                environment.sync(True)

    @contextmanager
    def reader(self, path: str) -> Iterator[tuple[int, Get]]:
        lmdb = _lmdb()
        with told("LMDBCached", path, lmdb.Error):
            environment = _opened(path)
        with environment.begin() as view:

            def get(number: int) -> Any:
                with told("LMDBCached", path, lmdb.Error):
                    return view.get(_KEY.pack(number))

            yield environment.stat()["entries"], get


_KEY = struct.Struct(">Q")  # big-endian, so that LMDB's order of keys is that of the numbers
_open: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _opened(path: str) -> Any:
    """The complete file, for reading. LMDB lets a process open a file only once: all share it."""
    with _opening:
        status = os.stat(path)
        environment = _open.get((status.st_dev, status.st_ino))
        if environment is None:
            # Nobody writes to a complete file: no locks, and it can be read on after a fork.
            environment = _lmdb().open(path, subdir=False, readonly=True, lock=False)
            _open[status.st_dev, status.st_ino] = environment
        return environment


def _lmdb() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise MissingPackage.of("LMDBCached", "lmdb", "lmdb") from error
    return lmdb


class _Import:
    """Stands for a module in a pickle: modules themselves cannot be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def of(cls, value: Any) -> Any:
        return cls(value.__name__) if isinstance(value, ModuleType) else value

    def __reduce__(self) -> Any:
        return (importlib.import_module, (self.name,))


def _made(cls: type[T], args: Iterable[Any], kwargs: dict[str, Any]) -> T:
    return cls(*args, **kwargs)


class DBCache(FileCache[T]):
    """Keeps the first ``size`` samples in an SQLite file; later passes come from there.

    A pass ends after ``size`` samples, or with a shorter source: either completes the cache.
    With ``shuffle=True`` the kept samples come in another random order every epoch. The file is
    ``dbname``; of several ranks and workers each has one of its own, named after it. With
    ``dbname=None`` everything passes and nothing is kept. ``verbose`` logs when the cache is
    complete. Plain values, arrays and tensors can be kept. It stands in a pipeline, is called
    with a data set, or is given one as ``source``:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cached = DBCache(f"{folder}/samples.db", 2)([{"cls": 1}, {"cls": 2}, {"cls": 3}])
    ...     list(cached), list(cached)
    ([{'cls': 1}, {'cls': 2}], [{'cls': 1}, {'cls': 2}])
    """

    _epoch = 0  # of passes over the cache alone; a pipeline counts its own

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

    def __iter__(self) -> Iterator[T]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return iter(self.start(None, here(epoch=epoch)))

    def start(self, source: Run[T] | None, context: Context) -> Run[T]:
        if self.source is not None:
            if source is not None:
                raise PipelineError("DBCache has a source= of its own: it must begin the pipeline")
            source = start(self.source, None, context)
        return super().start(source, context)

    def path(self, context: Context) -> str | None:
        alone = context.world_size == context.num_workers == 1 and context.lane is None
        if self.dbname is None or alone:
            return self.dbname
        return f"{self.dbname}.{place_name(context)}"

    @contextmanager
    def writer(self, path: str) -> Iterator[Put]:
        def put(number: int, data: bytes) -> None:
            with told("DBCache", path, sqlite3.Error, OverflowError):
                database.execute("insert into samples values (?, ?)", (number, data))

        with told("DBCache", path, sqlite3.Error):
            database = sqlite3.connect(path, check_same_thread=False)
        with closing(database):
            with told("DBCache", path, sqlite3.Error):
                # No journal: a file that is not completed is thrown away as a whole.
                database.execute("pragma journal_mode = off")
                database.execute("create table samples (number integer primary key, data blob)")
            yield put
            with told("DBCache", path, sqlite3.Error):
                database.commit()

    @contextmanager
    def reader(self, path: str) -> Iterator[tuple[int, Get]]:
        place = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro&immutable=1"
        query = "select data from samples where number = ?"

        def get(number: int) -> Any:
            with told("DBCache", path, sqlite3.Error):
                row = database.execute(query, (number,)).fetchone()
            return row[0] if row is not None else None

        with told("DBCache", path, sqlite3.Error):
            database = sqlite3.connect(place, uri=True, check_same_thread=False)
        with closing(database):
            with told("DBCache: not a cache made by this library", path, sqlite3.Error):
                (count,) = database.execute("select count(*) from samples").fetchone()
            yield count, get
