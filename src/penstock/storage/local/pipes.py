"""``pipe:COMMAND``: read the output of a shell command, or write to its input.

The command runs in a separate session, so that all its processes can be ended together. A command
that fails is always an error: at the end of its output, the reader waits for its exit status. Only
a reader that is closed before the end ignores the status, because closing ends the command. The
command inherits our standard error.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from penstock.env import flag
from penstock.errors import Origin, StorageError, UnsafeError
from penstock.storage.streams import Buffer, BufferedStream, WriteStream, storage_error

TIMEOUT_S = 7200.0
"""How long a command may take to exit after its output or input has ended."""
_GRACE_S = 1.0  # between SIGTERM and SIGKILL
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_SIGPIPE = 128 + 13  # a shell's status for a command whose reader closed the pipe


def open_pipe(
    url: str,
    mode: str,
    buffer_bytes: int | None = None,
    *,
    ignore_status: Iterable[int] = (),
    timeout: float | None = TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> PipeReader | BufferedStream | PipeWriter:
    """Run the command of a ``pipe:`` URL in the shell and return a stream from or to it.

    ``ignore_status`` lists exit statuses that count as success; ``timeout`` is the number of
    seconds that the command may take to exit after its output or input has ended (None: no limit).
    ``env`` and ``cwd`` are the environment and the folder that it runs in, if not our own. Refused
    under ``WDS_SECURE``.
    """
    if flag("WDS_SECURE"):
        raise UnsafeError(
            "gopen_pipe: unsafe_gopen is False, cannot open pipe URLs: WDS_SECURE or"
            " utils.enforce_security is set",
            origin=Origin(url),
        )
    options: dict[str, Any] = {"ignore_status": ignore_status, "timeout": timeout}
    options |= {"env": env, "cwd": cwd}
    if mode == "wb":
        return PipeWriter(url, buffer_bytes, **options)
    reader = PipeReader(url, **options)
    if not buffer_bytes:
        return reader
    return BufferedStream(reader, io.DEFAULT_BUFFER_SIZE if buffer_bytes < 0 else buffer_bytes)


class Command:
    """A running shell command and our end of its pipe."""

    def __init__(
        self,
        url: str,
        *,
        read: bool,
        ignore_status: Iterable[int],
        timeout: float | None,
        **options: Any,
    ) -> None:
        self.url, self.timeout = url, timeout
        self.good = {0, *ignore_status}
        self.owner = os.getpid()
        try:
            with _delay_signals():  # Popen that is interrupted forgets the process it has started
                self.process = subprocess.Popen(
                    url.partition(":")[2],
                    shell=True,
                    bufsize=0,
                    start_new_session=True,
                    stdin=None if read else subprocess.PIPE,
                    stdout=subprocess.PIPE if read else None,
                    **options,
                )
        except (OSError, ValueError) as exn:
            raise StorageError(f"the command cannot be run: {exn}", origin=Origin(url)) from exn
        end = self.process.stdout if read else self.process.stdin
        if not isinstance(end, io.FileIO):
            raise TypeError(f"an unbuffered pipe is a raw file, not {end!r}")
        self.end = end
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # the system may have a limit; this is only speed
                fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def __del__(self) -> None:  # an interrupt may come before anybody has this object
        if hasattr(self, "process"):
            self.kill()

    def finish(self, offset: int) -> None:
        """Wait for the exit and check the status; ``offset`` is the number of bytes so far."""
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
                f"the command {_describe(status)}, so the stream cannot be trusted to be complete",
                origin=Origin(self.url, offset=offset),
            )

    def kill(self) -> None:
        """End all processes of the command, by SIGTERM, then SIGKILL, and leave no zombie."""
        if self.process.returncode is not None or os.getpid() != self.owner:
            return
        self._signal(signal.SIGTERM)
        self.await_exit(_GRACE_S)
        if self.process.returncode is None:
            # The shell may have exited before its children. Not yet waited for, it still reserves
            # the group id, so this cannot hit unrelated processes.
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
        """Return whether the shell exits within ``timeout``; if possible, do not reap it."""
        if self.process.returncode is not None:
            return True
        try:
            # Popen.wait(timeout) polls; this sleeps until the process exits.
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
    """Reads what a command writes to its standard output.

    >>> with PipeReader("pipe:echo hello") as stream:
    ...     stream.read()
    b'hello\\n'
    """

    size_bytes: int | None = None

    def __init__(
        self,
        url: str,
        *,
        ignore_status: Iterable[int] = (),
        timeout: float | None = TIMEOUT_S,
        **options: Any,
    ) -> None:
        super().__init__()
        self.name = url
        self._position = 0
        self._ended = False
        self._failure: StorageError | None = None
        good = (_SIGPIPE, *ignore_status)
        self._command = Command(url, read=True, ignore_status=good, timeout=timeout, **options)

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the number of bytes read so far."""
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
        """End the command if it still runs. Never raises."""
        if self.closed:
            return
        super().close()
        command: Command | None = getattr(self, "_command", None)
        if command is not None:
            command.end.close()
            command.kill()

    def _end(self) -> None:
        if self._failure is not None:
            raise self._failure  # reading again must not make a broken stream look complete
        if not self._ended:
            try:
                self._command.finish(self._position)
            except StorageError as exn:
                self._failure = exn
                raise
            self._ended = True


class PipeWriter(WriteStream):
    """Writes to a command's standard input; ``close()`` waits for it and checks its status.

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
        **options: Any,
    ) -> None:
        good = ignore_status
        self._command = Command(url, read=False, ignore_status=good, timeout=timeout, **options)
        super().__init__(url, None if buffer_bytes == -1 else buffer_bytes)

    def _send(self, data: memoryview) -> int:
        try:
            return self._command.end.write(data) or 0
        except BrokenPipeError as exn:
            if self._command.await_exit(_GRACE_S):
                self._command.finish(self._sent)  # raises if the command failed
            raise storage_error("the command stopped reading", self.name, exn, self._sent) from exn

    def _finish(self) -> None:
        self._command.end.close()
        self._command.finish(self._sent)

    def _discard(self) -> None:
        # Kill it before closing its input: the command must not take that for a complete input.
        self._command.kill()
        self._command.end.close()


@contextlib.contextmanager
def _delay_signals() -> Iterator[None]:
    """In the main thread, call the handlers of SIGINT and SIGTERM at the end instead of inside."""
    handlers: dict[int, Callable[..., Any]] = {}
    arrived: list[tuple[int, Any]] = []
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    signal.signal(number, lambda *arguments: arrived.append(arguments))
        yield
    finally:
        for replaced, handler in handlers.items():
            signal.signal(replaced, handler)
    for came, frame in arrived:
        handlers[came](came, frame)


def _describe(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
