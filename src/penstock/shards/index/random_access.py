"""Read single samples by their row in the index."""

from __future__ import annotations

import bisect
import contextlib
import errno
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import numpy as np

from penstock.errors import Origin, SampleError, ShardError, StorageError
from penstock.redact import canonical_url
from penstock.shards.byte_windows import LARGE_BYTES, cut_short, keep_heap_warm, overwritten
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import IndexedShard
from penstock.shards.index.shard_stamps import ShardStamp, sum_ends
from penstock.shards.lazy_bytes import LATER_BYTES, MOST_FILES, Later, most_files
from penstock.shards.sample_reader import Sample
from penstock.storage import open_url
from penstock.storage.cache.shard_cache import CachedShard, ShardCache, path_of
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.local.files import LocalFile
from penstock.storage.urls import is_remote, local_path, rewrite_url

MAX_OPEN = 128
"""Shards kept open: well below the 1,024 files that a process may usually have."""
THREADS = 8
"""Remote shards that are read at the same time."""
GAP_BYTES, BULK_BYTES = 8 << 10, 128 << 10
"""Samples of a local shard are read together if at most this many bytes are between them, up to
this many bytes at a time."""
CHECK_EVERY = 64
"""After this many samples of an open shard, or as many as it has, check whether it was written to.
A check at every sample would cost a third of a small sample's time."""

_process = os.getpid()


def _forked() -> None:
    global _process
    _process = os.getpid()


if hasattr(os, "register_at_fork"):  # asking for the number at each read would cost a system call
    os.register_at_fork(after_in_child=_forked)


class FilePool:
    """The shards that several readers keep open together, at most ``max_open`` of them.

    >>> pool = FilePool(64)
    >>> pool.claim(10), pool.claim(10)
    (0, 10)
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self._claimed = 0
        self.checked: dict[int, _CheckedFile] = {}
        """Local shards that were opened before, by number: they are opened again in less time."""
        self._process, self._files = _process, dict[int, _OpenShard]()

    def claim(self, count: int) -> int:
        """Return the first of ``count`` numbers for the shards of one reader."""
        first, self._claimed = self._claimed, self._claimed + count
        return first

    def files(self) -> dict[int, _OpenShard]:
        """Return the open shards by number; the one used last is last."""
        if self._process != _process:  # after a fork, the parent's are closed in this process only
            self._process, self._files = _process, {}
        return self._files

    def __getstate__(self) -> dict[str, Any]:
        return {"max_open": self.max_open, "_claimed": self._claimed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.checked = {}
        self._process, self._files = _process, {}


class SampleReader:
    """Reads any sample of an index; the result is the same as reading the shard from its start.

    Shards stay open, the ``max_open`` used last, or those of a ``pool`` that several readers share;
    fewer if the process may open few files. A shard that has changed since the index was made is
    a :class:`~penstock.errors.StaleIndexError` when it is opened. One that is written to while it
    is open is a :class:`~penstock.errors.ShardError` at one of the next samples, and so is a
    compressed one, which has no byte offsets. Threads may share a reader, and it may be copied by a
    fork or a pickle.

    >>> import os, tempfile, penstock
    >>> from penstock.shards.index import open_index
    >>> name = os.path.join(tempfile.mkdtemp(), "x.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     size = sink.write({"__key__": "a", "txt": "hello"})
    >>> sample = SampleReader(open_index(name, True)).read(0)
    >>> sample["__key__"], sample["txt"]
    ('a', b'hello')
    """

    def __init__(
        self,
        index: Index,
        *,
        max_open: int = MAX_OPEN,
        local_paths: bool = False,
        cache: ShardCache | None = None,
        patience: RetryPolicy | None = None,
        pool: FilePool | None = None,
    ) -> None:
        self.index, self.max_open, self.local_paths = index, max_open, local_paths
        self.cache, self.patience = cache, patience
        self.pool = FilePool(max_open) if pool is None else pool
        self._first = self.pool.claim(len(index.shards))
        self._begin()

    def _begin(self) -> None:
        self._process = _process
        self._most = max(1, most_files(self.pool.max_open))
        _readers.add(self)
        self._files = self.pool.files()
        self._plan: Any = None
        keep_heap_warm()

    def prepare(self) -> Any:
        """Load keys and fields now: before a fork, so that all workers share them."""
        index, fields = self.index, self.index.fields
        self._plan = (  # one tuple: looking up attributes takes a tenth of a small sample's time
            *(self._process, self._first, self._files),
            *(len(index), index.shard.item, index.keys),
            *(fields.codes.item, fields.names, fields.starts.item),
            *(index.offset.item, fields.offsets.item, fields.sizes.item),
        )
        return self._plan

    def read(self, row: int, later: bool = False, into: Sample | None = None) -> Sample:
        """Read the sample of a row: ``__key__``, ``__url__`` and the bytes of its fields.

        With ``later``, large fields of local shards are left unread, as ``Later`` objects. With
        ``into``, only the fields are added, to that sample.
        """
        (process, first, files, count, shard_of, keys, code_of, names_of, start_of, offset_of,
         within_of, size_of) = self._plan or self.prepare()  # fmt: skip
        if not 0 <= row < count:
            raise SampleError(f"there is no sample {row}: the index has {count}")
        number: int = shard_of(row) + first
        file = files.pop(number, None)
        if file is None or (file.arriving and file.moved) or process != _process:
            file = self._open(number)
            files = self._files
        file.until_check -= 1
        if file.until_check <= 0:
            file.until_check = file.check_every
            file.check_unchanged()  # if not, the next read opens it, and finds the index stale
        files[number] = file
        if into is None:
            sample: Sample = {"__key__": keys.at(row), "__url__": file.url}
            if file.path is not None:
                sample["__local_path__"] = file.path
        else:
            sample = into
        names = names_of[code_of(row)]
        begin: int = offset_of(row)
        field: int = start_of(row)
        last = field + len(names) - 1
        span: int = within_of(last) + size_of(last)
        if span < LARGE_BYTES:
            data = file.pread(span, begin)
            if len(data) != span:
                data = file.rest(data, begin, span)
            for name in names:
                start = within_of(field)
                sample[name] = data[start : start + size_of(field)]
                field += 1
            return sample
        for name in names:
            size, start = size_of(field), begin + within_of(field)
            field += 1
            if later and size >= LATER_BYTES and file.deferrable:
                sample[name] = Later(file, start, size)
                continue
            data = file.pread(size, start)
            sample[name] = data if len(data) == size else file.rest(data, start, size)
        return sample

    @functools.cached_property
    def remote(self) -> bool:
        """Whether a read may cost a round trip, so that :meth:`read_many` is worthwhile."""
        return any(is_remote(shard.url) for shard in self.index.shards)

    def read_many(self, rows: Sequence[int]) -> list[Sample]:
        """Read the samples of several rows, in that order.

        Each shard is opened once, and neighbouring samples are read together. Of remote shards
        all samples are requested at the same time.
        """
        if self._plan is None:
            self.prepare()
        if not self.remote and rows and min(rows) >= 0 and max(rows) < len(self.index):
            samples = self._read_local(rows)
            return [self.read(row) if s is None else s for row, s in zip(rows, samples)]
        wanted: dict[int, list[int]] = {}
        for row in rows:
            if 0 <= row < len(self.index):
                wanted.setdefault(self.index.shard.item(row), []).append(row)
        known: dict[int, tuple[bytes, str | None]] = {}
        remote = {n: own for n, own in wanted.items() if is_remote(self.index.shards[n].url)}
        if len(remote) == 1:
            ((number, own),) = remote.items()
            known = self._spans(number, own)
        elif remote:
            with ThreadPoolExecutor(min(len(remote), THREADS), "penstock-index") as pool:
                for part in pool.map(self._spans, remote, remote.values()):
                    known.update(part)
        return [self._cut(row, *known[row]) if row in known else self.read(row) for row in rows]

    def _read_local(self, rows: Sequence[int]) -> list[Sample | None]:
        """Read the samples of local shards, shard by shard; None for large ones."""
        index, fields = self.index, self.index.fields
        given = np.array(rows)
        order = np.argsort(given)
        sorted_rows = given[order]
        shards = index.shard[sorted_rows].tolist()
        offsets = index.offset[sorted_rows]
        begins, ends = offsets.tolist(), (offsets + index.size[sorted_rows]).tolist()
        firsts, codes = fields.starts[sorted_rows].tolist(), fields.codes[sorted_rows].tolist()
        keys = index.keys.take(sorted_rows)
        names_of, place_of, size_of = fields.names, fields.offsets.item, fields.sizes.item
        samples: list[Sample | None] = [None] * len(rows)
        shard, data, first, end = -1, b"", 0, -1  # ``data`` is from byte ``first`` to ``end``
        for at, place in enumerate(order.tolist()):
            begin = begins[at]
            if shards[at] != shard:
                shard, end = shards[at], -1
                last = bisect.bisect_right(shards, shard, at)
                file = self._file(shard + self._first, last - at)
                url, path = file.url, file.path
            if ends[at] - begin >= LARGE_BYTES:
                continue
            if ends[at] > end:
                first, end = begin, _bulk_end(begins, ends, at, last)
                data = file.pread(end - first, first)
                if len(data) != end - first:
                    data = file.rest(data, first, end - first)
            sample: Sample = {"__key__": keys[at], "__url__": url}
            if path is not None:
                sample["__local_path__"] = path
            begin -= first
            field = firsts[at]
            for name in names_of[codes[at]]:
                start = begin + place_of(field)
                sample[name] = data[start : start + size_of(field)]
                field += 1
            samples[place] = sample
        return samples

    def _file(self, number: int, samples: int) -> _OpenShard:
        """Return an open shard, to read this many samples; the one used last is kept longest."""
        file = self._files.pop(number, None)
        if file is None or (file.arriving and file.moved) or self._process != _process:
            file = self._open(number)
        file.until_check -= samples
        if file.until_check <= 0:
            file.until_check = file.check_every
            file.check_unchanged()
        self._files[number] = file
        return file

    def _spans(self, number: int, rows: list[int]) -> dict[int, tuple[bytes, str | None]]:
        """Read the bytes of samples of one remote shard, each from its first header to its end.

        With each comes the file in which the shard is kept, if samples are to name it.
        """
        file = self._file(number + self._first, len(rows))
        index = self.index
        ranges = [(index.offset.item(row), index.size.item(row)) for row in rows]
        return {row: (data, file.path) for row, data in zip(rows, file.read_ranges(ranges))}

    def _cut(self, row: int, data: bytes, path: str | None) -> Sample:
        index = self.index
        url, begin = canonical_url(index.shards[index.shard.item(row)].url), index.offset.item(row)
        sample: Sample = {"__key__": index.keys[row], "__url__": url}
        if path is not None:
            sample["__local_path__"] = path
        for name, (offset, size) in index.fields_of(row).items():
            value = data[offset - begin : offset - begin + size]
            if len(value) < size:
                raise cut_short(url, offset + len(value), "a sample")
            sample[name] = value
        return sample

    def _open(self, number: int) -> _OpenShard:
        if self._process != _process:
            self._begin()  # a fork: what the parent opened is closed in this process only
        if len(self._files) >= self._most:
            self._close_all_but(self._most - 1)
        checked = self.pool.checked
        if number in checked and (again := checked[number].open()) is not None:
            return again
        shard = self.index.shards[number - self._first]
        if shard.compressed:
            raise ShardError(
                "a compressed shard cannot be read at any offset: store it as a plain tar, "
                "or read it in order, without index=",
                origin=Origin(shard.url),
            )
        while True:
            try:
                file = _OpenShard(shard, self.local_paths, self.cache, self.patience)
                if type(file._stream) is LocalFile and file.descriptor >= 0:
                    checked[number] = _CheckedFile(shard.url, file)
                return file
            except StorageError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not _close_half():
                    raise

    def close_half(self) -> bool:
        """Close half of the open shards, those not used for longest, and keep no more open.

        Return False if none is open."""
        count = len(self._files)
        self._most = max(1, count // 2)
        self._close_all_but(count // 2)
        return count > 0

    def _close_all_but(self, count: int) -> None:
        """Close shards, those not used for longest first, until this many are open."""
        files = self._files
        with contextlib.suppress(StopIteration, RuntimeError):  # other threads change it as well
            while len(files) > count:
                files.pop(next(iter(files)), None)

    def close(self) -> None:
        """Close the shards of this reader; the next read opens its shard again."""
        for number in range(self._first, self._first + len(self.index.shards)):
            self._files.pop(number, None)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("index", "max_open", "local_paths", "cache", "patience", "pool", "_first")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _bulk_end(begins: Sequence[int], ends: Sequence[int], at: int, last: int) -> int:
    """Return the end of the bytes to read for a sample, and for the next ones that are near it.

    >>> _bulk_end([0, 2048, 90_000], [1024, 3072, 91_024], 0, 3)
    3072
    """
    end, most = ends[at], begins[at] + BULK_BYTES
    for number in range(at + 1, last):
        if begins[number] > end + GAP_BYTES or ends[number] > most:
            break
        end = ends[number]
    return end


_readers: weakref.WeakSet[SampleReader] = weakref.WeakSet()


def _close_half() -> bool:
    """Make all readers of this process close half of their shards; return False if none is open."""
    closed = [reader.close_half() for reader in list(_readers)]
    return any(closed)


_REOPENED = object()
"""The stream of a file that has only a descriptor."""


class _OpenShard:
    """A shard open for reading at any offset; closed with its last reference.

    A thread may be reading when another one drops the shard from the open ones: its file descriptor
    must not be reused before that ends.
    """

    open_files: ClassVar[set[int]] = set()
    """By id: shards are dropped on any thread, where a number would be miscounted."""
    __slots__ = (
        *("_stream", "arriving", "descriptor", "path", "pread"),
        *("check_every", "size_bytes", "until_check", "url", "written_ns"),
    )

    def __init__(
        self,
        shard: IndexedShard,
        local_paths: bool,
        cache: ShardCache | None = None,
        patience: RetryPolicy | None = None,
    ) -> None:
        url = shard.url
        self.url, self.descriptor, self.size_bytes, self.written_ns = canonical_url(url), -1, 0, 0
        self.check_every = self.until_check = max(1, min(CHECK_EVERY, shard.samples))
        stream: Any
        if cache is None:
            stream = open_url(url, patience=patience)
        else:
            stream = cache.open(url, checksum=shard.checksum, patience=patience)
        self._stream = stream
        _OpenShard.open_files.add(id(self))
        self.arriving = hasattr(stream, "arrived")
        self.path = (local_path(url) or path_of(stream)) if local_paths else None
        self.pread: Callable[[int, int], bytes]
        local = local_path(rewrite_url(url)) is not None
        if (local or isinstance(stream, CachedShard)) and hasattr(os, "pread"):
            self.descriptor = stream.fileno()
            status = os.fstat(self.descriptor)
            self.size_bytes, self.written_ns = status.st_size, status.st_mtime_ns
            self.pread = partial(os.pread, self.descriptor)
        elif hasattr(stream, "read_range"):
            self.pread = lambda length, offset: stream.read_range(offset, length)
        else:
            raise StorageError("this store cannot read from any offset", origin=Origin(url))
        if local and self.descriptor >= 0:
            found = ShardStamp(self.size_bytes, self.written_ns)
        else:
            found = ShardStamp(stream.size_bytes, etag=getattr(stream, "etag", None))
        shard.check(found, lambda: sum_ends(stream))

    def check_unchanged(self) -> None:
        """Raise ShardError if the file was written to since it was opened."""
        if self.descriptor >= 0:
            status = os.fstat(self.descriptor)
            if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.written_ns):
                raise overwritten(self.url)

    @property
    def deferrable(self) -> bool:
        """Whether samples may hold the shard open until they are read, with all others that do."""
        most = most_files(MOST_FILES + MAX_OPEN)
        return self.descriptor >= 0 and len(_OpenShard.open_files) <= most

    @property
    def moved(self) -> bool:
        """Whether the shard has become complete in the cache: opened again, it is a file."""
        return bool(self._stream.arrived)

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Read many ranges (offset, length), in one request if the stream supports it."""
        several = getattr(self._stream, "read_ranges", None)
        if several is None:
            return [self.pread(length, offset) for offset, length in ranges]
        data: list[bytes] = several(ranges)
        return data

    def rest(self, data: bytes, offset: int, size: int) -> bytes:
        """Read the rest of the bytes at ``offset`` after ``data``: Linux returns at most 2 GiB at
        once."""
        while len(data) < size:
            piece = self.pread(size - len(data), offset + len(data))
            if not piece:
                raise cut_short(self.url, offset + len(data), "a sample")
            data += piece
        return data

    # Bound as defaults: when Python ends, the module's names are gone before its last shards.
    def __del__(
        self, opened: set[int] = open_files, reopened: Any = _REOPENED, close: Any = os.close
    ) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:
            opened.discard(id(self))
            if stream is reopened:
                close(self.descriptor)
            else:
                stream.close()


class _CheckedFile:
    """A local shard that was found to be the one in the index: it can be opened again quickly."""

    __slots__ = ("_check_every", "_file", "_shown", "_stamp", "_url")

    def __init__(self, url: str, file: _OpenShard) -> None:
        self._file = local_path(rewrite_url(url)) or url
        self._url, self._shown, self._check_every = file.url, file.path, file.check_every
        self._stamp = (file.size_bytes, file.written_ns)

    def open(self) -> _OpenShard | None:
        """Open the file; return None if it is not the one that was checked."""
        try:
            descriptor = os.open(self._file, _FLAGS)
        except OSError:
            return None
        file = object.__new__(_OpenShard)
        file.descriptor, file._stream = descriptor, _REOPENED
        _OpenShard.open_files.add(id(file))
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != self._stamp:
            return None
        file.size_bytes, file.written_ns = self._stamp
        file.url, file.path, file.arriving = self._url, self._shown, False
        file.check_every = file.until_check = self._check_every
        file.pread = partial(os.pread, descriptor)
        return file


_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
