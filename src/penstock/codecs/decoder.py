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
    PipelineError,
    SampleError,
    UnsafeError,
    describe_cause,
    ran_out,
)

Sample = dict[str, Any]

default_pre_handlers: list[Handler] = [gzfilter]
default_post_handlers: list[Handler] = [basichandlers]

_MAX_PLANS = 4096  # field names come from the data: a shard of random names must not fill memory


def _pass_through(data: Any) -> Any:
    return data


def _decode_meta(data: Any) -> Any:
    """Decode a field like ``__key__``: to text if it is UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


class Decoder:
    """Decodes the bytes of each field into a value, by the field's extension.

    ``handlers`` are image specs (``"rgb8"``, ``"pil"``, ``"torchrgb"``…) and functions
    of ``(key, data)``, as separate arguments or as one list. A field passes through ``pre``
    (default: unpack ``.gz``), the handlers, and ``post`` (default: the built-in table). The first
    result that is not None is its value; a field that no handler reads stays bytes.

    - ``only``: the fields to decode (``"json cls"`` or a list); others stay bytes.
    - ``partial=True`` accepts values that are not bytes (decoded before); else they are errors.
    - ``allow_pickle=True`` accepts any object in ``.pyd``, ``.pickle``, ``.pkl`` and ``.pth``:
      such a field can run arbitrary code. Refused while ``WDS_SECURE=1``.

    A field that cannot be read raises :class:`~penstock.errors.DecodingError` with the cause and
    the origin. Errors about a missing package or memory are raised unchanged, because the field
    did not cause them.

    Called with a sample it returns the decoded sample; called with a data set, that data set
    with each sample decoded.

    >>> Decoder("rgb8")({"__key__": "a", "cls": b"3", "json.gz": b"", "raw": b"x"}, )
    Traceback (most recent call last):
    penstock.errors.DecodingError: decode: cannot read 'json.gz' of sample 'a': it is empty
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
            # Decoder(handlers, pre, post, only, partial): all of them may be positional.
            given = (*handlers[1:], *(pre, post, only, partial)[len(handlers) - 1 :])
            if len(given) != 4:
                raise PipelineError(f"Decoder takes a list of handlers or handlers, not {handlers}")
            handlers, (pre, post, only, partial) = tuple(handlers[0]), given
        if allow_pickle and env.flag("WDS_SECURE"):
            raise UnsafeError("allow_pickle=True is refused while the variable WDS_SECURE is set")
        self.given = tuple(_as_handler(handler) for handler in handlers)
        self.handlers: list[Handler] = [
            *(default_pre_handlers if pre is None else map(_as_handler, pre)),
            *self.given,
            *(default_post_handlers if post is None else map(_as_handler, post)),
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
        """Return the decoded sample or, for a data set or iterable, the decoded stream."""
        if isinstance(sample, dict):
            return self.decode(sample)
        if hasattr(sample, "map"):
            return sample.map(self)
        if isinstance(sample, Iterable) and not isinstance(sample, (str, bytes)):
            return map(self.decode, sample)
        raise SampleError(f"decode: a sample is a dict of fields, not {type(sample).__name__}")

    def decode(self, sample: Sample) -> Sample:
        """Return a new dict with the sample's fields decoded."""
        result: Sample = {}
        plans = self._plans
        field = ""
        try:
            for field, value in sample.items():
                plan = plans.get(field) or self._plan(field)
                if type(value) is bytes:
                    result[field] = plan(value)
                elif plan is _decode_meta:
                    result[field] = value
                else:
                    result[field] = self._decode_other(plan, value)
        except MissingPackage:
            raise
        except Exception as error:
            if ran_out(error):
                raise
            raise _make_error(sample, field, error) from error
        return result

    @property
    def quiet(self) -> bool:
        """True if no handler is a user's function."""
        ours = {GzFilter, BasicHandlers, ImageHandler}
        plain = not self.allow_pickle and not DECODERS.changed
        return plain and ours.issuperset(map(type, self.handlers))

    def decode_alike(self, samples: list[Sample]) -> list[Sample]:
        """Decode samples with the same fields, column by column, up to one that cannot be read.

        Return an empty list if their fields differ or are not all bytes: the caller then decodes
        them one by one.
        """
        results = [sample.copy() for sample in samples]
        if len(set(map(len, samples))) > 1:
            return []
        try:
            for field in samples[0]:
                plan = self._plans.get(field) or self._plan(field)
                value_of = operator.itemgetter(field)
                if plan is _decode_meta:
                    if bytes in map(type, map(value_of, results)):
                        return []
                    continue
                column = list(map(value_of, results))
                if set(map(type, column)) == {bytes}:
                    values: list[Any] = []
                    with contextlib.suppress(Exception):  # decoding it alone raises it again
                        values.extend(map(plan, column))
                    del results[len(values) :]
                    for sample, value in zip(results, values):
                        sample[field] = value
                elif results:
                    return []
        except KeyError:
            return []
        return results

    def decode1(self, key: str, data: Any) -> Any:
        """Return the value of one field from its name and data, by the handlers alone.

        A subclass may override this, or override ``decode`` and call this, as in WebDataset.
        """
        return self._call_handlers("." + key, data)

    def _decode_other(self, plan: Callable[[Any], Any], value: Any) -> Any:
        """Return the value of a field that is not ``bytes``."""
        if plan is _decode_meta or plan is _pass_through:
            return value
        if isinstance(value, (bytearray, memoryview)):
            return plan(bytes(value))
        if self.partial:
            return value
        raise SampleError(
            f"it is {type(value).__name__}, not bytes; decode once, or use partial=True"
        )

    def _plan(self, field: str) -> Callable[[Any], Any]:
        """Choose the function for fields of this name and remember it for later samples."""
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        plan = self._plans[field] = self._choose(field)
        return plan

    def _choose(self, field: str) -> Callable[[Any], Any]:
        if field.startswith("__"):
            return _decode_meta
        if self.only is not None and field not in self.only:
            return _pass_through
        if type(self).decode1 is not Decoder.decode1:
            return functools.partial(self.decode1, field)
        key = "." + field
        for handler in self.handlers:
            if hasattr(handler, "for_key"):
                read: Callable[[Any], Any] | None = handler.for_key(key)
                if read is not None:
                    return read
            elif not hasattr(handler, "matches") or handler.matches(key):
                return functools.partial(self._call_handlers, key)
        return _keep_bytes

    def _call_handlers(self, key: str, data: Any) -> Any:
        """Call the handlers in turn. A plain function must see the data to decide."""
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
        parts = [_describe(handler) for handler in self.given]
        if self.only is not None:
            parts.append(f"only={' '.join(sorted(self.only))!r}")
        parts += [f"{name}=True" for name in ("partial", "allow_pickle") if getattr(self, name)]
        return f"Decoder({', '.join(parts)})"


def _keep_bytes(data: Any) -> Any:
    """Return the bytes of a field that no handler reads. Unlike ``only=``, other types fail."""
    return data


def _as_handler(given: Any) -> Handler:
    if isinstance(given, str):
        return ImageHandler(given)
    if isinstance(given, ImageHandler) and type(given).__call__ is not ImageHandler.__call__:
        return given.__call__  # a subclass that decides for each field
    if callable(given):
        return given  # type: ignore[no-any-return]
    raise PipelineError(
        f"a decoder's handler is an image spec or a function of (key, data), not {given!r}"
    )


def _describe(handler: Any) -> str:
    if isinstance(handler, ImageHandler):
        return repr(handler.imagespec)
    return getattr(handler, "__qualname__", None) or repr(handler)


def _make_error(sample: Sample, field: str, error: Exception) -> DecodingError:
    """Return the error for one field, with the cause's message and the origin."""
    url, key = sample.get("__url__"), sample.get("__key__")
    whose = f" of sample {key!r}" if url is None and key is not None else ""
    cause = describe_cause(error, sample.get(field))
    return DecodingError(
        f"decode: cannot read {field!r}{whose}: {cause}", url=url, key=key, k=field, sample=sample
    )


default_decoder = Decoder()
