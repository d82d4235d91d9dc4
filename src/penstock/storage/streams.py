"""The interface of all byte streams.

A reader is any object with the methods of :class:`ReadStream`. A writer is a :class:`WriteStream`,
which ends in exactly one of two ways: ``close()`` (everything is stored) or ``abort()`` (nothing).
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import warnings
import weakref
import zlib
from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeAlias

from penstock.errors import Origin, StorageError
from penstock.redact import redact

Buffer: TypeAlias = Any  # bytes, bytearray, memoryview, arrays (3.12 has a name for it)

WRITE_BUFFER_BYTES = 1 << 20


class ReadStream(Protocol):
    """A stream open for reading.

    ``read(n)`` returns 1 to ``n`` bytes, and ``b""`` only at the true end; a stream that ends
    early raises a :class:`~penstock.errors.StorageError`. Local files also have ``seek``,
    ``fileno`` and ``read_range(offset, length)``.
    """

    @property
    def name(self) -> Any:
        """The URL."""

    @property
    def size_bytes(self) -> int | None:
        """The length of the whole stream, if it is known."""

    @property
    def closed(self) -> bool: ...

    def read(self, size: int = -1, /) -> Any: ...

    def readinto(self, buffer: Buffer, /) -> int | None: ...

    def seekable(self) -> bool: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: Any) -> None: ...


class BufferedStream(io.BufferedReader):
    """A reader with a buffer: ``read(n)`` returns ``n`` bytes, fewer only at the end."""

    @property
    def size_bytes(self) -> int | None:
        return getattr(self.raw, "size_bytes", None)

    def read_range(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on, if the stream can seek."""
        data: bytes = self.raw.read_range(offset, length)  # type: ignore[attr-defined]
        return data


def storage_error(what: str, url: str, exn: OSError, offset: int | None = None) -> StorageError:
    """Convert an OSError to a StorageError with what failed, why, the URL and the offset."""
    error = StorageError(f"{what}: {exn.strerror or exn}", origin=Origin(url, offset=offset))
    error.errno = exn.errno
    return error


def write_pieces(stream: Any, pieces: list[Any]) -> None:
    """Write several buffers to a stream, without joining them if it can."""
    if hasattr(stream, "write_pieces"):
        stream.write_pieces(pieces)
    else:
        stream.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))


class CloseOrAbort:
    """A writer that is completed by ``close()`` or discarded by ``abort()``.

    A ``with`` block closes it at its end, and aborts it if an exception is raised.
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


_open_writers: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _report_open_writers() -> None:
    for writer in list(_open_writers):
        writer.report_open()


def report_at_exit(writer: Any) -> None:
    """Call ``report_open()`` of a writer at the end of the program, while warnings still work."""
    _open_writers.add(writer)


class WriteStream(CloseOrAbort):
    """A stream open for writing; the base class of all writers.

    A stream that is dropped without ``close()`` or ``abort()`` is aborted, with a warning. A copy
    in a forked process does nothing: the stream belongs to the process that opened it.

    A subclass has three methods: ``_send`` (write some bytes and return how many), ``_finish``
    (make the object final) and ``_discard`` (undo everything; called at most once).
    """

    size_bytes: int | None = None
    closes_at_exit = False
    """True if ``close()`` works even while the interpreter ends, as in a ``__del__``."""
    crc32: int | None = None
    """Set it to 0 before the first write to get the CRC-32 of all bytes."""

    def __init__(self, url: str, buffer_bytes: int | None = None) -> None:
        self.name = url
        # Not a buffer of the io module, which every forked process would flush again.
        self._pending = bytearray()
        self._limit = WRITE_BUFFER_BYTES if buffer_bytes is None else max(buffer_bytes, 0)
        self._sent = 0
        self._owner = os.getpid()
        self._open = True
        self._broken = self._reported = False
        report_at_exit(self)

    def _send(self, data: memoryview) -> int:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _discard(self) -> None:
        raise NotImplementedError

    def write(self, data: Buffer, /) -> int:
        """Write all of the data and return its number of bytes."""
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
        """Send the buffered bytes."""
        self._check_open()
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self._push(pending)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._sent + len(self._pending)

    def close(self) -> None:
        """Make the object final. Do nothing if the stream is closed already."""
        if not self._open:
            if self._broken:
                self._broken = False
                raise StorageError(
                    "nothing was stored, since an earlier write failed: write it again",
                    origin=Origin(self.name, offset=self._sent),
                )
            return
        if os.getpid() != self._owner:
            self._open = False
            return
        with self._abort_on_error(final=True):
            self.flush()
            self._finish()
        self._open = False

    def abort(self) -> None:
        """Discard what was written, as far as the storage can undo it."""
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
            if not self._reported:
                self._warn("was never closed, so nothing was stored")

    def report_open(self) -> None:
        """Warn at the end of the program, if the stream is open. Abort it, unless a program may
        still close it."""
        if self._open and os.getpid() == self._owner:
            self._reported = True
            self._warn("is open at the end of the program, and nothing is stored without close()")
            if not self.closes_at_exit:
                self.abort()

    def _warn(self, what: str) -> None:
        text = f"{redact(self.name)} {what}: call close() or use 'with'"
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"the stream is closed and cannot be written to ({redact(self.name)})")

    def _push(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        if self.crc32 is not None:
            self.crc32 = zlib.crc32(view, self.crc32)
        with self._abort_on_error(final=False):
            while len(view):
                count = self._send(view)
                self._sent += count
                view = view[count:]

    @contextlib.contextmanager
    def _abort_on_error(self, *, final: bool) -> Iterator[None]:
        """Abort if the block raises; ``close()`` will raise again, unless it is what failed."""
        try:
            yield
        except BaseException as exn:
            self.abort()
            self._broken = not final
            if isinstance(exn, OSError) and not isinstance(exn, StorageError):
                raise storage_error("cannot write", self.name, exn, self._sent) from exn
            raise
