"""Free ports for test servers, which several test processes start at the same time."""

from __future__ import annotations

import contextlib
import os
import socket

FIRST, SPAN, GRPC = 12000, 9000, 10000


def free_ports(count: int) -> list[int]:
    """Return free ports p for which p + 10000, which SeaweedFS uses too, is also free.

    They are below the kernel's ephemeral ports, so that no client takes one before the server
    starts. Each process starts its search at a different port.
    """
    found: list[int] = []
    for step in range(SPAN):
        if len(found) == count:
            return found
        candidate = FIRST + (os.getpid() * 37 + step) % SPAN
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in (candidate, candidate + GRPC):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", port))
            found.append(candidate)
    raise RuntimeError("no free ports")
