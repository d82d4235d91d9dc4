"""A function in a new process: with a time limit, and killed together with its children."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any
from unittest import mock

SERVER = multiprocessing.get_context("forkserver")
IMPORTED = ["torch", "torchdata.stateful_dataloader", "oracle.trainer"]
LIMIT_S = 60.0
"""How long one process may take."""


class Raised(Exception):
    """What a function raised in its process."""

    def __init__(self, kinds: list[str], text: str, details: str) -> None:
        super().__init__(text)
        self.kinds, self.details = kinds, details

    def __reduce__(self) -> Any:
        return Raised, (self.kinds, str(self), self.details)


class Hung(Exception):
    """A process that did not end in time."""


_servers: dict[int, forkserver.ForkServer] = {}
_starting = threading.Lock()


def _start(process: Any, hash_seed: int) -> None:
    """Start a process in which texts have other hashes than in those of another seed.

    It is forked from a server that has imported everything and has never run a pipeline.
    """
    with _starting, mock.patch.dict(os.environ, PYTHONHASHSEED=str(hash_seed)):
        server = _servers.get(hash_seed)
        if server is None:
            server = _servers[hash_seed] = forkserver.ForkServer()
            server.set_forkserver_preload(IMPORTED)
        with mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
            process.start()


def in_new_process(
    function: Callable[..., Any], *args: Any, limit_s: float = LIMIT_S, hash_seed: int = 0
) -> Any:
    """What a function returns; what it raises comes as :class:`Raised`."""
    receiver, sender = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_run, args=(sender, function, args))
    _start(process, hash_seed)
    sender.close()
    try:
        if not wait([receiver, process.sentinel], limit_s):
            raise Hung(f"{function.__name__} did not return within {limit_s:.0f} s")
        try:
            # A process that has died leaves no result, and its children may hold the pipe open.
            result = receiver.recv() if receiver.poll() else None
        except EOFError:
            result = None
        if result is None:
            process.join()
            raise Raised([], f"the process ended with exit code {process.exitcode}", "")
    finally:
        with suppress(ProcessLookupError):
            if process.pid is not None:
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        receiver.close()
    if isinstance(result, Raised):
        raise result
    return result


def _run(sender: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.setsid()  # one group for all processes that this one starts
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a worker's errors come with the result
    try:
        result = function(*args)
    except BaseException as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text = f"{type(error).__name__}: {error}"
        result = Raised(kinds, text, traceback.format_exc())
    gc.collect()  # loaders let go of their semaphores, which a kill would leave behind
    sender.send(result)
    signal.pause()  # until it is killed: the number of a process that has ended may be another's
