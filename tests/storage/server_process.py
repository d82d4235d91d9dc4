"""Runs a server as a process for tests, and waits until it is ready."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from waiting import wait_until

START_S = 60
STOP_S = 5


@contextlib.contextmanager
def running(
    command: list[str],
    folder: Path,
    is_ready: Callable[[], bool],
    environment: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen]:
    """Run a server in ``folder`` while the block runs, from when ``is_ready()`` returns true.

    If it does not start, fail with the end of its log.
    """
    log = folder / "server.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )

    def started() -> str:
        return f"{command[0]} is ready; its log:\n{log.read_text(errors='replace')[-2000:]}"

    def ready_or_ended() -> bool:
        return process.poll() is not None or is_ready()

    try:
        wait_until(ready_or_ended, started, START_S)
        assert process.poll() is None, started()
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def accepts_connections(port: int) -> bool:
    """Return whether a server listens on a port of loopback."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def answers(url: str) -> bool:
    """Return whether a server responds with any status but 503, which means that it starts up."""
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError as refusal:
        return refusal.code != 503
    except OSError:
        return False
    return True
