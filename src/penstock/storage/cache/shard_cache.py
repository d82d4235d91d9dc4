"""Shards of other machines, kept on this one: fetched once, for all processes, within a limit.

The files are in one folder (see :mod:`penstock.storage.cache.cache_dir`); a shard that is not there
yet is read while it arrives (:mod:`penstock.storage.cache.following_reader`).
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from penstock import env
from penstock.context import SharedCounts, here
from penstock.errors import PenstockError, PipelineError, StorageError
from penstock.storage.urls import local_path, rewrite_url, scheme_of

from penstock.storage.cache.following_reader import (
    Arrival,
    ArrivingShard,
    is_other,
    version_of,
    warn_once,
)
from penstock.storage.cache.cache_dir import (
    CacheFolder,
    Entry,
    Note,
    boot_id,
    name_of,
    shown_url,
    url_digest,
)
from penstock.storage.local.files import LocalFile
from penstock.storage.cache.download import NotCached
from penstock.storage.schemes import open_url
from penstock.storage.client.retry_policy import Patience

HITS, FETCHES = range(2)
logger = logging.getLogger("penstock.storage")


class CachedShard(LocalFile):
    """A complete shard of the cache, open for reading: a local file under its own URL."""

    def __init__(self, descriptor: int, path: str, url: str, version: str | None) -> None:
        io.FileIO.__init__(self, descriptor, "rb", closefd=True)
        self.name, self.path, self.version = url, path, version
        self.size_bytes = os.fstat(descriptor).st_size

    @property
    def etag(self) -> str | None:
        return self.version


class ShardCache:
    """A folder of shards that were read before, shared by all processes of this machine.

    ``size_bytes`` is what the folder may take at any time, arriving shards included; None sets no
    limit. To make room, shards that nobody uses go, the one used longest ago first. Where
    there is no room for a shard, or the disk is full, it is read from its source, with one warning.
    ``url_to_name`` gives the readable part of a file's name; a digest of the whole URL stands
    before it, so names never collide. With ``check=True`` the source is asked for size and
    version whenever a shard is opened; with False, what is in the folder is taken as it is, and
    a run can go on without a network. ``patience`` is that of all requests to sources.

    >>> import tempfile
    >>> cache = ShardCache(tempfile.mkdtemp(), size_bytes=10**9)
    >>> with cache.open("pipe:echo hello") as shard:
    ...     shard.read()
    b'hello\\n'
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        size_bytes: int | None = None,
        *,
        url_to_name: Callable[[str], str] | None = None,
        check: bool = True,
        patience: Patience | None = None,
    ) -> None:
        path = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        self.folder = CacheFolder(path, size_bytes)
        self.url_to_name, self.check, self.patience = url_to_name, check, patience
        self._counts = SharedCounts(2)

    @classmethod
    def of(
        cls,
        cache_dir: Any = None,
        cache_size: float | None = None,
        url_to_name: Callable[[str], str] | None = None,
    ) -> ShardCache | None:
        """The cache that arguments or else ``WDS_CACHE`` and ``WDS_CACHE_SIZE`` ask for, if any.

        A negative size sets no limit.
        """
        if isinstance(cache_dir, ShardCache):
            return cache_dir
        folder = cache_dir if cache_dir is not None else env.text("WDS_CACHE")
        if cache_size is None or cache_size < 0:
            cache_size = env.integer("WDS_CACHE_SIZE")
        if folder is None:
            return None
        if not os.fspath(folder):
            raise PipelineError("cache_dir is a folder, not an empty name")
        size = None if cache_size is None or cache_size < 0 else int(cache_size)
        return cls(folder, size, url_to_name=url_to_name)

    @property
    def opened(self) -> tuple[int, int]:
        """How many shards were there when they were opened, and how many had to be fetched.

        Forked workers are counted in.
        """
        return self._counts.total(HITS), self._counts.total(FETCHES)

    def __repr__(self) -> str:
        limit, patience = self.folder.size_bytes, self.patience
        words = [repr(self.folder.path), *([] if limit is None else [repr(limit)])]
        words += [] if patience is None else [f"patience={patience!r}"]
        return f"ShardCache({', '.join(words)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardCache):
            return NotImplemented
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self.folder.path)

    def open(
        self, url: str, *, checksum: str | None = None, patience: Patience | None = None
    ) -> Any:
        """The shard, open for reading: from the folder if it is there, else while it arrives.

        Shards of this machine are opened where they are. Errors are those of the source. What
        arrives is held against ``checksum``, or else the sum that the store declares. Without
        ``patience``, that of the cache holds.
        """
        if url == "-" or local_path(rewrite_url(url)) is not None:
            return open_url(url)
        self.folder.make()
        trusted = not self.check or scheme_of(rewrite_url(url)) == "pipe"
        if trusted and (kept := self._newest(url)) is not None:
            return kept
        patience = self.patience if patience is None else patience
        source: Any = open_url(url, patience=patience)
        if hasattr(source, "verify_with"):
            source.verify_with(checksum or "declared")
        try:
            return self._open(self._arrival(url, source, checksum, patience), source)
        except NotCached as exn:
            warn_once(self.folder, exn)
        except StorageError:
            source.close()
            raise
        except OSError as exn:
            warn_once(self.folder, exn)
        except BaseException:
            source.close()
            raise
        return source

    def _arrival(
        self, url: str, source: Any, checksum: str | None, patience: Patience | None
    ) -> Arrival:
        size, version = getattr(source, "size_bytes", None), version_of(source)
        readable = self.url_to_name(url) if self.url_to_name is not None else _tail(url)
        note = Note(shown_url(url), size, version, boot=boot_id())
        name = name_of(url, size, version, readable)
        return Arrival(self.folder, name, note, url, checksum, patience)

    def _open(self, arrival: Arrival, source: Any) -> Any:
        name, note = arrival.name, arrival.note
        while True:
            if arrival.unknown:
                self._forget(name)
            kept = self._kept(name, arrival.url, note.version)
            if kept is not None:
                source.close()
                return kept
            fetch = arrival.fetch(source)
            if fetch is not None:
                self._log("fetch %s", note.url)
                self._counts.add(FETCHES, 1, here().worker)
                shard = ArrivingShard(arrival, os.dup(fetch.part), fetch)
                fetch.start()
                return shard
            part = self.folder.hold(name, ".part")
            if part is not None:
                source.close()
                self._log("follow %s", note.url)
                return ArrivingShard(arrival, part, None)
            arrival.pause()  # somebody begins it just now, or has just completed it

    def _forget(self, name: str) -> None:
        """Drop what is kept of a source that tells neither size nor version."""
        self._drop(name)
        if os.path.exists(self.folder.file(name)):
            raise NotCached("a source that tells neither size nor version was in use")

    def _kept(self, name: str, url: str, version: str | None) -> CachedShard | None:
        """The complete shard of that name, if it is as long as its note says."""
        descriptor = self.folder.hold(name)
        if descriptor is None:
            return None
        note = self.folder.note(name)
        if note is None or note.size_bytes != os.fstat(descriptor).st_size:
            os.close(descriptor)
            self._drop(name)  # somebody has changed it
            return None
        self.folder.touch(name)
        self._log("hit %s", note.url)
        self._counts.add(HITS, 1, here().worker)
        return CachedShard(descriptor, self.folder.file(name), url, version)

    def _newest(self, url: str) -> CachedShard | None:
        """The complete shard of that URL that was used last, whatever its version."""
        digest = url_digest(url)
        for entry in reversed(self.folder.entries()):
            if entry.complete and entry.name.startswith(digest):
                kept = self._kept(entry.name, url, entry.note.version)
                if kept is not None:
                    return kept
        return None

    def _drop(self, name: str) -> None:
        with self.folder.guarded():
            for entry in self.folder.entries():
                if entry.name == name:
                    self.folder.remove(entry)

    def entries(self) -> list[Entry]:
        """What is in the folder, the shard used longest ago first."""
        return self.folder.entries()

    def clear(self, chosen: Callable[[Entry], bool] = lambda entry: True) -> tuple[int, int]:
        """Delete the chosen shards that nobody uses; how many went and how many are in use."""
        gone = kept = 0
        if not os.path.isdir(self.folder.path):
            return 0, 0
        with self.folder.guarded():
            for entry in filter(chosen, self.folder.entries()):
                if self.folder.remove(entry):
                    gone += 1
                else:
                    kept += 1
        return gone, kept

    def verify(
        self, *, ask_source: bool = True, chosen: Callable[[Entry], bool] = lambda entry: True
    ) -> Iterator[tuple[Entry, str | None]]:
        """Every complete shard, and what is wrong with it (None: nothing).

        Size and SHA-256 are held against the note, size and version against the source.
        """
        for entry in self.entries():
            if entry.complete and chosen(entry):
                yield entry, self._problem(entry, ask_source)

    def _problem(self, entry: Entry, ask_source: bool) -> str | None:
        note = entry.note
        descriptor = self.folder.hold(entry.name)
        if descriptor is None:
            return None  # it went meanwhile
        with open(descriptor, "rb", buffering=0) as file:
            if entry.stored_bytes != note.size_bytes:
                return f"it has {entry.stored_bytes} bytes, not {note.size_bytes}"
            if hashlib.file_digest(file, "sha256").hexdigest() != note.sha256:
                return "its bytes are not those that were fetched"
        if not ask_source or not note.whole_url:
            return None
        try:
            with open_url(note.url, patience=self.patience) as source:
                other = is_other(source, note)
        except PenstockError as error:
            return f"the source cannot be asked: {error}"
        if other:
            return "the source has another version by now"
        return None

    def _log(self, text: str, *values: Any) -> None:
        if env.flag("WDS_VERBOSE_CACHE"):
            logger.info("cache: " + text, *values)


def _tail(url: str) -> str:
    """The end of a URL's path, for people who look into the folder."""
    return shown_url(url).rstrip("/").rsplit("/", 1)[-1]
