"""Programs whose stderr is a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess


def run_at_terminal(command: list[str], columns: int) -> tuple[str, bytes]:
    """Return what a program prints to a terminal as its stderr, and its stdout."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux raises one at the end
        while part := os.read(ours, 4096):  # never more than 4,095 bytes
            shown += part
    os.close(ours)
    printed, _ = process.communicate()
    assert process.returncode == 0, shown
    return shown.decode(), printed
