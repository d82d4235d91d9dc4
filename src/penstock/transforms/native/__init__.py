"""The native module: decode, crop, resize and write in one pass, in C on libjpeg-turbo.

Optional and never needed: without it the same is done with wheels, at about half of the speed.
It comes inside a wheel that was made with it (``tools/native_wheel.py``), or is compiled when you
say so (``penstock native build``) with the machine's own compiler and libjpeg into the user's
cache folder. It is loaded through ctypes, so it needs no Python headers, lets other threads run,
and fits any Python. Nothing is ever built at import.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from penstock import env
from penstock.errors import PipelineError

SOURCE = Path(__file__).with_name("picture.c")
CODES = SOURCE.with_name("huffman.h")  # which it includes
BROUGHT = SOURCE.with_name("picture.so")
"""The module that the wheel brought, if it did."""
_COMPILED = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
_COMPILED += ["-fno-math-errno", "-fno-trapping-math"]  # lets the compiler use vectors
_COMPILED += ["-Wl,-rpath,$ORIGIN"]  # libjpeg may lie beside it
# First with libjpeg inside, so that the file also works where there is none; Debian's, for one,
# cannot be put into a shared object. Last for compilers that cannot compile for several processors.
_LINKED = (
    ["-Wl,-Bstatic", "-ljpeg", "-Wl,-Bdynamic", "-Wl,--exclude-libs,ALL", "-lm"],
    ["-ljpeg", "-lm"],
    ["-DONE_PROCESSOR", "-ljpeg", "-lm"],
)
_NEEDS = "it needs a C compiler and libjpeg-turbo's headers (Debian: gcc, libjpeg-dev)"


def path() -> Path:
    """Where the module for this source and this machine is, or would be.

    That is where ``PENSTOCK_NATIVE`` says, else where it was built, else where the wheel put it.

    >>> path().suffix
    '.so'
    """
    built = _built()
    if built.exists() or _named() is not None or not BROUGHT.exists():
        return built
    return BROUGHT


def _named() -> str | None:
    return env.text("PENSTOCK_NATIVE") if env.flag("PENSTOCK_NATIVE") else None


def _built() -> Path:
    """Where it is built; the name tells the source, so that an older build is never loaded."""
    if (given := _named()) is not None:
        return Path(given)
    cache = env.text("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    made_from = hashlib.sha256(SOURCE.read_bytes() + CODES.read_bytes()).hexdigest()[:12]
    return Path(cache, "penstock", f"picture-{made_from}-{sys.platform}-{platform.machine()}.so")


def build(to: str | os.PathLike[str] | None = None) -> Path:
    """Compile the module, by ``$CC`` or ``cc``, and load it from then on; gives its path.

    A PipelineError with the compiler's words where that does not work.
    """
    target = Path(to) if to is not None else _built()
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = (env.text("CC") or "cc").split()
    words = ""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder, target.name)
        for linked in _LINKED:
            command = [*compiler, *_COMPILED, str(SOURCE), "-o", str(made), *linked]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                raise PipelineError(
                    f"the native module cannot be built: {error}; {_NEEDS}"
                ) from error
            words = done.stderr.strip()
            if done.returncode == 0:
                open_module(made)  # before anyone else can load it
                os.replace(made, target)  # whole or not at all
                forget()
                return target
    raise PipelineError(f"the native module cannot be built; {_NEEDS}. {compiler[0]} says: {words}")


class Many(NamedTuple):
    """The functions for many pictures in one call: they take the jobs and how many they are."""

    look: Any
    jpegs: Any
    crops: Any
    """Takes the parameters of a random crop, too."""
    begin: Any
    """Takes a number of threads, too, which make jobs from the end; gives a batch."""
    behind: Any
    """Of a batch: behind the last job that is left."""
    take: Any
    """Of a batch: takes so many jobs from the front; gives how many there were."""
    end: Any
    """Of a batch: waits for its threads, helping or not; gives the first job that they took."""


def open_module(file: Path) -> ctypes._NamedFuncPointer:
    """The function of a built module; a PipelineError where it cannot be loaded."""
    return _opened(file)[0]


def _opened(file: Path) -> tuple[ctypes._NamedFuncPointer, Many]:
    try:
        library = ctypes.CDLL(str(file))
        function = library.penstock_jpeg
        many = Many._make(getattr(library, f"penstock_{name}") for name in Many._fields)
    except (OSError, AttributeError) as error:
        raise PipelineError(
            f"the native module {file} cannot be loaded: {error};"
            " build it again (penstock native build), or delete it"
        ) from error
    text, size = ctypes.c_char_p, ctypes.c_size_t
    function.argtypes = [text, size, text, ctypes.c_void_p, text, size]
    function.restype = ctypes.c_int
    for one in many:
        one.argtypes, one.restype = [ctypes.c_void_p, ctypes.c_int32], None
    many.crops.argtypes = [*many.look.argtypes, text]
    many.begin.argtypes = [*many.look.argtypes, ctypes.c_int32]
    many.behind.argtypes = [ctypes.c_void_p]
    many.begin.restype = ctypes.c_void_p
    many.behind.restype = many.take.restype = many.end.restype = ctypes.c_int32
    return function, many


@functools.cache
def load() -> ctypes._NamedFuncPointer | None:
    """The module's function, or None where it was not built or ``PENSTOCK_NATIVE=0`` is set."""
    file = _file()
    return None if file is None else _opened(file)[0]


@functools.cache
def load_many() -> Many | None:
    """The module's functions for many pictures at once, or None where :func:`load` gives None."""
    file = _file()
    return None if file is None else _opened(file)[1]


def _file() -> Path | None:
    if env.text("PENSTOCK_NATIVE") is not None and not env.flag("PENSTOCK_NATIVE"):
        return None
    file = path()
    return file if file.exists() else None


def forget() -> None:
    """Look for the module anew when it is asked for next."""
    load.cache_clear()
    load_many.cache_clear()
