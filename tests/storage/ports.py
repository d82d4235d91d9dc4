"""Ports for servers of the tests, which several test processes start at the same time."""

from __future__ import annotations

import contextlib
import os
import socket

FIRST, SPAN, GRPC = 12000, 9000, 10000


def free_ports(count: int) -> list[int]:
    """Free ports, each with room for the servers' habit of adding 10000.

    They lie below those that the kernel gives to clients, so that none is taken between here and
    the server's start; each process begins its search somewhere else.
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
