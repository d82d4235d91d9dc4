"""``pipe:COMMAND``: the output of a shell command as a stream, or the input of one.

The command runs in a session of its own, so that all its processes can be ended together. A
command that fails is always an error: at the end of its output its exit status is waited for, not
glanced at. Only a reader that is closed before the end is quiet, since then the command's fate is
our own doing. What the command writes to its standard error goes where ours goes.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import subprocess
from collections.abc import Iterable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from penstock import env
from penstock.errors import Origin, StorageError, UnsafeError

from penstock.storage.streams import Buffer, BufferedStream, WriteStream, storage_error

TIMEOUT_S = 7200.0
"""How long a command may take to exit after its output, or its input, has ended."""
_GRACE_S = 1.0  # between the request to end and the end by force
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_SIGPIPE = 128 + 13  # how a shell tells that a part of a pipeline was cut off by its reader


def open_pipe(
    url: str,
    mode: str,
    buffer_bytes: int | None = None,
    *,
    ignore_status: Iterable[int] = (),
    timeout: float | None = TIMEOUT_S,
) -> PipeReader | BufferedStream | PipeWriter:
    """The command behind ``pipe:``, run by the shell, for reading or writing.

    ``ignore_status`` are exit statuses that count as success; ``timeout`` are the seconds the
    command has to exit once its output or input has ended (None: any time). Refused under
    ``WDS_SECURE``.
    """
    if env.flag("WDS_SECURE"):
        raise UnsafeError("WDS_SECURE forbids commands as URLs: unset it", origin=Origin(url))
    if mode == "wb":
        return PipeWriter(url, buffer_bytes, ignore_status=ignore_status, timeout=timeout)
    reader = PipeReader(url, ignore_status=ignore_status, timeout=timeout)
    if not buffer_bytes:
        return reader
    return BufferedStream(reader, io.DEFAULT_BUFFER_SIZE if buffer_bytes < 0 else buffer_bytes)


class Command:
    """A running shell command, of which one end is ours."""

    def __init__(
        self, url: str, *, read: bool, ignore_status: Iterable[int], timeout: float | None
    ) -> None:
        self.url, self.timeout = url, timeout
        self.good = {0, *ignore_status}
        self.owner = os.getpid()
        try:
            self.process = subprocess.Popen(
                url.partition(":")[2],
                shell=True,
                bufsize=0,
                start_new_session=True,
                stdin=None if read else subprocess.PIPE,
                stdout=subprocess.PIPE if read else None,
            )
        except (OSError, ValueError) as exn:
            raise StorageError(f"the command cannot be run: {exn}", origin=Origin(url)) from exn
        end = self.process.stdout if read else self.process.stdin
        if not isinstance(end, io.FileIO):
            raise TypeError(f"an unbuffered pipe is a raw file, not {end!r}")
        self.end = end
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # the system may have a limit; it is only speed
                fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def finish(self, offset: int) -> None:
        """Wait for the exit and check its status; ``offset`` is the byte reached."""
        if not self.await_exit(self.timeout):
            self.kill()
            raise StorageError(
                f"the command did not exit within {self.timeout} s after its stream ended "
                "(the option timeout)",
                origin=Origin(self.url, offset=offset),
            )
        status = self.process.wait()
        if status not in self.good:
            raise StorageError(
                f"the command {_fate(status)}, so the stream cannot be trusted to be complete",
                origin=Origin(self.url, offset=offset),
            )

    def kill(self) -> None:
        """End all processes of the command, politely, then by force, and leave no zombie."""
        if self.process.returncode is not None or os.getpid() != self.owner:
            return
        self._signal(signal.SIGTERM)
        self.await_exit(_GRACE_S)
        if self.process.returncode is None:
            # The shell may be gone by now and its children not. Not yet waited for, it still holds
            # the group's number, so this cannot hit strangers.
            self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))
            if self.await_exit(_GRACE_S):
                self.process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, number)
            else:
                self.process.terminate()

    def await_exit(self, timeout: float | None) -> bool:
        """True once the shell has exited; its status is left uncollected where that can be."""
        if self.process.returncode is not None:
            return True
        try:
            # Popen.wait(timeout) looks again and again, with pauses; this sleeps until it happens.
            descriptor = os.pidfd_open(self.process.pid)
        except (AttributeError, OSError):
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                return False
            return True
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(None if timeout is None else int(timeout * 1000)))
        finally:
            os.close(descriptor)


class PipeReader(io.RawIOBase):
    """What a command writes to its standard output.

    >>> with PipeReader("pipe:echo hello") as stream:
    ...     stream.read()
    b'hello\\n'
    """

    size_bytes: int | None = None

    def __init__(
        self, url: str, *, ignore_status: Iterable[int] = (), timeout: float | None = TIMEOUT_S
    ) -> None:
        super().__init__()
        self.name = url
        self._position = 0
        self._ended = False
        self._failure: StorageError | None = None
        good = (_SIGPIPE, *ignore_status)
        self._command = Command(url, read=True, ignore_status=good, timeout=timeout)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        """The number of bytes read so far."""
        return self._position

    def readinto(self, buffer: Buffer, /) -> int:
        count = self._command.end.readinto(buffer) or 0
        self._position += count
        if count == 0 and memoryview(buffer).nbytes:
            self._end()
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(_READ_BYTES), b""))
        data = self._command.end.read(size) or b""
        self._position += len(data)
        if not data and size:
            self._end()
        return data

    def close(self) -> None:
        """End the command if it still runs. Never an error."""
        if self.closed:
            return
        super().close()
        command: Command | None = getattr(self, "_command", None)
        if command is not None:
            command.end.close()
            command.kill()

    def _end(self) -> None:
        if self._failure is not None:
            raise self._failure  # the end of a broken stream never turns into a good one
        if not self._ended:
            try:
                self._command.finish(self._position)
            except StorageError as exn:
                self._failure = exn
                raise
            self._ended = True


class PipeWriter(WriteStream):
    """What a command reads from its standard input; ``close()`` waits for it and checks its status.

    >>> with PipeWriter("pipe:cat > /dev/null") as stream:
    ...     stream.write(b"hello")
    5
    """

    def __init__(
        self,
        url: str,
        buffer_bytes: int | None = None,
        *,
        ignore_status: Iterable[int] = (),
        timeout: float | None = TIMEOUT_S,
    ) -> None:
        self._command = Command(url, read=False, ignore_status=ignore_status, timeout=timeout)
        super().__init__(url, None if buffer_bytes == -1 else buffer_bytes)

    def _send(self, data: memoryview) -> int:
        try:
            return self._command.end.write(data) or 0
        except BrokenPipeError as exn:
            if self._command.await_exit(_GRACE_S):
                self._command.finish(self._sent)  # raises where the command failed
            raise storage_error("the command stopped reading", self.name, exn, self._sent) from exn

    def _finish(self) -> None:
        self._command.end.close()
        self._command.finish(self._sent)

    def _discard(self) -> None:
        # First the end, then the end of input: the command must not take the cut for completion.
        self._command.kill()
        self._command.end.close()


def _fate(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
