"""The native module: decode, crop, resize and write in one pass, in C on libjpeg-turbo.

Optional: without it, wheels from PyPI do the same at about half the speed. ``pip install`` of a
checkout or a source distribution compiles it into the package if a C compiler and
libjpeg-turbo's headers are installed (``tools/native_wheel.py``); ``penstock native build``
compiles it into the user's cache folder. It is loaded through ctypes, so it needs no Python
headers, releases the GIL, and fits any Python version. Nothing is built at import.
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
CODES = SOURCE.with_name("huffman.h")  # included by SOURCE
_COMPILED = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
_COMPILED += ["-fno-math-errno", "-fno-trapping-math"]  # allows vectorisation
_COMPILED += ["-fno-fast-math", "-ffp-contract=off"]  # the same pixels from every build
_COMPILED += ["-Wl,-rpath,$ORIGIN"]  # libjpeg may be in the same folder
# First with libjpeg linked statically, so that the file works without an installed libjpeg; some,
# such as Debian's, cannot be linked into a shared object. Last for compilers that cannot compile
# for several processors.
_LINKED = (
    ["-Wl,-Bstatic", "-ljpeg", "-Wl,-Bdynamic", "-Wl,--exclude-libs,ALL", "-lm"],
    ["-ljpeg", "-lm"],
    ["-DONE_PROCESSOR", "-ljpeg", "-lm"],
)
_HASHED = SOURCE.read_bytes() + CODES.read_bytes() + " ".join(_COMPILED).encode()
SOURCE_HASH = hashlib.sha256(_HASHED).hexdigest()[:12]
BUNDLED = SOURCE.with_name(f"picture-{SOURCE_HASH}.so")
"""The module inside the package, if the installation compiled it. Its name contains the hash of the
source and the options, so that a module of an older source is never loaded."""
NEEDS = "it needs a C compiler and libjpeg-turbo's headers (Debian: gcc, libjpeg-dev)"


def path() -> Path:
    """Return where the module for this source and this machine is, or would be.

    That is the file that ``PENSTOCK_NATIVE`` names, else the one built into the cache folder, else
    the one inside the package.

    >>> path().suffix
    '.so'
    """
    built = _cache_path()
    if built.exists() or _user_path() is not None or not BUNDLED.exists():
        return built
    return BUNDLED


def _user_path() -> str | None:
    """Return the file that ``PENSTOCK_NATIVE`` names, or None."""
    return env.text("PENSTOCK_NATIVE") if env.flag("PENSTOCK_NATIVE") else None


def _cache_path() -> Path:
    """Return where ``penstock native build`` puts it. The name contains the source's hash."""
    if (given := _user_path()) is not None:
        return Path(given)
    cache = env.text("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = f"picture-{SOURCE_HASH}-{sys.platform}-{platform.machine()}.so"
    return Path(cache, "penstock", name)


def build(to: str | os.PathLike[str] | None = None) -> Path:
    """Compile the module with ``$CC`` or ``cc``, use it from then on, and return its path.

    Raises a PipelineError with the compiler's message if that fails.
    """
    target = Path(to) if to is not None else _cache_path()
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
                    f"the native module cannot be built: {error}; {NEEDS}"
                ) from error
            words = done.stderr.strip()
            if done.returncode == 0:
                open_module(made)  # check it before others can load it
                os.replace(made, target)  # atomic
                forget()
                return target
    raise PipelineError(f"the native module cannot be built; {NEEDS}. {compiler[0]} says: {words}")


class NativeBatch(NamedTuple):
    """The functions for many images in one call. They take an array of jobs and its length."""

    look: Any
    jpegs: Any
    crops: Any
    """Also takes the parameters of a random crop."""
    begin: Any
    """Also takes a number of threads, which execute jobs from the end. Returns a batch."""
    behind: Any
    """Takes a batch. Returns the index after the last job that no thread has taken."""
    take: Any
    """Takes a batch and a count. Takes up to that many jobs from the front; returns how many."""
    end: Any
    """Takes a batch and whether to help. Waits for its threads; returns the first job they took."""


def open_module(file: Path) -> ctypes._NamedFuncPointer:
    """Return the function of a built module. Raise PipelineError if it cannot be loaded."""
    return _open(file)[0]


def _open(file: Path) -> tuple[ctypes._NamedFuncPointer, NativeBatch]:
    try:
        library = ctypes.CDLL(str(file))
        function = library.penstock_jpeg
        many = NativeBatch._make(
            getattr(library, f"penstock_{name}") for name in NativeBatch._fields
        )
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
    """Return the module's function, or None if it is not built or ``PENSTOCK_NATIVE=0`` is set."""
    file = _find()
    return None if file is None else _open(file)[0]


@functools.cache
def load_many() -> NativeBatch | None:
    """Return the functions for many images, or None if :func:`load` returns None."""
    file = _find()
    return None if file is None else _open(file)[1]


def _find() -> Path | None:
    if env.text("PENSTOCK_NATIVE") is not None and not env.flag("PENSTOCK_NATIVE"):
        return None
    file = path()
    return file if file.exists() else None


def forget() -> None:
    """Search for the module again at its next use."""
    load.cache_clear()
    load_many.cache_clear()
