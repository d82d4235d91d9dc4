"""The handlers a decoder is made of.

A handler is any function of ``(key, data)``: ``key`` is the field's name with a dot before it
(``".seg.png"``), ``data`` its bytes. It returns the value; or None for "not mine, ask the next";
or :class:`Continue` to hand on another key and other data.

The handlers here also say beforehand which keys they care about, so that a decoder asks each
of them once per field name and not once per sample. Two optional methods do that:
``matches(key)`` is false when the handler would return None for any data, and ``for_key(key)``
is the one function that reads such fields (or None), whose result counts whatever it is.
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
    """What a handler returns to let the next ones go on with another key and other data."""

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
    """``f(data)`` if the key ends with one of the extensions, else None.

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
    """A handler that gives the bytes of fields with these extensions to ``f``.

    Whole components of the name are compared, from the end and in any case: ``"seg.jpg"`` is for
    ``left.seg.jpg`` and not for ``jpg``. A dot in front (``".png"``) is welcome.
    If ``f`` returns None the next handler is asked.

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
    """Unpacks ``.gz`` fields and hands them on under the name without it."""

    def matches(self, key: str) -> bool:
        return key.endswith(".gz")

    def __call__(self, key: str, data: bytes) -> Continue | None:
        return Continue(key[:-3], gunzip(data)) if self.matches(key) else None

    def __repr__(self) -> str:
        return "gzfilter"


@dataclasses.dataclass(frozen=True)
class BasicHandlers:
    """Reads what ``DECODERS`` lists, by the last component of the key."""

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
