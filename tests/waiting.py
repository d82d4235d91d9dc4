"""Waiting for what another thread or process does: with a time limit, and a message after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

PAUSE_S = 0.005


def wait_until(
    condition: Callable[[], object], what: str | Callable[[], str], limit_s: float = 60.0
) -> None:
    """Return as soon as ``condition()`` is true; fail with ``what`` was expected after ``limit_s``.

    ``what`` may be a function, for a description made when the wait has failed.
    """
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            expected = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {limit_s:g} s: {expected}")
        time.sleep(PAUSE_S)


def wait_for_threads(prefix: str) -> None:
    """Return when no thread of this process has a name that begins with ``prefix``."""

    def running() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.startswith(prefix)]

    wait_until(lambda: not running(), lambda: f"{running()} end")


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
