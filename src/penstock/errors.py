"""Every exception of the library.

::

    PenstockError
    ├── UrlError (ValueError)          a URL, pattern or list that names no shards
    ├── StorageError (OSError)         bytes could not be read from, or written to, storage
    │   └── SchemeError (ValueError)   nothing opens URLs of this scheme
    ├── ShardError (ValueError, tarfile.ReadError)  a shard is damaged, cut, or not a tar file
    │   ├── DuplicateError             a key or field that occurs twice in a shard
    │   └── StaleIndexError            an index that does not match the shard
    ├── SampleError (ValueError)       a sample lacks a field, or has one of the wrong kind
    │   └── ShapeError (IndexError, OSError)  samples whose shapes cannot form one batch
    ├── DecodingError (ValueError)     the bytes of a field are not what its extension says
    │   └── SoundError (RuntimeError)  a sound file that cannot be read
    ├── WriteError (ValueError)        a sample that cannot be written
    ├── PipelineError (ValueError)     stages that do not fit, or an argument that cannot work
    │   ├── UnsupportedError (NotImplementedError)  a choice that the library does not offer
    │   ├── UnknownKeyError (KeyError) a key that neither the data nor an item provides
    │   ├── UnknownLengthError (TypeError)  len() of a pipeline that does not know its length
    │   └── CircularDependencyError    items that need one another in a circle
    ├── ManifestError (ValueError)     a manifest that cannot be read, or a row that cannot be used
    │   └── ReplacementError (KeyError)  a placeholder in a manifest without a replacement
    ├── StateError (ValueError)        a saved state that does not fit this pipeline or data
    ├── UnsafeError (ValueError)       data requests something that only code may allow
    └── MissingPackage (ImportError)   an optional package is needed; the message names the extra

    ShardWarning (UserWarning)         something unusual about a shard that does not stop reading

Every message follows one form: rule, value, remedy, and at the end where it happened:
``(URL, sample 'KEY' at byte N)``. All classes can be constructed from one string, because that is
how an exception is rebuilt when it comes from another process.

The classes in parentheses are those that programs written for WebDataset or SpeechBrain catch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

from penstock.redact import canonical_url, describe_beginning, redact


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where a sample comes from: its shard's URL, its key, and the byte offset of its first header.

    Passwords and signatures are removed from the URL.

    >>> str(Origin("train-0.tar", "n01_3", 40960))
    "train-0.tar, sample 'n01_3' at byte 40960"
    """

    url: str
    key: str | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", canonical_url(self.url))

    def __str__(self) -> str:
        text = redact(self.url)
        if self.key is not None:
            text += f", sample {self.key!r}"
        if self.offset is not None:
            text += f" at byte {self.offset}" if self.key is not None else f", byte {self.offset}"
        return text


def at(message: str, origin: Origin | None) -> str:
    """Return the message, followed by the origin if one is known."""
    return f"{message} ({origin})" if origin is not None else message


class PenstockError(Exception):
    """Base class of all errors that the library raises on purpose."""

    place: int | None = None
    """The index of the sample in its batch, if no more than that is known."""

    def __init__(self, message: str = "", *, origin: Origin | None = None) -> None:
        super().__init__(at(message, origin))
        self.message, self.origin = message, origin

    def locate(self, origin: Origin) -> None:
        """Set the origin after the error was created."""
        self.origin = origin
        self.args = (at(self.message, origin),)

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(
    cls: type[PenstockError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> PenstockError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class UrlError(PenstockError, ValueError):
    """A URL, pattern or list that cannot be understood or matches nothing."""


class StorageError(PenstockError, OSError):
    """Bytes could not be read from, or written to, storage."""


class SchemeError(StorageError, ValueError):
    """Nothing opens URLs of this scheme."""


class ShardError(PenstockError, ValueError, tarfile.ReadError):
    """A shard is damaged, cut, or not a tar file."""


class DuplicateError(ShardError):
    """A key or a field occurs twice in a shard."""


class StaleIndexError(ShardError):
    """An index does not match its shard."""


class SampleError(PenstockError, ValueError):
    """A sample lacks a field, or has one of the wrong kind."""


class ShapeError(SampleError, IndexError, OSError):
    """Samples whose shapes cannot form one batch."""

    # The inherited __new__ is ValueError's, which cannot create an OSError.
    __new__ = OSError.__new__  # type: ignore[assignment]


class DecodingError(PenstockError, ValueError):
    """The bytes of a field are not what its extension says.

    ``key`` is the sample's key, ``url`` its shard, ``k`` the field, and ``sample`` the sample that
    failed (None after the error has come from another process).
    """

    def __init__(
        self,
        message: str = "",
        *,
        origin: Origin | None = None,
        url: Any = None,
        key: Any = None,
        k: Any = None,
        sample: Any = None,
    ) -> None:
        if origin is None and url is not None:
            origin = Origin(str(url), key)
        super().__init__(message, origin=origin)
        self.url, self.key, self.k, self.sample = url, key, k, sample

    def __reduce__(self) -> Any:
        # Without the sample, which may be large and may hold anything.
        return (_rebuild, (type(self), self.args, {**self.__dict__, "sample": None}))


class SoundError(DecodingError, RuntimeError):
    """A sound file that cannot be read."""


class WriteError(PenstockError, ValueError):
    """A sample that cannot be written."""


class PipelineError(PenstockError, ValueError):
    """Stages that do not fit together, or an argument that cannot work."""


class UnsupportedError(PipelineError, NotImplementedError):
    """A choice that the library does not offer."""


class UnknownLengthError(PipelineError, TypeError, AttributeError):
    """A pipeline whose number of items is not known.

    A TypeError, as ``len()`` raises it, and an AttributeError, so that ``hasattr(x, "__len__")`` is
    False.
    """


class UnknownKeyError(PipelineError, KeyError, RuntimeError):
    """A key that neither the data of this row nor a dynamic item provides.

    It is a KeyError as for a dict, and a RuntimeError because SpeechBrain programs expect one.
    """

    __str__ = Exception.__str__  # a KeyError would show the message in quotes


class CircularDependencyError(PipelineError):
    """Items that need one another in a circle."""


class ManifestError(PenstockError, ValueError):
    """A manifest that cannot be read, or one of its rows that cannot be used."""


class ReplacementError(ManifestError, KeyError):
    """A placeholder in a manifest for which no replacement was given."""

    __str__ = Exception.__str__  # a KeyError would show the message in quotes


class StateError(PenstockError, ValueError):
    """A saved state that does not fit this pipeline or data, or a damaged plan of a job."""


class UnsafeError(PenstockError, ValueError):
    """Data requests something that only code may allow."""


class MissingPackage(PenstockError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> MissingPackage:
        """Return the error that says what needs which package, and how to install it.

        >>> print(MissingPackage.of("decoding .mp4", "av", "video"))
        decoding .mp4 needs the package 'av': pip install ...[video]'
        """
        install = f"pip install {package}" if package in _IN_NO_EXTRA else pip_install(extra)
        return cls(f"{what} needs the package {package!r}: {install}")


def optional(module: str, extra: str, what: str) -> Any:
    """Import and return a module of an optional package, or raise :class:`MissingPackage`.

    ``extra`` installs the package; ``what`` says what needs it.

    >>> optional("json", "none", "reading JSON").loads("[1]")
    [1]
    >>> optional("no_such_module", "video", "decoding .mp4")
    Traceback (most recent call last):
    penstock.errors.MissingPackage: decoding .mp4 needs the package 'no_such_module': pip ...
    """
    name = module.partition(".")[0]
    try:
        if sys.modules.get(name) is None:
            importlib.import_module(name)
        return sys.modules.get(module) or importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage.of(what, _PACKAGES.get(name, name), extra) from error


_PACKAGES = {"PIL": "pillow", "yaml": "pyyaml", "google": "google-auth"}
"""Top-level module → the name of its package, where they differ."""


_IN_NO_EXTRA = {"lz4"} if sys.version_info >= (3, 14) else set[str]()
"""Packages without wheels for free-threaded builds, which the extra leaves out (decision 0019)."""


def pip_install(extra: str) -> str:
    """Return the command that installs an extra: of this checkout, or else of the release."""
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.exists(os.path.join(checkout, "pyproject.toml")):
        return f"pip install 'penstock[{extra}]'"
    here = os.path.relpath(checkout) if os.path.splitdrive(checkout)[0] == "" else checkout
    return f"pip install -e '{min(here, checkout, key=len)}[{extra}]'"


def describe_cause(error: Exception, data: Any = None) -> str:
    """Describe why data could not be read: by its first bytes if they show it, else by the error.

    >>> describe_cause(ValueError("bad"), b"<html>Not found"), describe_cause(ValueError("bad"))
    ("it begins with '<html>'", 'ValueError: bad')
    """
    if isinstance(data, bytes) and (not data or _PAGE.match(data)):
        return f"it {describe_beginning(data)}"
    words = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    return _ADDRESS.sub("", _STREAM.sub("the data", words))


_PAGE = re.compile(rb"\s*<(!doctype|html|\?xml|head|body|error)\b", re.IGNORECASE)
_STREAM = re.compile(r"<_io\.\w+ object at 0x[0-9a-f]+>")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


def ran_out(error: BaseException) -> bool:
    """Return whether an error reports that the host or a device ran out of memory.

    Such an error is about the machine, not about a sample, so handlers must not skip it.

    >>> ran_out(MemoryError()), ran_out(RuntimeError("CUDA out of memory")), ran_out(ValueError())
    (True, True, False)
    """
    if isinstance(error, MemoryError):
        return True
    # torch.OutOfMemoryError, and what torch's CPU allocator raises
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower() for words in _OUT_OF_MEMORY
    )


class ShardWarning(UserWarning):
    """Something unusual about a shard that does not stop reading."""


_PARSING = (
    *(OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(RecursionError, NotImplementedError),
)


@contextlib.contextmanager
def parsing(describe: Callable[[str], PenstockError]) -> Iterator[None]:
    """Convert the exceptions of Python and pyarrow for malformed data to an error of ours.

    ``describe`` receives the reason and returns the error. MemoryError passes through, because it
    says nothing about the data.

    >>> with parsing(ManifestError):
    ...     int("x")
    Traceback (most recent call last):
    penstock.errors.ManifestError: ValueError: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except (PenstockError, MemoryError):
        raise
    except RecursionError as error:
        raise describe("values are nested too deep") from error
    except Exception as error:
        from_arrow = type(error).__module__.startswith("pyarrow")  # some share no other base class
        if not (from_arrow or isinstance(error, _PARSING)):
            raise
        raise describe(f"{type(error).__name__}: {error}") from error
