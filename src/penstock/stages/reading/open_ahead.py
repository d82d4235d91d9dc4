"""The next shard, opened while the current one is still read: its first bytes are under way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

OPEN_AHEAD_BYTES = 32 << 20
"""The next shard is opened when so much of the current one is left."""


class OpenedAhead:
    """A stream that a thread opens. ``take()`` waits for it, and raises what opening raised.

    >>> import io
    >>> OpenedAhead(lambda: io.BytesIO(b"hello")).take().read()
    b'hello'
    """

    def __init__(self, opening: Callable[[], Any]) -> None:
        self._opening = opening
        self._stream: Any = None
        self._error: BaseException | None = None
        self._dropped = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._open, name="penstock-ahead", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        stream = None
        try:
            stream = self._opening()
            # Streams that open on first use are opened by being asked how long they are.
            getattr(stream, "size_bytes", None)
        except BaseException as error:  # noqa: BLE001 - raised by take()
            self._error = error
        with self._lock:
            self._stream = stream
            if self._dropped or self._error is not None:
                self._close()

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(Exception):
                stream.close()

    def take(self) -> Any:
        """The open stream, which is the caller's from now on."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        stream, self._stream = self._stream, None
        return stream

    def drop(self) -> None:
        """It is not needed after all: closed, now or as soon as it is open."""
        with self._lock:
            self._dropped = True
            self._close()
