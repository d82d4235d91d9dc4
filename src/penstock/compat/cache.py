"""``webdataset.cache``: opens shards, and caches remote ones in a folder."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock import env
from penstock.errors import Origin, PipelineError, ShardError, UrlError
from penstock.handlers import Handler, ask, reraise_exception
from penstock.redact import canonical_url, redact
from penstock.shards.decompress import MAGIC_BYTES, decompressor_for
from penstock.stages.reading.tar_samples import parse_shard_item
from penstock.storage import open_url
from penstock.storage.urls import local_path, scheme_of

gopen: Any = importlib.import_module("penstock.gopen")  # the module, as in WebDataset
logger = logging.getLogger("penstock.storage")

default_cache_dir = env.text("WDS_CACHE") or "./_cache"
default_cache_size = float(env.integer("WDS_CACHE_SIZE") or 1e18)
verbose_cache = int(env.flag("WDS_VERBOSE_CACHE"))

_BY_PATH = ("", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais")
_IN_COMMAND = re.compile(r"(https?|hdfs|gs|ais|s3):")


def islocal(url: str) -> bool:
    """Return whether a URL is a file of this machine.

    >>> islocal("a.tar"), islocal("s3://b/a.tar")
    (True, False)
    """
    return local_path(url) is not None


def magic_filetype(fname: str) -> str:
    """Describe a file by its first bytes: the name, a colon, and its type."""
    with open(fname, "rb") as stream:
        start = stream.read(512)
    if start.startswith(b"\x1f\x8b"):
        return f"{fname}: gzip compressed data"
    if decompressor_for(start[:MAGIC_BYTES]) is not None:
        return f"{fname}: compressed data"
    return f"{fname}: {'POSIX tar archive' if start[257:262] == b'ustar' else 'data'}"


get_filetype = magic_filetype


def check_tar_format(fname: str) -> bool:
    """Return whether a file starts like a tar, or like a compressed file that may hold one."""
    return "tar archive" in (kind := magic_filetype(fname)) or "compressed" in kind


def pipe_cleaner(spec: str) -> str:
    """Return the URL in a ``pipe:`` command, or the command if it has none.

    >>> pipe_cleaner("pipe:curl -s https://host/a.tar || true")
    'https://host/a.tar'
    """
    if not spec.startswith("pipe:"):
        return spec
    command = spec.removeprefix("pipe:")
    return next(filter(_IN_COMMAND.match, command.split(" ")), command)


class NotTextError(UrlError, AssertionError):
    """The URL is not a string. An AssertionError too, as in WebDataset."""


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """Return a file name for a URL: the end of its path with ``ndir`` folders, or the quoted URL.

    Passwords and signatures are removed.

    >>> url_to_cache_name("https://host/a/b.tar", ndir=1)
    'a/b.tar'
    """
    if not isinstance(url, str):
        raise NotTextError(f"a URL must be a string, not {url!r}")
    if scheme_of(url) in _BY_PATH:
        parts = urllib.parse.urlparse(url).path.lstrip("/").split("/")
        return "/".join(parts[-1 - ndir :])
    return urllib.parse.quote(canonical_url(url), safe="_+{}*,-")[-128:]


def download(url: str, dest: str, chunk_size: int = 1 << 20, verbose: bool = False) -> None:
    """Copy the content of a URL to a local file, which appears when it is complete."""
    with gopen.gopen(url) as source, open_url(dest, "wb") as target:
        while data := source.read(chunk_size):
            target.write(data)


class StreamingOpen:
    """Opens shards: yields dicts with ``url``, ``stream`` and, for local files, ``local_path``."""

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        self.verbose, self.handler = verbose, handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for shard in urls:
            try:
                opened = self.open(parse_shard_item(shard)[0])
            except Exception as error:  # noqa: BLE001 - the handler decides
                if ask(self.handler, error):
                    continue
                return
            if self.verbose:
                logger.info("open %s", redact(opened["url"]))
            yield opened

    def open(self, url: str) -> dict[str, Any]:
        """Open one shard."""
        if (path := local_path(url)) is not None:
            return {"url": url, "stream": open_url(url, buffer_bytes=-1), "local_path": path}
        return {"url": url, "stream": gopen.gopen(url)}


class LRUCleanup:
    """Keeps a folder below ``cache_size`` bytes by deleting the files with the lowest ``keyfn``.

    ``cleanup()`` checks at most every ``interval`` seconds (None: every time).
    """

    def __init__(
        self,
        cache_dir: str | None = None,
        cache_size: float = int(1e12),
        keyfn: Callable[[str], Any] = os.path.getctime,
        verbose: bool = False,
        interval: float | None = 30,
    ) -> None:
        self.cache_dir, self.cache_size, self.keyfn = cache_dir, cache_size, keyfn
        self.verbose, self.interval = verbose, interval
        self._last = -float("inf")

    def set_cache_dir(self, cache_dir: str) -> None:
        """Set the folder."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Delete files until the folder is small enough."""
        if self.cache_dir is None:
            raise PipelineError("LRUCleanup has no folder: give cache_dir or call set_cache_dir")
        now = time.monotonic()
        if self.interval is not None and now - self._last < self.interval:
            return
        self._last = now
        files = sorted(self._files(self.cache_dir))
        total = sum(size for _, _, size in files)
        for _, path, size in files:
            if total <= self.cache_size:
                return
            if self.verbose:
                logger.info("delete %s", path)
            with contextlib.suppress(FileNotFoundError):  # deleted by another process
                os.remove(path)
            total -= size

    def _files(self, folder: str) -> Iterator[tuple[Any, str, int]]:
        for parent, _, names in os.walk(folder):
            for path in (os.path.join(parent, name) for name in names):
                try:
                    yield self.keyfn(path), path, os.path.getsize(path)
                except FileNotFoundError:  # deleted by another process
                    continue


class FileCache(StreamingOpen):
    """Opens shards, remote ones as copies in the folder ``cache_dir``.

    For pipelines that are built from WebDataset's parts. ``WebDataset(cache_dir=…)`` reads a shard
    while it is downloaded, and is safe with many processes and against colliding file names.
    Here ``url_to_name`` returns the file name of the copy, as in WebDataset; two URLs with the same
    name are an error. A copy that ``validator`` refuses is deleted. ``cache_size`` (-1: no limit)
    is checked every ``cache_cleanup_interval`` seconds.
    """

    def __init__(
        self,
        cache_dir: str | None = None,
        *,
        url_to_name: Callable[[str], str] = url_to_cache_name,
        verbose: bool = False,
        validator: Callable[[str], bool] | None = check_tar_format,
        handler: Handler = reraise_exception,
        cache_size: float = -1,
        cache_cleanup_interval: float | None = 30,
    ) -> None:
        super().__init__(verbose, handler)
        self.cache_dir = default_cache_dir if cache_dir is None else os.fspath(cache_dir)
        self.url_to_name, self.validator = url_to_name, validator
        self.cleaner: LRUCleanup | None = None
        if cache_size > 0:
            self.cleaner = LRUCleanup(
                self.cache_dir, cache_size, verbose=verbose, interval=cache_cleanup_interval
            )
        self._names: dict[str, str] = {}

    def open(self, url: str) -> dict[str, Any]:
        path = self.get_file(url)
        return {"url": url, "stream": open_url(path, buffer_bytes=-1), "local_path": path}

    def get_file(self, url: str) -> str:
        """Return the local path of a shard, after copying it if necessary."""
        if (path := local_path(url)) is not None:
            return path
        name = self.url_to_name(url)
        if (first := self._names.setdefault(name, url)) != url:
            raise PipelineError(
                f"two shards have the name {name!r} in the cache, {redact(first)} and "
                f"{redact(url)}: give FileCache a url_to_name that distinguishes them, or use "
                "WebDataset(cache_dir=…)"
            )
        path = os.path.join(self.cache_dir or os.curdir, name)  # never a URL
        if not name or os.path.dirname(name) or name in (os.curdir, os.pardir):
            raise PipelineError(f"url_to_name must return a file name, not {name!r}")
        if not os.path.exists(path):
            os.makedirs(self.cache_dir, exist_ok=True)
            if self.cleaner is not None:
                self.cleaner.cleanup()
            download(url, path)
            if self.validator is not None and not self.validator(path):
                kind = magic_filetype(path)
                os.remove(path)
                raise ShardError(f"the download is not a tar file: {kind}", origin=Origin(url))
        return path


def lru_cleanup(
    cache_dir: str,
    cache_size: float,
    keyfn: Callable[[str], Any] = os.path.getctime,
    verbose: bool = False,
) -> None:
    """Delete files of a folder until they take at most ``cache_size`` bytes."""
    LRUCleanup(cache_dir, cache_size, keyfn, verbose, None).cleanup()


__all__ = [
    "FileCache",
    "LRUCleanup",
    "StreamingOpen",
    "check_tar_format",
    "default_cache_dir",
    "default_cache_size",
    "download",
    "get_filetype",
    "islocal",
    "lru_cleanup",
    "magic_filetype",
    "pipe_cleaner",
    "url_to_cache_name",
    "verbose_cache",
]
