"""Build an index: scan every shard separately, in parallel, then write one file.

Each shard's rows are kept in a part file in ``<out>.parts/`` until the index is complete. So a
build that was interrupted, even by a kill, resumes where it stopped; and one that finds an index
reads only new shards. Earlier rows are valid while their shard has the same size and time; those
of shards that nobody asked for also while it has the same size, beginning and end.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from typing import Any

from penstock.errors import PenstockError, PipelineError, ShardError
from penstock.handlers import Handler, reraise_exception
from penstock.nearest_name import checks_arguments
from penstock.redact import canonical_url, redact
from penstock.shards.index.columns import ColumnSpec, describe, make_columns
from penstock.shards.index.default_path import beside, may_exist
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import (
    METADATA,
    OWN_COLUMNS,
    IndexedShard,
    arrow,
    damage_of,
)
from penstock.shards.index.part_files import PartFiles, place_of, write_index
from penstock.shards.index.row_source import FileRowSource
from penstock.shards.index.shard_stamps import stamp_of
from penstock.shards.sample_reader import check_group
from penstock.storage.listing import find_shards
from penstock.storage.urls import local_path

logger = logging.getLogger("penstock.shards.index")

THREADS = 4
LOCK_TRIES = 10_000
"""One for each builder ahead of us; on some file systems the comparison of files never succeeds."""

Progress = Callable[[IndexedShard], Any]


@checks_arguments
def build_index(
    urls: Any,
    out: str | os.PathLike[str],
    *,
    columns: Mapping[str, ColumnSpec] | None = None,
    workers: int = 0,
    progress: Progress | None = None,
    concatenated: bool = False,
    handler: Handler = reraise_exception,
    group: str = "key",
) -> Index:
    """Read all shards, write their index to ``out``, and return it.

    The file holds exactly these shards, unless it is the one beside them, which all shards of such
    names share: then its other shards stay in it, if they still exist.

    ``columns``: name → ``"FIELD:MEASURE"`` (see :mod:`penstock.shards.index.columns`) or a
    function of
    the raw sample. ``workers`` processes share the work; with 0, a few threads of this process do.
    Processes are spawned, so a script that uses them needs its
    ``if __name__ == "__main__":``, and functions must be importable. ``progress(shard)`` is called
    after each shard. ``group`` is how members become samples, as in
    :class:`~penstock.tarfile_to_samples`; the index records it.

    A damaged shard, or a key that occurs twice in one, raises the same error as reading it; the
    shards already scanned are not read again next time. The error is passed to ``handler`` first:
    if that returns true, the shard is left out of the index.

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
    name = os.path.expanduser(local_path(os.fspath(out)) or os.fspath(out))
    # Before a folder is made: a mistyped path is an error, or left out.
    shards = [url for url in find_shards(urls) if may_exist(url) or _is_there(url, handler)]
    options: Any = {"concatenated": concatenated, "handler": handler, "group": group}
    if not shards or place_of(name) != place_of(beside(shards)):
        with one_builder(name):
            return build_alone(shards, name, columns, workers, progress, **options)
    asked = set(shards)
    with one_builder(name):
        kept = _kept_shards(shards, name, group)
        if kept:
            _refuse_lost_columns(name, describe(make_columns(columns)), len(kept))
        every = sorted([*shards, *kept]) if kept else shards
        index = build_alone(
            every, name, columns, workers, _only(asked, progress), **options, others=kept
        )
    numbers = {shard.url: number for number, shard in enumerate(index.shards)}
    found = [url for url in shards if url in numbers]
    return index.select([numbers[url] for url in found], found)


def _is_there(url: str, handler: Handler) -> bool:
    try:
        stamp_of(url)
    except PenstockError as error:
        if not handler(error):
            raise
        return False
    return True


def _only(asked: set[str], progress: Progress | None) -> Progress | None:
    return progress and (lambda shard: shard.url in asked and progress(shard))


def build_alone(
    shards: Sequence[str],
    out: str,
    columns: Mapping[str, ColumnSpec] | None = None,
    workers: int = 0,
    progress: Progress | None = None,
    concatenated: bool = False,
    handler: Handler = reraise_exception,
    group: str = "key",
    others: Collection[str] = (),
) -> Index:
    """Build an index; the caller holds the lock of :func:`one_builder`.

    The names of the shards are used as they are: patterns were already expanded. ``others`` are
    those of the shards that are in the index already, and that nobody asked for: rows of a copy are
    used, and one that is missing or damaged is logged and left out.
    """
    arrow()
    if len(set(shards)) < len(shards):
        twice = next(url for url in shards if shards.count(url) > 1)
        raise PipelineError(
            f"a shard occurs once in an index, but {redact(twice)!r} was passed twice"
        )
    parts = PartFiles(out, make_columns(columns), concatenated, check_group(group))
    parts.begin(shards, others)
    ready = set()
    for shard in _have_parts(parts, shards, workers, handler, others):
        ready.add(shard.url)
        if progress is not None:
            progress(shard)
    shards = [url for url in shards if url in ready]
    if not shards:
        raise PipelineError("there is nothing to index: not one shard can be read")
    write_index(out, [parts.name(url) for url in shards], shards, describe(parts.columns), group)
    parts.clear(shards)
    return Index.load(out).select(range(len(shards)), shards)


def extend_index(
    urls: Sequence[str], out: str, group: str = "key", leave_out: Sequence[str] = ()
) -> Index:
    """Add shards to the index at ``out``; the caller holds the lock.

    Its shards that no longer exist are left out; so are those that are neither below the folder of
    the index nor beside one of ``urls``. Both are logged. ``leave_out`` names more of its shards
    that do not stay. An index with columns of the user is a PipelineError.
    """
    refuse_columns(out)
    kept = _kept_shards(urls, out, group, leave_out)
    asked = {place_of(url): url for url in urls}
    every = sorted([*kept, *asked.values()]) if kept else urls
    return build_alone(every, out, group=group, others=kept)


def _kept_shards(
    urls: Sequence[str], out: str, group: str, leave_out: Sequence[str] = ()
) -> set[str]:
    """Return the other shards of the index at ``out`` that stay in it."""
    asked, unwanted = set(map(place_of, urls)), set(map(place_of, leave_out))
    kept: dict[str, str] = {}
    strange: list[str] = []
    gone: list[str] = []
    if os.path.exists(out):
        # The author of an index file must not choose which URLs are requested.
        near = (_folder(out), *{_folder(url) for url in urls})
        with contextlib.suppress(ShardError):  # it is damaged, which build_alone logs
            about = FileRowSource(out).about
            if about.group != group:
                raise PipelineError(
                    f"the index {out} holds samples with group={about.group!r}, so shards with "
                    f"group={group!r} cannot be added: write another index"
                )
            for shard in about.shards:
                location = place_of(shard.url)
                if location in asked or location in unwanted:
                    continue
                if not _folder(shard.url).startswith(near):
                    strange.append(shard.url)
                elif may_exist(shard.url):
                    kept[location] = shard.url
                else:
                    gone.append(shard.url)
    strange_ones = "are neither below its folder nor beside those asked for"
    for left_out, why in ((strange, strange_ones), (gone, "no longer exist")):
        if left_out:
            logger.warning(
                "left out of the index %s: %d shards that %s (the first is %s)",
                *(out, len(left_out), why, redact(left_out[0])),
            )
    return set(kept.values())


def _refuse_lost_columns(out: str, columns: Mapping[str, str], kept: int) -> None:
    with contextlib.suppress(ShardError):  # it is damaged, which build_alone logs
        there = FileRowSource(out).about.columns
        lost = [name for name in there if columns.get(name) != there[name]]
        if lost:
            raise PipelineError(
                f"the index {out} has {kept} more shards with the columns {', '.join(lost)}, which "
                "would be lost: name all of its shards, the same columns, or another file (-o)"
            )


def _folder(url: str) -> str:
    """Return the folder of a shard or index, with a slash at its end."""
    path = local_path(url)
    location = canonical_url(url) if path is None else os.path.abspath(path)
    return os.path.join(os.path.dirname(location), "")


def refuse_columns(out: str) -> None:
    """Raise PipelineError if there is an index with columns that would be lost."""
    columns = read_columns(out)
    if columns:
        raise PipelineError(
            f"the index {out} has the columns {', '.join(columns)}, which cannot be "
            "computed here: run 'penstock index' with them over all shards, or delete it"
        )


def read_columns(path: str) -> list[str]:
    """Return the user's columns of the index file; [] if it cannot be read."""
    with contextlib.suppress(PenstockError), damage_of(path):
        schema = arrow().parquet.read_schema(path)
        if METADATA in (schema.metadata or {}):
            return [name for name in schema.names if name not in OWN_COLUMNS]
    return []


def _have_parts(
    parts: PartFiles,
    urls: Sequence[str],
    workers: int,
    handler: Handler,
    others: Collection[str],
) -> Iterator[IndexedShard]:
    """Make a part of every shard that has none; yield the shards as they are ready."""
    missing = []
    for url in urls:
        kept = parts.kept(url, or_copied=url in others)
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
            futures = {pool.submit(parts.make, url): url for url in missing}
            for future in as_completed(futures):
                try:
                    shard = future.result()
                except PenstockError as error:
                    if futures[future] not in others:
                        if not handler(error):
                            raise
                    elif isinstance(error, (ShardError, FileNotFoundError)):
                        logger.warning("left out of the index: %s", error)
                    else:
                        raise
                else:
                    yield shard
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _refuse_unpicklable(parts: PartFiles, workers: int) -> None:
    # Before anything is sent: a pool that fails to pickle later may hang at its end (Python 3.11).
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
    # Forking a process that has threads (torch, CUDA) may hang. On Ctrl-C, which reaches all
    # processes of a terminal, workers end without a traceback; their parent handles it.
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_DFL),
    )


def _locked(lock: str) -> int:
    """Wait for the lock file and return its descriptor."""
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
        # The previous holder deleted the file: later builders lock the file that is there now.
        os.close(descriptor)
    raise OSError(f"{lock} is another file each time")


@contextlib.contextmanager
def one_builder(out: str) -> Iterator[None]:
    """Hold the lock of an index, so that one process of this machine builds it at a time."""
    lock = (local_path(out) or out) + ".lock"
    try:
        descriptor = _locked(lock)
    except (ImportError, OSError):
        yield  # several processes may build it, each completely; the last one wins
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)
        os.close(descriptor)
