"""What every stream of bytes can do, wherever it leads.

A reader is any object of the form :class:`ReadStream`. A writer is a :class:`WriteStream`: it ends
in exactly one of two ways, ``close()`` (all of it is there) or ``abort()`` (none of it is).
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
import zlib
from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeAlias

from penstock.errors import Origin, StorageError
from penstock.redact import shown

Buffer: TypeAlias = Any  # bytes, bytearray, memoryview, arrays (3.12 has a name for it)

WRITE_BUFFER_BYTES = 1 << 20


class ReadStream(Protocol):
    """A stream open for reading.

    ``read(n)`` gives at least one and at most ``n`` bytes, and ``b""`` only at the true end; what
    breaks off earlier is a :class:`~penstock.errors.StorageError`. Local files also have ``seek``,
    ``fileno`` and ``read_range(offset, length)``.
    """

    @property
    def name(self) -> Any:
        """The URL."""

    @property
    def size_bytes(self) -> int | None:
        """The length of the whole stream, where the place knows it."""

    @property
    def closed(self) -> bool: ...

    def read(self, size: int = -1, /) -> Any: ...

    def readinto(self, buffer: Buffer, /) -> int | None: ...

    def seekable(self) -> bool: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: Any) -> None: ...


class BufferedStream(io.BufferedReader):
    """A reader with a buffer before it: ``read(n)`` gives ``n`` bytes, fewer only at the end."""

    @property
    def size_bytes(self) -> int | None:
        return getattr(self.raw, "size_bytes", None)

    def read_range(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on, of places that can seek."""
        data: bytes = self.raw.read_range(offset, length)  # type: ignore[attr-defined]
        return data


def storage_error(what: str, url: str, exn: OSError, offset: int | None = None) -> StorageError:
    """The operating system's error as ours: what failed, why, which URL and which byte."""
    error = StorageError(f"{what}: {exn.strerror or exn}", origin=Origin(url, offset=offset))
    error.errno = exn.errno
    return error


class CloseOrAbort:
    """Something written that is ended by ``close()``, or given up by ``abort()``.

    A ``with`` block does the first at its end and the second when it raises.
    """

    def close(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class WriteStream(CloseOrAbort):
    """A stream open for writing; the base of all writers.

    One that is dropped without ``close()`` or ``abort()`` is aborted, with a warning. A copy in a
    forked process does nothing: the stream belongs to the process that opened it.

    A kind of place gives three methods: ``_send`` (some bytes, tells how many it took),
    ``_finish`` (make it final) and ``_discard`` (undo all of it; called at most once).
    """

    size_bytes: int | None = None
    crc32: int | None = None
    """Set to 0 before the first write, it becomes the sum of all bytes."""

    def __init__(self, url: str, buffer_bytes: int | None = None) -> None:
        self.name = url
        # Our own buffer, since one of io's would be flushed once more by every forked process.
        self._pending = bytearray()
        self._limit = WRITE_BUFFER_BYTES if buffer_bytes is None else max(buffer_bytes, 0)
        self._sent = 0
        self._owner = os.getpid()
        self._open = True
        self._broken = False

    def _send(self, data: memoryview) -> int:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _discard(self) -> None:
        raise NotImplementedError

    def write(self, data: Buffer, /) -> int:
        """Take all of the data; its number of bytes comes back."""
        self._check_open()
        size = len(data) if type(data) is bytes else memoryview(data).nbytes
        if size == 0:
            return 0
        if len(self._pending) + size > self._limit:
            self.flush()
            if size >= self._limit:
                self._push(data)
                return size
        self._pending += data if type(data) is bytes else memoryview(data).cast("B")
        return size

    def flush(self) -> None:
        """Hand on what is buffered."""
        self._check_open()
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self._push(pending)

    def tell(self) -> int:
        """The number of bytes written so far."""
        return self._sent + len(self._pending)

    def close(self) -> None:
        """Make it final. A stream that is closed already is left alone."""
        if not self._open:
            if self._broken:
                self._broken = False
                raise StorageError(
                    "nothing was stored, since an earlier write failed: write it anew",
                    origin=Origin(self.name, offset=self._sent),
                )
            return
        if os.getpid() != self._owner:
            self._open = False
            return
        with self._undone_on_error(final=True):
            self.flush()
            self._finish()
        self._open = False

    def abort(self) -> None:
        """Give up: nothing of what was written remains, where the place can undo it."""
        self._broken = False
        if self._open:
            self._open = False
            if os.getpid() == self._owner:
                self._discard()

    @property
    def closed(self) -> bool:
        return not self._open

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def __del__(self) -> None:
        if getattr(self, "_open", False) and os.getpid() == self._owner:
            self.abort()
            warnings.warn(
                f"{shown(self.name)} was never closed, so nothing was stored: call close() or use "
                "'with'",
                RuntimeWarning,
                stacklevel=2,
            )

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"the stream is closed and cannot be written to ({shown(self.name)})")

    def _push(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        if self.crc32 is not None:
            self.crc32 = zlib.crc32(view, self.crc32)
        with self._undone_on_error(final=False):
            while len(view):
                count = self._send(view)
                self._sent += count
                view = view[count:]

    @contextlib.contextmanager
    def _undone_on_error(self, *, final: bool) -> Iterator[None]:
        """Undo everything and raise; ``close()`` will tell once more, unless it is what failed."""
        try:
            yield
        except BaseException as exn:
            self.abort()
            self._broken = not final
            if isinstance(exn, OSError) and not isinstance(exn, StorageError):
                raise storage_error("cannot write", self.name, exn, self._sent) from exn
            raise
