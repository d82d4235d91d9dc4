"""Open the shard at a URL: detect compression, choose the window, return a TarReader."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError, ShardError
from penstock.redact import redact
from penstock.shards.byte_windows import FileWindow, RangeWindow, StreamWindow
from penstock.shards.decompress import MAGIC_BYTES, Decompressed, decompressor_for
from penstock.shards.sample_reader import add_key
from penstock.shards.tar_reader import TarReader
from penstock.storage import open_url
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.schemes import calling_opener


def tape_of(
    stream: Any,
    url: str,
    *,
    want: Callable[[bytes], bool] | None = None,
    concatenated: bool = False,
    start: int = 0,
    only: bool = False,
) -> TarReader:
    """Return the reader of an open stream, compressed or not, from byte ``start`` of the tar on.

    With ``only``, just the sample at ``start`` is needed, and little is read beyond it.
    """
    descriptor = _file_descriptor(stream)
    options: dict[str, Any] = {"want": want, "concatenated": concatenated}
    first = b""
    if descriptor is not None:
        begin = stream.tell()
        first = os.pread(descriptor, MAGIC_BYTES, begin)
        if decompressor_for(first) is None:
            reader = TarReader(FileWindow(descriptor, url), url, start=begin + start, **options)
            reader.large = only  # a narrow window
            return reader
        first = b""
    elif only and hasattr(stream, "read_range"):
        if decompressor_for(stream.read_range(0, MAGIC_BYTES)) is None:
            return TarReader(RangeWindow(stream, url), url, start=start, **options)
    begin = stream.tell() if start and _can_seek(stream) else None
    while len(first) < MAGIC_BYTES and (more := stream.read(MAGIC_BYTES - len(first))):
        first += more
    make = decompressor_for(first)
    if make is not None:
        stream, first = Decompressed(stream, first, make, url), b""
    window = StreamWindow(stream, url, compressed=make is not None)
    reader = TarReader(window, url, rest=first, **options)
    if start and begin is not None and make is None:
        stream.seek(begin + start)
        reader.buffer, reader.base = b"", start
    elif start:
        window.member_end = start
        window.skip(len(first), 0, start)
        reader.buffer, reader.base = b"", start
    return reader


def _can_seek(stream: Any) -> bool:
    return bool(stream.seekable()) if hasattr(stream, "seekable") else False


def _file_descriptor(stream: Any) -> int | None:
    """Return the descriptor of a stream that is a regular file, so that ``pread`` works."""
    if not hasattr(os, "pread"):
        return None
    try:
        descriptor: int = stream.fileno()
        return descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except (AttributeError, OSError, ValueError):
        return None


@contextmanager
def open_shard(
    url: str,
    *,
    stream: Any = None,
    cache: ShardCache | None = None,
    patience: RetryPolicy | None = None,
    **options: Any,
) -> Iterator[TarReader]:
    """Yield the reader of the shard at ``url``, from the cache if there is one; then close it.

    Raise ShardError at the end of the ``with`` block if the file was written to meanwhile.

    >>> import penstock, tempfile, os
    >>> name = os.path.join(tempfile.mkdtemp(), "x.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     _ = sink.write({"__key__": "a", "txt": "hello"})
    >>> with open_shard(name) as reader:
    ...     [(member.name, member.data) for member in reader]
    [(b'a.txt', b'hello')]
    """
    opened = open_stream(url, cache, patience) if stream is None else stream
    try:
        with _translate_errors(url):
            reader = tape_of(opened, url, **options)
            try:
                yield reader
            except ShardError as error:
                add_key(error, reader)
                raise
            if isinstance(reader.window, FileWindow):
                reader.window.check_unchanged()
    finally:
        if stream is None or hasattr(stream, "close"):
            opened.close()


def open_stream(
    url: str,
    cache: ShardCache | None = None,
    patience: RetryPolicy | None = None,
    opener: Callable[[str], Any] | None = None,
) -> Any:
    """Open the bytes of the shard at ``url``, from the cache if there is one, or by ``opener``."""
    with _translate_errors(url):
        if opener is not None:
            with calling_opener(url):
                return opener(url)
        return (open_url if cache is None else cache.open)(url, patience=patience)


@contextmanager
def _translate_errors(url: str) -> Iterator[None]:
    """Raise the errors of a user's stream as a ShardError that names the shard."""
    try:
        yield
    except (PenstockError, GeneratorExit):
        raise
    except (OSError, EOFError) as error:
        raise ShardError(f"cannot read the shard {redact(url)}: {error}") from error
