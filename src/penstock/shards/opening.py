"""From a URL to a shard's tape: open the place, see whether it is compressed, choose the window."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError, ShardError
from penstock.shards.decompress import MAGIC_BYTES, Decompressed, decompressor_for
from penstock.shards.tape import Tape
from penstock.shards.window import FileWindow, StreamWindow
from penstock.storage import open_url


def tape_of(
    stream: Any,
    url: str,
    *,
    want: Callable[[bytes], bool] | None = None,
    concatenated: bool = False,
    start: int = 0,
) -> Tape:
    """The tape of an open stream, compressed or not, from byte ``start`` of the plain tar on."""
    descriptor = _regular_file(stream)
    options: dict[str, Any] = {"want": want, "concatenated": concatenated}
    first = b""
    if descriptor is not None:
        begin = stream.tell()
        first = os.pread(descriptor, MAGIC_BYTES, begin)
        if decompressor_for(first) is None:
            return Tape(FileWindow(descriptor, url), url, start=begin + start, **options)
        first = b""
    while len(first) < MAGIC_BYTES and (more := stream.read(MAGIC_BYTES - len(first))):
        first += more
    make = decompressor_for(first)
    if make is not None:
        stream, first = Decompressed(stream, first, make, url), b""
    window = StreamWindow(stream, url)
    tape = Tape(window, url, rest=first, **options)
    if start:
        window.skip(len(first), 0, start)
        tape.buffer, tape.base = b"", start
    return tape


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
def open_shard(url: str, *, stream: Any = None, **options: Any) -> Iterator[Tape]:
    """The tape of the shard at ``url``; the stream is closed behind it.

    >>> import penstock, tempfile, os
    >>> name = os.path.join(tempfile.mkdtemp(), "x.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     _ = sink.write({"__key__": "a", "txt": "hello"})
    >>> with open_shard(name) as tape:
    ...     [(member.name, member.data) for member in tape]
    [(b'a.txt', b'hello')]
    """
    opened = open_url(url) if stream is None else stream
    try:
        yield tape_of(opened, url, **options)
    except (PenstockError, GeneratorExit):
        raise
    except (OSError, EOFError) as error:
        raise ShardError(f"cannot read the shard {url}: {error}") from error
    finally:
        if stream is None or hasattr(stream, "close"):
            opened.close()
