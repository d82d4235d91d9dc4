"""The handlers of a decoder.

A handler is any function of ``(key, data)``: ``key`` is the field's name with a dot before it
(``".seg.png"``), ``data`` its bytes. It returns the value, or None to pass the field to the next
handler, or :class:`Continue` to pass another key and other data to the next handler.

Two optional methods let a decoder decide once per field name instead of once per sample:
``matches(key)`` returns False if the handler would return None for any data, and ``for_key(key)``
returns the function that reads such fields (or None), whose result is final.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from penstock.codecs.gzip_fields import gunzip
from penstock.codecs.registry import ANY_PICKLE, DECODERS
from penstock.errors import PipelineError

Handler = Callable[[str, bytes], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Continue:
    """A handler's result that passes another key and other data to the next handlers."""

    key: str
    data: Any


def _components(extensions: str | Sequence[str]) -> tuple[tuple[str, ...], ...]:
    names = extensions.split() if isinstance(extensions, str) else list(extensions)
    return tuple(tuple(name.lower().lstrip(".").split(".")) for name in names)


def _ends_with(key: str, extensions: tuple[tuple[str, ...], ...]) -> bool:
    parts = tuple(key.lower().split("."))
    return any(parts[-len(extension) :] == extension for extension in extensions)


def call_extension_handler(
    key: str, data: Any, f: Callable[[Any], Any], extensions: str | Sequence[str]
) -> Any:
    """Return ``f(data)`` if the key ends with one of the extensions, else None.

    >>> call_extension_handler(".left.seg.png", b"abc", len, "seg.png")
    3
    """
    return f(data) if _ends_with(key, _components(extensions)) else None


@dataclasses.dataclass(frozen=True)
class ExtensionHandler:
    """Calls ``f(data)`` for keys that end with one of the extensions."""

    extensions: tuple[tuple[str, ...], ...]
    f: Callable[[Any], Any]

    def matches(self, key: str) -> bool:
        return _ends_with(key, self.extensions)

    def __call__(self, key: str, data: Any) -> Any:
        return self.f(data) if self.matches(key) else None

    def __repr__(self) -> str:
        names = " ".join(".".join(extension) for extension in self.extensions)
        return f"handle_extension({names!r}, {getattr(self.f, '__qualname__', self.f)})"


def handle_extension(extensions: str | Sequence[str], f: Callable[[Any], Any]) -> ExtensionHandler:
    """Return a handler that calls ``f`` with the bytes of fields with these extensions.

    Whole components of the name are compared, from the end and case-insensitively: ``"seg.jpg"``
    matches ``left.seg.jpg`` and not ``jpg``. A leading dot (``".png"``) is allowed.
    If ``f`` returns None the next handler is called.

    >>> handler = handle_extension("jpg .jpeg", len)
    >>> handler(".jpeg", b"abc"), handler(".png", b"abc")
    (3, None)
    """
    components = _components(extensions)
    if not components or not callable(f):
        raise PipelineError(
            "handle_extension takes extensions and a function of the bytes,"
            f" not ({extensions!r}, {f!r})"
        )
    return ExtensionHandler(components, f)


@dataclasses.dataclass(frozen=True)
class GzFilter:
    """Decompresses ``.gz`` fields and passes them on under the name without it."""

    def matches(self, key: str) -> bool:
        return key.endswith(".gz")

    def __call__(self, key: str, data: bytes) -> Continue | None:
        return Continue(key[:-3], gunzip(data)) if self.matches(key) else None

    def __repr__(self) -> str:
        return "gzfilter"


@dataclasses.dataclass(frozen=True)
class BasicHandlers:
    """Decodes the extensions in ``DECODERS``, by the last component of the key."""

    allow_pickle: bool = False

    def for_key(self, key: str) -> Callable[[bytes], Any] | None:
        extension = key.rpartition(".")[2]
        if self.allow_pickle and extension in ANY_PICKLE:
            return ANY_PICKLE[extension]
        return DECODERS.get(extension)

    def __call__(self, key: str, data: bytes) -> Any:
        read = self.for_key(key)
        return None if read is None else read(data)

    def __repr__(self) -> str:
        return f"basichandlers{'(allow_pickle=True)' if self.allow_pickle else ''}"


gzfilter = GzFilter()
basichandlers = BasicHandlers()
