"""From a URL to a shard's tape: open the place, see whether it is compressed, choose the window."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError, ShardError
from penstock.shards.decompress import MAGIC_BYTES, Decompressed, decompressor_for
from penstock.shards.tar_reader import Tape
from penstock.shards.byte_windows import FileWindow, RangeWindow, StreamWindow
from penstock.redact import shown
from penstock.storage import open_url
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import Patience


def tape_of(
    stream: Any,
    url: str,
    *,
    want: Callable[[bytes], bool] | None = None,
    concatenated: bool = False,
    start: int = 0,
    only: bool = False,
) -> Tape:
    """The tape of an open stream, compressed or not, from byte ``start`` of the plain tar on.

    ``only`` says that no more than the sample there is wanted: little is read beyond it.
    """
    descriptor = _regular_file(stream)
    options: dict[str, Any] = {"want": want, "concatenated": concatenated}
    first = b""
    if descriptor is not None:
        begin = stream.tell()
        first = os.pread(descriptor, MAGIC_BYTES, begin)
        if decompressor_for(first) is None:
            tape = Tape(FileWindow(descriptor, url), url, start=begin + start, **options)
            tape.large = only  # a narrow window
            return tape
        first = b""
    elif only and hasattr(stream, "read_range"):
        if decompressor_for(stream.read_range(0, MAGIC_BYTES)) is None:
            return Tape(RangeWindow(stream, url), url, start=start, **options)
    begin = stream.tell() if start and _can_seek(stream) else None
    while len(first) < MAGIC_BYTES and (more := stream.read(MAGIC_BYTES - len(first))):
        first += more
    make = decompressor_for(first)
    if make is not None:
        stream, first = Decompressed(stream, first, make, url), b""
    window = StreamWindow(stream, url)
    tape = Tape(window, url, rest=first, **options)
    if start and begin is not None and make is None:
        stream.seek(begin + start)
        tape.buffer, tape.base = b"", start
    elif start:
        window.skip(len(first), 0, start)
        tape.buffer, tape.base = b"", start
    return tape


def _can_seek(stream: Any) -> bool:
    return bool(stream.seekable()) if hasattr(stream, "seekable") else False


def _regular_file(stream: Any) -> int | None:
    """The descriptor of a stream that is a plain file and can be read at any place."""
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
    patience: Patience | None = None,
    **options: Any,
) -> Iterator[Tape]:
    """The tape of the shard at ``url``, from the cache if there is one; the stream is closed.

    >>> import penstock, tempfile, os
    >>> name = os.path.join(tempfile.mkdtemp(), "x.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     _ = sink.write({"__key__": "a", "txt": "hello"})
    >>> with open_shard(name) as tape:
    ...     [(member.name, member.data) for member in tape]
    [(b'a.txt', b'hello')]
    """
    opened = open_stream(url, cache, patience) if stream is None else stream
    try:
        with _told(url):
            yield tape_of(opened, url, **options)
    finally:
        if stream is None or hasattr(stream, "close"):
            opened.close()


def open_stream(url: str, cache: ShardCache | None = None, patience: Patience | None = None) -> Any:
    """The bytes of the shard at ``url``, from the cache if there is one."""
    with _told(url):
        return (open_url if cache is None else cache.open)(url, patience=patience)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """What a stream of the user's own raises, as an error that names the shard."""
    try:
        yield
    except (PenstockError, GeneratorExit):
        raise
    except (OSError, EOFError) as error:
        raise ShardError(f"cannot read the shard {shown(url)}: {error}") from error
