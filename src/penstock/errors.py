"""Every exception of the library.

::

    PenstockError
    ├── UrlError (ValueError)          a URL, pattern or list that names no shards
    ├── StorageError (OSError)         bytes could not be read from, or written to, a place
    ├── ShardError (ValueError)        a shard is damaged, cut, or not a tar file
    │   ├── DuplicateError             a key or field that stands twice in a shard
    │   └── StaleIndexError            an index that does not fit the shard that is there
    ├── SampleError (ValueError)       a sample lacks a field, or has one of the wrong kind
    ├── DecodingError (ValueError)     the bytes of a field are not what its extension says
    ├── WriteError (ValueError)        a sample that cannot be written
    ├── PipelineError (ValueError)     stages that do not fit, or an argument that cannot work
    │   ├── UnknownKeyError (KeyError) a key that neither the data nor an item provides
    │   └── CircularDependencyError    items that need one another in a circle
    ├── ManifestError (ValueError)     a manifest that cannot be read, or a row that cannot be used
    ├── StateError (ValueError)        a saved state that does not fit this pipeline or data
    ├── UnsafeError (ValueError)       data asked for something that only code may allow
    └── MissingPackage (ImportError)   an optional package is needed; the message names the extra

    ShardWarning (UserWarning)         something odd about a shard that does not stop the reading

Every message follows one form: rule, value, remedy, and at the end where it happened:
``(URL, sample 'KEY' at byte N)``. All classes can be made from one string, because
that is how an exception comes back from another process.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from penstock.redact import named, shown


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Where a sample comes from: its shard's URL, its key, the byte its first header stands at.

    Passwords and signatures of the URL are left out.

    >>> str(Origin("train-0.tar", "n01_3", 40960))
    "train-0.tar, sample 'n01_3' at byte 40960"
    """

    url: str
    key: str | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", named(self.url))

    def __str__(self) -> str:
        text = shown(self.url)
        if self.key is not None:
            text += f", sample {self.key!r}"
        if self.offset is not None:
            text += f" at byte {self.offset}" if self.key is not None else f", byte {self.offset}"
        return text


def at(message: str, origin: Origin | None) -> str:
    """The message with the origin behind it, where one is known."""
    return f"{message} ({origin})" if origin is not None else message


class PenstockError(Exception):
    """The root of all errors that the library raises on purpose."""

    place: int | None = None
    """Which sample of a batch it was, where only that is known."""

    def __init__(self, message: str = "", *, origin: Origin | None = None) -> None:
        super().__init__(at(message, origin))
        self.message, self.origin = message, origin

    def locate(self, origin: Origin) -> None:
        """Say where it happened, when that becomes known only later."""
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
    """Bytes could not be read from, or written to, a place."""


class ShardError(PenstockError, ValueError):
    """A shard is damaged, cut, or not a tar file."""


class DuplicateError(ShardError):
    """A key or a field stands twice in a shard."""


class StaleIndexError(ShardError):
    """An index says something else about a shard than what is there."""


class SampleError(PenstockError, ValueError):
    """A sample lacks a field, or has one of the wrong kind."""


class DecodingError(PenstockError, ValueError):
    """The bytes of a field are not what its extension says.

    ``key`` is the sample's key, ``url`` its shard, ``k`` the field.
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


class WriteError(PenstockError, ValueError):
    """A sample that cannot be written."""


class PipelineError(PenstockError, ValueError):
    """Stages that do not fit together, or an argument that cannot work."""


class UnknownKeyError(PipelineError, KeyError, RuntimeError):
    """A key that is in the data of no row, or not of this one, and that no item provides.

    It is a KeyError as for a dict, and a RuntimeError because SpeechBrain's programs expect one.
    """

    __str__ = Exception.__str__  # a KeyError would show the message in quotes


class CircularDependencyError(PipelineError):
    """Items that need one another in a circle."""


class ManifestError(PenstockError, ValueError):
    """A manifest that cannot be read, or one of its rows that cannot be used."""


class StateError(PenstockError, ValueError):
    """A saved state that does not fit this pipeline or data."""


class UnsafeError(PenstockError, ValueError):
    """Data asked for something that only code may allow."""


class MissingPackage(PenstockError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> MissingPackage:
        """The one form of this message: what needs which package, and how to get it.

        >>> print(MissingPackage.of("decoding .mp4", "av", "video"))
        decoding .mp4 needs the package 'av': pip install 'penstock[video]'
        """
        return cls(f"{what} needs the package {package!r}: pip install 'penstock[{extra}]'")


class ShardWarning(UserWarning):
    """Something odd about a shard that does not stop the reading."""
