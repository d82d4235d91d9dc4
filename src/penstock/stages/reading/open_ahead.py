"""Opens the next shard while the current one is read, so that its first bytes arrive early."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

OPEN_AHEAD_BYTES = 32 << 20
"""The next shard is opened when this much of the current one is left."""


class OpenedAhead:
    """A stream that a thread opens. ``take()`` waits for it, and raises an error of the opening.

    >>> import io
    >>> OpenedAhead(lambda: io.BytesIO(b"hello")).take().read()
    b'hello'
    """

    def __init__(self, opening: Callable[[], Any]) -> None:
        self._opening = opening
        # Not Thread.join(): a thread of a forked process can hang in native code when it ends.
        self._opened: Future[Any] = Future()
        threading.Thread(target=self._open, name="penstock-ahead", daemon=True).start()

    def _open(self) -> None:
        stream = None
        try:
            stream = self._opening()
            # Reading the length opens streams that are opened on first use.
            getattr(stream, "size_bytes", None)
            self._opened.set_result(stream)
        except BaseException as error:  # noqa: BLE001 - raised by take()
            _close(stream)
            self._opened.set_exception(error)

    def take(self) -> Any:
        """Return the open stream, which the caller must close."""
        return self._opened.result()

    def drop(self) -> None:
        """Close the stream now, or as soon as it is open."""
        self._opened.add_done_callback(lambda opened: _close(opened.exception() or opened.result()))


def _close(stream: Any) -> None:
    with contextlib.suppress(Exception):  # including an exception instead of a stream
        stream.close()
