"""Making an index: every shard by itself, in parallel, then all in one file.

Each shard's rows are kept in a part file in ``<out>.parts/`` until the index is complete. So a
build that was stopped, however roughly, goes on where it was; and one that finds an index
reads only what is new. What was found earlier counts while its shard has the same size and time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from typing import Any

from penstock.errors import PipelineError, ShardError
from penstock.shards.index.columns import ColumnSpec, describe, make_columns
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import OWN_COLUMNS, IndexedShard, arrow, parse_metadata
from penstock.shards.index.part_files import Parts, is_as_told, place_of, write_index
from penstock.shards.index.row_source import FileSource
from penstock.redact import shown
from penstock.storage.listing import find_shards
from penstock.storage.urls import local_path

THREADS = 4
LOCK_TRIES = 10_000
"""One for each builder that is waited for; some file systems never say that a file is the same."""

Progress = Callable[[IndexedShard], Any]


def build_index(
    urls: Any,
    out: str | os.PathLike[str],
    *,
    columns: Mapping[str, ColumnSpec] | None = None,
    workers: int = 0,
    progress: Progress | None = None,
    concatenated: bool = False,
) -> Index:
    """Read all shards, write their index to ``out``, and give it back.

    ``columns``: name → ``"FIELD:MEASURE"`` (see :mod:`penstock.shards.index.columns`) or a function of
    the raw sample. ``workers`` processes share the work; with 0 it is a few threads of this one.
    Processes are started afresh, so a script that asks for them needs its
    ``if __name__ == "__main__":``, and functions must be importable. ``progress(shard)`` is called
    after each shard.

    A damaged shard or a key that stands twice is the error that reading it gives; the shards
    read by then are not read again next time.

    >>> import os, tempfile, penstock
    >>> folder = tempfile.mkdtemp()
    >>> with penstock.TarWriter(os.path.join(folder, "x.tar")) as sink:
    ...     size = sink.write({"__key__": "a", "cls": 7})
    >>> index = build_index(
    ...     os.path.join(folder, "x.tar"),
    ...     os.path.join(folder, "x.parquet"),
    ...     columns={"label": "cls:value"},
    ... )
    >>> index.column("label").tolist()
    [7]
    """
    name = os.path.expanduser(os.fspath(out))
    with one_builder(name):
        return build_alone(urls, name, columns, workers, progress, concatenated)


def build_alone(
    urls: Any,
    out: str,
    columns: Mapping[str, ColumnSpec] | None = None,
    workers: int = 0,
    progress: Progress | None = None,
    concatenated: bool = False,
) -> Index:
    """:func:`build_index` for those who hold the lock of :func:`one_builder`."""
    arrow()
    shards = find_shards(urls)
    if len(set(shards)) < len(shards):
        twice = next(url for url in shards if shards.count(url) > 1)
        raise PipelineError(f"a shard stands in an index once, but {shown(twice)!r} is given twice")
    parts = Parts(out, make_columns(columns), concatenated)
    parts.begin(shards)
    for shard in _have_parts(parts, shards, workers):
        if progress is not None:
            progress(shard)
    write_index(out, [parts.name(url) for url in shards], shards, describe(parts.columns))
    parts.clear(shards)
    return Index.load(out).select(range(len(shards)), shards)


def extend_index(urls: Sequence[str], out: str) -> Index:
    """The index at ``out`` with these shards in it as well; the caller holds the lock.

    Shards that it has and that are no longer there, or were changed, are left out. One with the
    user's own columns is a PipelineError.
    """
    refuse_columns(out)
    known: dict[str, str] = {}
    if os.path.exists(out):
        with contextlib.suppress(ShardError):  # an old or damaged one is of no use
            there = Index.load(out).shards
            known = {place_of(shard.url): shard.url for shard in there if is_as_told(shard)}
    named = {**known, **{place_of(url): url for url in urls}}
    return build_alone(sorted(named.values()) if known else urls, out)


def refuse_columns(out: str) -> None:
    """Raise PipelineError where there is an index with columns that would be lost."""
    with contextlib.suppress(ShardError):
        if not os.path.exists(out):
            return
        source = FileSource(out)  # not all of it: another writer may replace it meanwhile
        parse_metadata(source.metadata, out)
        columns = [name for name in source.names() if name not in OWN_COLUMNS]
        if columns:
            raise PipelineError(
                f"the index {out} has the columns {', '.join(columns)}, which nobody else can "
                "compute: run 'penstock index' with them over all shards, or delete it"
            )


def _have_parts(parts: Parts, urls: Sequence[str], workers: int) -> Iterator[IndexedShard]:
    """Have a part of every shard; the shards are told as they are ready."""
    missing = []
    for url in urls:
        kept = parts.kept(url)
        if kept is None:
            missing.append(url)
        else:
            yield kept
    if not missing:
        return
    if workers > 0:
        _refuse_unpicklable(parts, workers)
    with _executor(min(workers, len(missing))) as pool:
        try:
            futures = [pool.submit(parts.make, url) for url in missing]
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _refuse_unpicklable(parts: Parts, workers: int) -> None:
    # Before anything is sent: a pool that meets it later may hang at its end (Python 3.11).
    try:
        pickle.dumps(parts)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PipelineError(
            f"a column's function must be importable for workers={workers} ({error}): "
            "define it in a module, or say workers=0"
        ) from error


def _executor(workers: int) -> Executor:
    if workers <= 0:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-index")
    # Forking a process that has threads (torch, CUDA) may hang.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def _locked(lock: str) -> int:
    """The lock file, open, once nobody else has it."""
    import fcntl

    for _ in range(LOCK_TRIES):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # not every file system has locks
            return descriptor
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        # Whoever had it deleted the file: those who came since lock the file that is there now.
        os.close(descriptor)
    raise OSError(f"{lock} is another file each time")


@contextlib.contextmanager
def one_builder(out: str) -> Iterator[None]:
    """Let the other processes of this machine wait that would make the same index."""
    lock = (local_path(out) or out) + ".lock"
    try:
        descriptor = _locked(lock)
    except (ImportError, OSError):
        yield  # then several make it, each whole; the last one stays
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)
        os.close(descriptor)
