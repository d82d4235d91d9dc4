"""Single samples by their row in the index."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

from penstock.errors import Origin, SampleError, ShardError, StorageError
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import IndexedShard
from penstock.shards.index.shard_stamps import Stamp, compare, stamp_from
from penstock.shards.lazy_bytes import LATER_BYTES, MOST_FILES, Later
from penstock.shards.sample_reader import Sample
from penstock.shards.byte_windows import LARGE_BYTES, cut_short, keep_heap_warm
from penstock.redact import named
from penstock.storage import open_url
from penstock.storage.cache.shard_cache import CachedShard, ShardCache
from penstock.storage.client.retry_policy import Patience
from penstock.storage.urls import is_remote, local_path, rewrite_url

MAX_OPEN = 128
"""Shards kept open: well below the 1,024 files that a process may usually have."""
THREADS = 8
"""Remote shards that are asked at a time."""

_process = os.getpid()


def _forked() -> None:
    global _process
    _process = os.getpid()


if hasattr(os, "register_at_fork"):  # asking for the number at each read would cost a system call
    os.register_at_fork(after_in_child=_forked)


class SampleReader:
    """Reads any sample of an index, as reading the shard from its start would give it.

    Shards stay open, the ``max_open`` used last. A shard that is not as it was when the
    index was made is a :class:`~penstock.errors.StaleIndexError` when it is opened, and a
    compressed one a :class:`~penstock.errors.ShardError`: it has no places to go to. Threads may
    share a reader, and it may be copied by a fork or a pickle.

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
        patience: Patience | None = None,
    ) -> None:
        self.index, self.max_open, self.local_paths = index, max(1, max_open), local_paths
        self.cache, self.patience = cache, patience
        self._begin()

    def _begin(self) -> None:
        self._process = _process
        self._files: dict[int, _OpenShard] = {}  # the one used last stands last
        self._plan: Any = None
        keep_heap_warm()

    def prepare(self) -> Any:
        """Load keys and fields now: before a fork, so that all workers share them."""
        index, fields = self.index, self.index.fields
        self._plan = (
            *(len(index), index.shard.item, index.keys),
            *(fields.codes.item, fields.names, fields.starts.item),
            *(index.offset.item, fields.places.item, fields.sizes.item),
        )
        return self._plan

    def read(self, row: int, later: bool = False) -> Sample:
        """The sample of that row: ``__key__``, ``__url__`` and the bytes of its fields.

        With ``later``, large fields of local shards are left to be read by someone else.
        """
        count, shard_of, keys, code_of, names_of, start_of, offset_of, place_of, size_of = (
            self._plan or self.prepare()
        )
        if not 0 <= row < count:
            raise SampleError(f"there is no sample {row}: the index has {count}")
        number: int = shard_of(row)
        file = self._files.pop(number, None)
        if file is None or (file.arriving and file.moved) or self._process != _process:
            file = self._open(number)
        self._files[number] = file
        sample: Sample = {"__key__": keys.at(row), "__url__": file.url}
        if file.path is not None:
            sample["__local_path__"] = file.path
        names = names_of[code_of(row)]
        begin: int = offset_of(row)
        field: int = start_of(row)
        last = field + len(names) - 1
        span: int = place_of(last) + size_of(last)
        if span < LARGE_BYTES:
            data = file.pread(span, begin)
            if len(data) != span:
                data = file.rest(data, begin, span)
            for name in names:
                start = place_of(field)
                sample[name] = data[start : start + size_of(field)]
                field += 1
            return sample
        for name in names:
            size, start = size_of(field), begin + place_of(field)
            field += 1
            if later and size >= LATER_BYTES and file.deferrable:
                sample[name] = Later(file, start, size)
                continue
            data = file.pread(size, start)
            sample[name] = data if len(data) == size else file.rest(data, start, size)
        return sample

    @property
    def remote(self) -> bool:
        """Whether a read may cost a round trip, so that :meth:`read_many` is worth its while."""
        return any(is_remote(shard.url) for shard in self.index.shards)

    def read_many(self, rows: Sequence[int]) -> list[Sample]:
        """The samples of those rows, in that order.

        Of remote shards all are asked for at once, and neighbouring ones in one request.
        """
        if self._plan is None:
            self.prepare()
        wanted: dict[int, list[int]] = {}
        for row in rows:
            if 0 <= row < len(self.index):
                wanted.setdefault(self.index.shard.item(row), []).append(row)
        known: dict[int, bytes] = {}
        remote = {n: own for n, own in wanted.items() if is_remote(self.index.shards[n].url)}
        if len(remote) == 1:
            ((number, own),) = remote.items()
            known = self._spans(number, own)
        elif remote:
            with ThreadPoolExecutor(min(len(remote), THREADS), "penstock-index") as pool:
                for part in pool.map(self._spans, remote, remote.values()):
                    known.update(part)
        return [self._cut(row, known[row]) if row in known else self.read(row) for row in rows]

    def _spans(self, number: int, rows: list[int]) -> dict[int, bytes]:
        """The bytes of samples of one remote shard, each from its first header to its end."""
        file = self._files.pop(number, None)
        if file is None or (file.arriving and file.moved) or self._process != _process:
            file = self._open(number)
        self._files[number] = file
        index = self.index
        ranges = [(index.offset.item(row), index.size.item(row)) for row in rows]
        return dict(zip(rows, file.read_ranges(ranges)))

    def _cut(self, row: int, data: bytes) -> Sample:
        index = self.index
        url, begin = named(index.shards[index.shard.item(row)].url), index.offset.item(row)
        sample: Sample = {"__key__": index.keys[row], "__url__": url}
        for name, (place, size) in index.fields_of(row).items():
            value = data[place - begin : place - begin + size]
            if len(value) < size:
                raise cut_short(url, place + len(value), "a sample")
            sample[name] = value
        return sample

    def _open(self, number: int) -> _OpenShard:
        if self._process != _process:
            self._begin()  # a fork: what the parent opened is closed in this process only
        with contextlib.suppress(StopIteration, RuntimeError):  # other threads change it as well
            while len(self._files) >= self.max_open:
                self._files.pop(next(iter(self._files)), None)
        shard = self.index.shards[number]
        if shard.compressed:
            raise ShardError(
                "a compressed shard cannot be read at any place: store it as a plain tar, "
                "or read it in order, without index=",
                origin=Origin(shard.url),
            )
        return _OpenShard(shard, self.local_paths, self.cache, self.patience)

    def close(self) -> None:
        """Close all shards; the next read opens its shard again."""
        self._files = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("index", "max_open", "local_paths", "cache", "patience")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class _OpenShard:
    """A shard open for reading at any place; closed when nobody holds it any more.

    A thread may be reading when another one drops the shard from the open ones: the number of
    its file must not be given away before that ends.
    """

    open_files: ClassVar[set[int]] = set()
    """By id: shards are dropped on any thread, where a number would be miscounted."""
    __slots__ = ("_stream", "arriving", "descriptor", "path", "pread", "url", "written_ns")

    def __init__(
        self,
        shard: IndexedShard,
        local_paths: bool,
        cache: ShardCache | None = None,
        patience: Patience | None = None,
    ) -> None:
        url, stamp = shard.url, shard.stamp
        self.url, self.descriptor, self.written_ns = named(url), -1, 0
        stream: Any
        if cache is None:
            stream = open_url(url, patience=patience)
        else:
            stream = cache.open(url, checksum=shard.checksum, patience=patience)
        self._stream = stream
        _OpenShard.open_files.add(id(self))
        self.arriving = hasattr(stream, "arrived")
        self.path = local_path(url) if local_paths else None
        self.pread: Callable[[int, int], bytes]
        local = local_path(rewrite_url(url)) is not None
        if (local or isinstance(stream, CachedShard)) and hasattr(os, "pread"):
            self.descriptor = stream.fileno()
            self.written_ns = os.fstat(self.descriptor).st_mtime_ns
            self.pread = partial(os.pread, self.descriptor)
        elif hasattr(stream, "read_range"):
            self.pread = lambda length, offset: stream.read_range(offset, length)
        else:
            raise StorageError("this place cannot be read at any byte", origin=Origin(url))
        if local and hasattr(os, "pread"):
            compare(url, stamp, stamp_from(os.fstat(stream.fileno())))
        else:
            compare(url, stamp, Stamp(stream.size_bytes, etag=getattr(stream, "etag", None)))

    @property
    def deferrable(self) -> bool:
        """Whether samples may hold the shard open until they are read, with all others that do."""
        return self.descriptor >= 0 and len(_OpenShard.open_files) <= MOST_FILES + MAX_OPEN

    @property
    def moved(self) -> bool:
        """Whether the shard has become complete in the cache: opened again, it is a file."""
        return bool(self._stream.arrived)

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of many ranges (offset, length), at once where the place can."""
        several = getattr(self._stream, "read_ranges", None)
        if several is None:
            return [self.pread(length, offset) for offset, length in ranges]
        data: list[bytes] = several(ranges)
        return data

    def rest(self, data: bytes, offset: int, size: int) -> bytes:
        """The bytes at ``offset``, of which ``data`` came at first: Linux gives 2 GiB at once."""
        while len(data) < size:
            piece = self.pread(size - len(data), offset + len(data))
            if not piece:
                raise cut_short(self.url, offset + len(data), "a sample")
            data += piece
        return data

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:
            _OpenShard.open_files.discard(id(self))
            stream.close()
