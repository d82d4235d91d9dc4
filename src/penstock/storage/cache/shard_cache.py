"""Cache remote shards on the local disk: downloaded once for all processes, within a size limit.

The files are in one folder (see :mod:`penstock.storage.cache.cache_dir`); a shard that is not there
yet is read while it is downloaded (:mod:`penstock.storage.cache.following_reader`).
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any

from penstock import env
from penstock.context import SharedCounts, current_context
from penstock.errors import PenstockError, PipelineError, StorageError
from penstock.redact import canonical_url, is_command, redact_for_disk
from penstock.storage.cache.cache_dir import (
    CacheFolder,
    Entry,
    EntryMeta,
    digest_url,
    is_free_name,
    make_name,
)
from penstock.storage.cache.download import NotCached
from penstock.storage.cache.following_reader import (
    Download,
    FollowingReader,
    differs,
    get_version,
    warn_once,
)
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.local.file_locks import boot_id
from penstock.storage.local.files import LocalFile
from penstock.storage.schemes import open_url
from penstock.storage.urls import local_path, rewrite_url, scheme_of

HITS, FETCHES = range(2)
logger = logging.getLogger("penstock.storage")


class CachedShard(LocalFile):
    """A complete shard of the cache, open for reading: a local file with the shard's URL."""

    def __init__(self, descriptor: int, path: str, url: str, version: str | None) -> None:
        io.FileIO.__init__(self, descriptor, "rb", closefd=True)
        self.name, self.path, self.version = url, path, version
        self.size_bytes = os.fstat(descriptor).st_size

    @property
    def etag(self) -> str | None:
        return self.version


class ShardCache:
    """A folder of shards that were read before, shared by all processes of this machine.

    ``size_bytes`` limits the size of the folder at any time, including partial shards; None sets no
    limit. To make space, unused shards are deleted, the least recently used first. If there is no
    space for a shard, or the disk is full, it is read from its source, with one warning.
    ``url_to_name`` receives the URL without secrets and returns the readable part of a file's name;
    a digest of the whole URL precedes it, so names never collide. With ``check=True``, size and
    version of the source are compared whenever a shard is opened; with False, the cached shard is
    used as it is, and a run can continue without a network. ``patience`` limits the retries of all
    requests to sources.

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
        patience: RetryPolicy | None = None,
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
        """Return the cache of the arguments, or of ``WDS_CACHE`` and ``WDS_CACHE_SIZE``, if any.

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
        """The number of shards that were found in the cache, and that had to be downloaded.

        Forked workers are included.
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
        self, url: str, *, checksum: str | None = None, patience: RetryPolicy | None = None
    ) -> Any:
        """Open a shard for reading: from the folder, or else while it is downloaded.

        Local shards are opened where they are. Errors are those of the source. A downloaded shard
        is compared with ``checksum``, or else with the checksum that the store declares. Without
        ``patience``, that of the cache applies.
        """
        if url == "-" or local_path(rewrite_url(url)) is not None:
            return open_url(url)
        self.folder.make()
        trusted = not self.check or scheme_of(rewrite_url(url)) == "pipe"
        if trusted and (kept := self._open_newest(url) or self._open_copy(url)) is not None:
            return kept
        patience = self.patience if patience is None else patience
        source: Any = open_url(url, patience=patience)
        if hasattr(source, "verify_with"):
            source.verify_with(checksum or "declared")
        try:
            return self._open(self._make_download(url, source, checksum, patience), source)
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

    def _make_download(
        self, url: str, source: Any, checksum: str | None, patience: RetryPolicy | None
    ) -> Download:
        size, version = getattr(source, "size_bytes", None), get_version(source)
        text = redact_for_disk(url)
        plain = text if is_command(url) else canonical_url(url)
        readable = self.url_to_name(plain) if self.url_to_name is not None else _tail(text)
        note = EntryMeta(text, size, version, boot=boot_id(), whole_url=text == url)
        name = self.folder.find_name(make_name(url, size, version, readable))
        return Download(self.folder, name, note, url, checksum, patience)

    def _open(self, download: Download, source: Any) -> Any:
        name, note = download.name, download.note
        while True:
            if download.unknown:
                self._forget(name)
            kept = self._open_kept(name, download.url, note.version)
            if kept is None and note.size_bytes is not None:
                kept = self._open_copy(download.url, note.size_bytes, note.version)
            if kept is not None:
                source.close()
                return kept
            fetch = download.fetch(source)
            if fetch is not None:
                self._log("fetch %s", note.url)
                self._counts.add(FETCHES, 1, current_context().worker)
                shard = FollowingReader(download, os.dup(fetch.part), fetch)
                fetch.start()
                return shard
            part = self.folder.hold(name, ".part")
            if part is not None:
                source.close()
                self._log("follow %s", note.url)
                return FollowingReader(download, part, None)
            download.pause()  # another process is just starting or completing it

    def _forget(self, name: str) -> None:
        """Delete the cached shard of a source that reports neither size nor version."""
        self._drop(name)
        if os.path.exists(self.folder.file(name)):
            raise NotCached("a source that reports neither size nor version was in use")

    def _open_kept(self, name: str, url: str, version: str | None) -> CachedShard | None:
        """Open the complete shard of that name, if its size is that of its metadata."""
        descriptor = self.folder.hold(name)
        if descriptor is None:
            return None
        note = self.folder.note(name)
        if note is None or note.size_bytes != os.fstat(descriptor).st_size:
            os.close(descriptor)
            self._drop(name)  # it was changed from outside
            return None
        self.folder.touch(name)
        self._log("hit %s", note.url)
        self._counts.add(HITS, 1, current_context().worker)
        return CachedShard(descriptor, self.folder.file(name), url, version)

    def _open_copy(
        self, url: str, size_bytes: int | None = None, version: str | None = None
    ) -> CachedShard | None:
        """Open a shard that a user has copied into the folder, under the URL's path or file name.

        It must have that size, if one is known. It belongs to the user: it is neither counted nor
        deleted.
        """
        for name in list_copied_names(url):
            path = self.folder.file(name)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                continue
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and size_bytes in (None, status.st_size):
                self._log("copy %s", path)
                self._counts.add(HITS, 1, current_context().worker)
                return CachedShard(descriptor, path, url, version)
            os.close(descriptor)
        return None

    def _open_newest(self, url: str) -> CachedShard | None:
        """Open the most recently used complete shard of that URL, of any version."""
        digest = digest_url(url)
        for entry in reversed(self.folder.entries()):
            if entry.complete and entry.name.startswith(digest):
                kept = self._open_kept(entry.name, url, entry.note.version)
                if kept is not None:
                    return kept
        return None

    def _drop(self, name: str) -> None:
        with self.folder.lock_folder():
            for entry in self.folder.entries():
                if entry.name == name:
                    self.folder.remove(entry)

    def entries(self) -> list[Entry]:
        """Return the shards in the folder, the least recently used first."""
        return self.folder.entries()

    def clear(self, chosen: Callable[[Entry], bool] = lambda entry: True) -> tuple[int, int]:
        """Delete the chosen shards that are not in use; return how many were deleted and kept."""
        gone = kept = 0
        if not os.path.isdir(self.folder.path):
            return 0, 0
        with self.folder.lock_folder():
            for entry in filter(chosen, self.folder.entries()):
                if self.folder.remove(entry):
                    gone += 1
                else:
                    kept += 1
        return gone, kept

    def verify(
        self, *, ask_source: bool = True, chosen: Callable[[Entry], bool] = lambda entry: True
    ) -> Iterator[tuple[Entry, str | None]]:
        """Yield every complete shard, and what is wrong with it (None: nothing).

        Size and SHA-256 are compared with the metadata, size and version with the source.
        """
        for entry in self.entries():
            if entry.complete and chosen(entry):
                yield entry, self._find_problem(entry, ask_source)

    def _find_problem(self, entry: Entry, ask_source: bool) -> str | None:
        note = entry.note
        descriptor = self.folder.hold(entry.name)
        if descriptor is None:
            return None  # deleted meanwhile
        with open(descriptor, "rb", buffering=0) as file:
            if entry.stored_bytes != note.size_bytes:
                return f"it has {entry.stored_bytes} bytes, not {note.size_bytes}"
            if hashlib.file_digest(file, "sha256").hexdigest() != note.sha256:
                return "its bytes are not those that were fetched"
        if not ask_source or not note.whole_url:
            return None
        try:
            with open_url(note.url, patience=self.patience) as source:
                other = differs(source, note)
        except PenstockError as error:
            return f"the source cannot be opened: {error}"
        if other:
            return "the source has another version now"
        return None

    def _log(self, text: str, *values: Any) -> None:
        if env.flag("WDS_VERBOSE_CACHE"):
            logger.info("cache: " + text, *values)


def path_of(stream: Any) -> str | None:
    """Return the cache file of an open stream; None for any other stream.

    While the shard is being downloaded, the file does not exist yet.
    """
    return stream.path if isinstance(stream, (CachedShard, FollowingReader)) else None


def list_copied_names(url: str) -> list[str]:
    """Return the names that a shard copied into a cache's folder by hand may have.

    >>> list_copied_names("s3://bucket/train/a.tar"), list_copied_names("https://host/a.tar?sig=x")
    (['train/a.tar', 'a.tar'], ['a.tar'])
    >>> list_copied_names("s3://bucket/../../a.tar"), list_copied_names("pipe:cat a.tar")
    (['a.tar'], [])
    """
    scheme, mark, rest = url.partition("://")
    path = rest.partition("/")[2]
    if scheme.lower() in ("http", "https"):
        path = re.split(r"[?#]", path)[0]
    parts = path.split("/")
    if not mark or is_command(url) or not is_free_name(parts[-1]):
        return []
    inside = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    return list(dict.fromkeys([path, parts[-1]] if inside else [parts[-1]]))


def _tail(text: str) -> str:
    """Return the end of a URL's path, for people who look into the folder."""
    return text.rstrip("/").rsplit("/", 1)[-1]
