"""``webdataset.cache``: opening shards, and the folder of those that were fetched."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock import env
from penstock.compat.left_out import LeftOut
from penstock.errors import PipelineError
from penstock.handlers import Handler, reraise_exception
from penstock.shards.decompress import MAGIC_BYTES, decompressor_for
from penstock.stages.reading.tar_samples import shard_place
from penstock.storage import gopen, open_url
from penstock.storage.urls import local_path, scheme_of

logger = logging.getLogger("penstock.storage")

default_cache_dir = env.text("WDS_CACHE") or "./_cache"
default_cache_size = float(env.integer("WDS_CACHE_SIZE") or 1e18)
verbose_cache = int(env.flag("WDS_VERBOSE_CACHE"))

FileCache = LeftOut("FileCache")

_BY_PATH = ("", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais")
_IN_COMMAND = re.compile(r"(https?|hdfs|gs|ais|s3):")


def islocal(url: str) -> bool:
    """True for files of this machine.

    >>> islocal("a.tar"), islocal("s3://b/a.tar")
    (True, False)
    """
    return local_path(url) is not None


def magic_filetype(fname: str) -> str:
    """What the first bytes of a file say it is: the name, a colon, and some words."""
    with open(fname, "rb") as stream:
        start = stream.read(512)
    if start.startswith(b"\x1f\x8b"):
        return f"{fname}: gzip compressed data"
    if decompressor_for(start[:MAGIC_BYTES]) is not None:
        return f"{fname}: compressed data"
    return f"{fname}: {'POSIX tar archive' if start[257:262] == b'ustar' else 'data'}"


get_filetype = magic_filetype


def check_tar_format(fname: str) -> bool:
    """True where a file begins like a tar, or like a compressed file that may hold one."""
    return "tar archive" in (kind := magic_filetype(fname)) or "compressed" in kind


def pipe_cleaner(spec: str) -> str:
    """The URL in a ``pipe:`` command, if there is one; else the spec without ``pipe:``.

    >>> pipe_cleaner("pipe:curl -s https://host/a.tar || true")
    'https://host/a.tar'
    """
    if not spec.startswith("pipe:"):
        return spec
    command = spec.removeprefix("pipe:")
    return next(filter(_IN_COMMAND.match, command.split(" ")), command)


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """A file name for a URL: the end of its path with ``ndir`` folders, or all of it, quoted.

    >>> url_to_cache_name("https://host/a/b.tar", ndir=1)
    'a/b.tar'
    """
    if scheme_of(url) in _BY_PATH:
        parts = urllib.parse.urlparse(url).path.lstrip("/").split("/")
        return "/".join(parts[-1 - ndir :])
    return urllib.parse.quote(url, safe="_+{}*,-")[-128:]


def download(url: str, dest: str, chunk_size: int = 1 << 20, verbose: bool = False) -> None:
    """Copy what a URL holds to a local file, which appears when it is complete."""
    with gopen(url) as source, open_url(dest, "wb") as target:
        while data := source.read(chunk_size):
            target.write(data)


class StreamingOpen:
    """Opens shards: dicts with ``url``, ``stream`` and, of local files, ``local_path``."""

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        self.verbose, self.handler = verbose, handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for shard in urls:
            try:
                url, _ = shard_place(shard)
                opened = {"url": url, "stream": gopen(url)}
            except Exception as error:  # noqa: BLE001 - the handler decides
                if self.handler(error):
                    continue
                return
            if self.verbose:
                logger.info("open %s", url)
            if (path := local_path(url)) is not None:
                opened["local_path"] = path
            yield opened


class LRUCleanup:
    """Keeps a folder of files below ``cache_size`` bytes by deleting those of least ``keyfn``.

    ``cleanup()`` looks at most every ``interval`` seconds (None: every time).
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
        """Look after another folder."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Delete as many files as it takes."""
        if self.cache_dir is None:
            raise PipelineError("LRUCleanup has no folder yet: give cache_dir or set_cache_dir")
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
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                os.remove(path)
            total -= size

    def _files(self, folder: str) -> Iterator[tuple[Any, str, int]]:
        for parent, _, names in os.walk(folder):
            for path in (os.path.join(parent, name) for name in names):
                try:
                    yield self.keyfn(path), path, os.path.getsize(path)
                except FileNotFoundError:  # deleted by another process meanwhile
                    continue


def lru_cleanup(
    cache_dir: str,
    cache_size: float,
    keyfn: Callable[[str], Any] = os.path.getctime,
    verbose: bool = False,
) -> None:
    """Delete files from a folder until they take ``cache_size`` bytes at most."""
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
