"""Identify a function's code by a short text that changes when the code does.

It covers the compiled code, constants, defaults, values of the closure, and those globals of the
same module that the function uses: functions, classes and plain values. A change in another module
is not detected; use ``version=`` for that. Comments and line numbers do not matter.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def identify(function: Any) -> str:
    """Return the name of the function and a hash of its code.

    >>> identify(lambda x: x + 1) == identify(lambda x: x + 1)
    True
    >>> identify(lambda x: x + 1) == identify(lambda x: x + 2)
    False
    """
    digest = hashlib.sha256()
    for text in _Described().describe(function):
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    return f"{name_of(function)} {digest.hexdigest()[:16]}"


def name_of(function: Any) -> str:
    """Return a readable name of the function."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


class _Described:
    """Describes values as texts; each function and object once, so that cycles end."""

    def __init__(self) -> None:
        self._seen: list[Any] = []  # kept alive, so that no id is reused

    def describe(self, value: Any, module: str | None = None) -> Iterator[str]:
        if isinstance(value, _PLAIN):
            yield repr(value)
        elif isinstance(value, types.CodeType):
            yield from self._code(value, module)
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield type(value).__name__
            ordered = isinstance(value, (list, tuple))
            for item in value if ordered else sorted(value, key=repr):
                yield from self.describe(item, module)
        elif isinstance(value, Mapping):
            for key in value:
                yield repr(key)
                yield from self.describe(value[key], module)
        elif any(value is one for one in self._seen):
            yield "seen"
        else:
            self._seen.append(value)
            yield from self._object(value, module)

    def _object(self, value: Any, module: str | None) -> Iterator[str]:
        if isinstance(value, functools.partial):
            yield "partial"
            yield from self.describe([value.func, value.args, dict(value.keywords)], module)
        elif isinstance(value, types.MethodType):
            yield from self.describe([value.__func__, value.__self__], module)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif inspect.isclass(value):
            yield from self._class(value)
        elif inspect.isroutine(value) or inspect.ismodule(value):
            yield str(getattr(value, "__name__", value))
        else:
            yield f"{type(value).__module__}.{type(value).__qualname__}"
            attributes = getattr(value, "__dict__", None)
            if callable(value) or type(value).__module__.startswith("penstock"):
                if not type(value).__module__.startswith("penstock"):
                    yield from self.describe(type(value), module)
                yield from self.describe(attributes or {}, module)
            else:
                yield _ADDRESS.sub("", repr(value))

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        yield from self._code(function.__code__, function.__module__)
        yield from self.describe([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                yield from self.describe(cell.cell_contents)
            except ValueError:
                yield "an empty cell"
        for name in _names(function.__code__):
            used = function.__globals__.get(name)
            own = getattr(used, "__module__", None) == function.__module__
            if isinstance(used, _PLAIN) and name in function.__globals__:
                yield f"{name}={used!r}"
            elif own and (inspect.isclass(used) or inspect.isroutine(used)):
                yield from self.describe(used)

    def _class(self, cls: type) -> Iterator[str]:
        yield f"{cls.__module__}.{cls.__qualname__}"
        for name, member in sorted(vars(cls).items()):
            member = getattr(member, "__func__", member)
            member = getattr(member, "fget", member)
            if isinstance(member, (types.FunctionType, *_PLAIN)) and name not in _NO_CODE:
                yield name
                yield from self.describe(member)

    def _code(self, code: types.CodeType, module: str | None) -> Iterator[str]:
        yield code.co_code.hex()
        yield repr((code.co_names, code.co_varnames, code.co_argcount))
        for constant in code.co_consts:
            yield from self.describe(constant, module)


_NO_CODE = ("__doc__", "__module__", "__qualname__", "__firstlineno__")


def _names(code: types.CodeType) -> list[str]:
    """Return the names that code uses, including nested code."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(dict.fromkeys(_names(constant)))
    return list(names)
