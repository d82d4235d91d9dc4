"""The decoder: a sample of bytes in, a sample of values out."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock import env
from penstock.codecs.field_handlers import (
    BasicHandlers,
    Continue,
    GzFilter,
    Handler,
    basichandlers,
    gzfilter,
)
from penstock.codecs.image_specs import ImageHandler
from penstock.codecs.registry import DECODERS
from penstock.errors import (
    DecodingError,
    MissingPackage,
    PenstockError,
    PipelineError,
    SampleError,
    UnsafeError,
)

Sample = dict[str, Any]

default_pre_handlers: list[Handler] = [gzfilter]
default_post_handlers: list[Handler] = [basichandlers]

_MAX_PLANS = 4096  # field names come from the data: a shard of random names must not fill memory


def _as_is(data: Any) -> Any:
    return data


def _meta(data: Any) -> Any:
    """A field like ``__key__``: text where it can be."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


class Decoder:
    """Turns the bytes of each field into a value, by the field's extension.

    ``handlers`` are image specs (``"rgb8"``, ``"pil"``, ``"torchrgb"``…) and functions
    of ``(key, data)``, either one by one or as one list. A field goes through ``pre``
    (default: unpack ``.gz``), the handlers, and ``post`` (default: the built-in table); the first
    answer that is not None is its value, and a field that nobody reads stays bytes.

    - ``only``: the fields to decode (``"json cls"`` or a list); others stay bytes.
    - ``partial=True`` lets values pass that are not bytes (decoded before); else they are errors.
    - ``allow_pickle=True`` lets ``.pyd``, ``.pickle``, ``.pkl`` and ``.pth`` hold any object:
      such a field can run any code when it is read. Refused while ``WDS_SECURE=1``.

    A field that cannot be read is a :class:`~penstock.errors.DecodingError` with the cause and the
    origin. Only a missing package passes as it is, since it would fail for every sample.

    Called with a sample it gives the decoded sample; called with a data set, that data set
    with each sample decoded.

    >>> Decoder("rgb8")({"__key__": "a", "cls": b"3", "json.gz": b"", "raw": b"x"}, )
    Traceback (most recent call last):
    penstock.errors.DecodingError: decode: cannot read 'json.gz' of sample 'a': JSONDecodeError: ...
    >>> Decoder(only="cls")({"__key__": "a", "cls": b"3", "txt": b"x"})
    {'__key__': 'a', 'cls': 3, 'txt': b'x'}
    """

    def __init__(
        self,
        *handlers: Any,
        pre: Sequence[Handler] | None = None,
        post: Sequence[Handler] | None = None,
        only: str | Sequence[str] | None = None,
        partial: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        if handlers and isinstance(handlers[0], (list, tuple)):
            # The form Decoder(handlers, pre, post, only, partial), where any may be positional.
            given = (*handlers[1:], *(pre, post, only, partial)[len(handlers) - 1 :])
            if len(given) != 4:
                raise PipelineError(f"Decoder takes a list of handlers or handlers, not {handlers}")
            handlers, (pre, post, only, partial) = tuple(handlers[0]), given
        if allow_pickle and env.flag("WDS_SECURE"):
            raise UnsafeError("allow_pickle=True is refused while the variable WDS_SECURE is set")
        self.given = tuple(_handler(handler) for handler in handlers)
        self.handlers: list[Handler] = [
            *(default_pre_handlers if pre is None else map(_handler, pre)),
            *self.given,
            *(default_post_handlers if post is None else map(_handler, post)),
        ]
        if allow_pickle:
            self.handlers = [
                BasicHandlers(allow_pickle=True) if isinstance(handler, BasicHandlers) else handler
                for handler in self.handlers
            ]
        only = only.split() if isinstance(only, str) else only
        self.only = None if only is None else frozenset(only)
        self.partial = bool(partial)
        self.allow_pickle = bool(allow_pickle)
        self._plans: dict[str, Callable[[Any], Any]] = {}

    def __call__(self, sample: Any) -> Any:
        """The decoded sample; given a data set or an iterable of samples, the decoded stream."""
        if isinstance(sample, dict):
            return self.decode(sample)
        if hasattr(sample, "map"):
            return sample.map(self)
        if isinstance(sample, Iterable) and not isinstance(sample, (str, bytes)):
            return map(self.decode, sample)
        raise SampleError(f"decode: a sample is a dict of fields, not {type(sample).__name__}")

    def decode(self, sample: Sample) -> Sample:
        """The sample with its fields decoded, as a new dict."""
        result: Sample = {}
        plans = self._plans
        field = ""
        try:
            for field, value in sample.items():
                plan = plans.get(field) or self._plan(field)
                if type(value) is bytes:
                    result[field] = plan(value)
                elif plan is _meta:
                    result[field] = value
                else:
                    result[field] = self._other(plan, value)
        except MissingPackage:
            raise
        except Exception as error:
            raise _failure(sample, field, error) from error
        return result

    @property
    def quiet(self) -> bool:
        """Whether none of the functions asked is the user's own."""
        ours = {GzFilter, BasicHandlers, ImageHandler}
        plain = not self.allow_pickle and not DECODERS.changed
        return plain and ours.issuperset(map(type, self.handlers))

    def decode_alike(self, samples: list[Sample]) -> list[Sample]:
        """The first samples decoded, field by field, up to one that cannot be read.

        None of them where they have not all the same fields, with bytes in them: those are
        decoded one by one.
        """
        results = [sample.copy() for sample in samples]
        if len(set(map(len, samples))) > 1:
            return []
        try:
            for field in samples[0]:
                plan = self._plans.get(field) or self._plan(field)
                value_of = operator.itemgetter(field)
                if plan is _meta:
                    if bytes in map(type, map(value_of, results)):
                        return []
                    continue
                column = list(map(value_of, results))
                if set(map(type, column)) == {bytes}:
                    made: list[Any] = []
                    with contextlib.suppress(Exception):  # raised again when its turn comes
                        made.extend(map(plan, column))
                    del results[len(made) :]
                    for sample, value in zip(results, made):
                        sample[field] = value
                elif results:
                    return []
        except KeyError:
            return []
        return results

    def decode1(self, key: str, data: Any) -> Any:
        """The value of one field from its name and bytes."""
        return self.decode({key: data})[key]

    def _other(self, plan: Callable[[Any], Any], value: Any) -> Any:
        """The value of a field that is not ``bytes``."""
        if plan is _meta or plan is _as_is:
            return value
        if isinstance(value, (bytearray, memoryview)):
            return plan(bytes(value))
        if self.partial:
            return value
        raise SampleError(
            f"it is {type(value).__name__}, not bytes; decode once, or say partial=True"
        )

    def _plan(self, field: str) -> Callable[[Any], Any]:
        """The function for fields of this name: made once, used for every sample."""
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = self._plans[field] = self._choose(field)
        return plan

    def _choose(self, field: str) -> Callable[[Any], Any]:
        if field.startswith("__"):
            return _meta
        if self.only is not None and field not in self.only:
            return _as_is
        key = "." + field
        for handler in self.handlers:
            if hasattr(handler, "for_key"):
                if (read := handler.for_key(key)) is not None:
                    return read  # type: ignore[no-any-return]
            elif not hasattr(handler, "matches") or handler.matches(key):
                return functools.partial(self._ask, key)
        return _unread

    def _ask(self, key: str, data: Any) -> Any:
        """Ask one handler after the other: what a plain function answers is not known before."""
        for handler in self.handlers:
            if hasattr(handler, "for_key"):
                if (read := handler.for_key(key)) is not None:
                    return read(data)
                continue
            value = handler(key, data)
            if isinstance(value, Continue):
                key, data = value.key, value.data
            elif value is not None:
                return value
        return data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decoder):
            return NotImplemented
        return (self.handlers, self.only, self.partial) == (
            other.handlers,
            other.only,
            other.partial,
        )

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}

    def __repr__(self) -> str:
        parts = [_short(handler) for handler in self.given]
        if self.only is not None:
            parts.append(f"only={' '.join(sorted(self.only))!r}")
        parts += [f"{name}=True" for name in ("partial", "allow_pickle") if getattr(self, name)]
        return f"Decoder({', '.join(parts)})"


def _unread(data: Any) -> Any:
    """A field that no handler reads: it stays bytes."""
    return data


def _handler(given: Any) -> Handler:
    if isinstance(given, str):
        return ImageHandler(given)
    if callable(given):
        return given  # type: ignore[no-any-return]
    raise PipelineError(
        f"a decoder's handler is an image spec or a function of (key, data), not {given!r}"
    )


def _short(handler: Any) -> str:
    if isinstance(handler, ImageHandler):
        return repr(handler.imagespec)
    return getattr(handler, "__qualname__", None) or repr(handler)


def _failure(sample: Sample, field: str, error: Exception) -> DecodingError:
    """The error for one field, with the cause's own words and the origin."""
    cause = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    url, key = sample.get("__url__"), sample.get("__key__")
    whose = f" of sample {key!r}" if url is None and key is not None else ""
    return DecodingError(
        f"decode: cannot read {field!r}{whose}: {cause}", url=url, key=key, k=field
    )


default_decoder = Decoder()
