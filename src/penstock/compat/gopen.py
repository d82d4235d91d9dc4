"""``webdataset.gopen``: opening URLs. Lives in :mod:`penstock.storage`.

In WebDataset ``gopen`` is a function and also the module that defines it. Here the module is
callable, so that ``penstock.gopen(url)`` and ``from penstock.gopen import rewrite_url`` both work.
A function that a program assigns to the module's ``gopen`` opens the shards.
"""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

from penstock.compat.left_out import LeftOut, WarningModule
from penstock.errors import Origin, PipelineError, SchemeError
from penstock.stages.reading import tar_samples
from penstock.storage import gopen, gopen_schemes
from penstock.storage.local.files import open_file
from penstock.storage.local.pipes import TIMEOUT_S, open_pipe
from penstock.storage.schemes import BUFFER_BYTES
from penstock.storage.urls import rewrite_url

PIPE = subprocess.PIPE
info: dict[str, Any] = {}

gopen_ais = LeftOut("gopen_ais")
gopen_curl = LeftOut("gopen_curl")
gopen_gsutil = LeftOut("gopen_gsutil")
gopen_hf = LeftOut("gopen_hf")
gopen_htgs = LeftOut("gopen_htgs")
set_options = LeftOut("set_options")


class Pipe:
    """The output of a command (``mode="rb"``) or its input (``"wb"``) as a stream.

    The command is a shell command or a list of arguments. ``ignore_status`` are exit statuses that
    count as success; with ``ignore_errors`` all do. ``env`` and ``cwd`` are the command's
    environment and folder. Attributes that are not defined here are those of ``stream``.

    >>> with Pipe("echo hello", mode="rb", shell=True) as stream:
    ...     stream.read()
    b'hello\\n'
    """

    def __init__(
        self,
        *args: str | Sequence[str],
        mode: str | None = None,
        timeout: float | None = TIMEOUT_S,
        ignore_errors: bool = False,
        ignore_status: Iterable[int] = (),
        shell: bool = False,
        bufsize: int = -1,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        if len(args) != 1 or mode is None or mode[0] not in "rw":
            raise PipelineError(
                f"Pipe takes one command and mode='rb' or 'wb', not {args}, {mode!r}"
            )
        self.args = (args, {"shell": shell, "bufsize": bufsize})
        self.timeout, self.ignore_errors, self.ignore_status = timeout, ignore_errors, ignore_status
        command = args[0] if isinstance(args[0], str) else shlex.join(args[0])
        good = range(256) if ignore_errors else ignore_status
        options: dict[str, Any] = {
            "ignore_status": good,
            "timeout": timeout,
            "env": env,
            "cwd": cwd,
        }
        self.stream: Any = open_pipe(f"pipe:{command}", f"{mode[0]}b", bufsize, **options)

    def read(self, *args: Any) -> Any:
        """Read from the command; its exit status is checked at the end of its output."""
        return self.stream.read(*args)

    def write(self, *args: Any) -> Any:
        """Write to the command."""
        return self.stream.write(*args)

    def close(self) -> None:
        """Close the stream; a command that is written to is waited for and its status checked."""
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and hasattr(self.stream, "abort"):
            self.stream.abort()
        else:
            self.close()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.stream)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":  # not open
            raise AttributeError(name)
        return getattr(self.stream, name)


def gopen_file(url: str, mode: str = "rb", bufsize: int = BUFFER_BYTES) -> Any:
    """Open a local file or ``file:`` URL."""
    return open_file(url, mode, bufsize)


def gopen_pipe(url: str, mode: str = "rb", bufsize: int = BUFFER_BYTES) -> Any:
    """Open the command of a ``pipe:`` URL."""
    return open_pipe(url, mode, bufsize)


def gopen_error(url: str, *args: Any, **kw: Any) -> NoReturn:
    """Raise a SchemeError: the opener for unknown schemes."""
    raise SchemeError("no gopen handler defined", origin=Origin(url))


def reader(url: str, **kw: Any) -> Any:
    """Open a URL for reading."""
    return gopen(url, "rb", **kw)


class CallableModule(WarningModule):
    """A module that can be called like its function of the same name."""

    def __call__(self, url: Any, mode: str = "rb", bufsize: int = BUFFER_BYTES, **kw: Any) -> Any:
        return _library_gopen(url, mode, bufsize, **kw)

    def __reduce__(self) -> Any:  # a stage that holds it must be picklable
        return (importlib.import_module, ("penstock.gopen",))


_library_gopen = gopen


def find_assigned_gopen() -> Any:
    """Return the function that a program has assigned to ``gopen``, or None."""
    return None if gopen is _library_gopen else gopen


if __name__ == "penstock.gopen":  # not for a second copy, imported from penstock.compat
    tar_samples.find_assigned_gopen = find_assigned_gopen
sys.modules[__name__].__class__ = CallableModule

__all__ = [
    "PIPE",
    "Pipe",
    "gopen",
    "gopen_ais",
    "gopen_curl",
    "gopen_error",
    "gopen_file",
    "gopen_gsutil",
    "gopen_hf",
    "gopen_htgs",
    "gopen_pipe",
    "gopen_schemes",
    "info",
    "reader",
    "rewrite_url",
    "set_options",
]
