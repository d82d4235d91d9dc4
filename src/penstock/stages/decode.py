"""Stages that decode bytes into values by the codecs."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any

from penstock.codecs import Decoder
from penstock.codecs.registry import load
from penstock.errors import DecodingError, describe_cause, ran_out
from penstock.handlers import Handler, reraise_exception
from penstock.stages.stage import Each

Sample = dict[str, Any]


class decode(Each[Sample, Sample]):
    """Decodes the fields of each sample by their extension.

    ``args`` are image specs such as ``"pil"``, ``"rgb8"``, ``"torchrgb"``, and functions
    ``f(key, data)`` that return a value or None. Text, numbers, JSON, arrays and more are decoded
    by default. ``only`` restricts it to some fields, ``partial=True`` accepts values that are
    decoded already, ``allow_pickle=True`` trusts pickles of any kind.

    >>> list(decode()([{"__key__": "a", "cls": b"3", "json": b'{"x": 1}'}]))
    [{'__key__': 'a', 'cls': 3, 'json': {'x': 1}}]
    """

    keeps_count = True

    def __init__(
        self,
        *args: str | Callable[[str, bytes], Any],
        handler: Handler = reraise_exception,
        pre: Sequence[Callable[[str, bytes], Any]] | None = None,
        post: Sequence[Callable[[str, bytes], Any]] | None = None,
        only: str | Sequence[str] | None = None,
        partial: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.handler = handler
        self.decoder = Decoder(
            list(args), pre=pre, post=post, only=only, partial=partial, allow_pickle=allow_pickle
        )

    @property
    def quiet(self) -> bool:
        return type(self).apply is decode.apply and self.decoder.quiet

    def apply(self, item: Sample) -> Sample:
        return self.decoder.decode(item)

    def apply_ready(self, items: list[Sample]) -> list[Sample]:
        return self.decoder.decode_alike(items) or super().apply_ready(items)


def decode_bin(stream: io.BytesIO) -> bytes:
    """Return the bytes unchanged."""
    return stream.read()


def decode_text(stream: io.BytesIO) -> str:
    """Return the bytes as UTF-8 text."""
    return stream.read().decode("utf-8")


def decode_pickle(stream: io.BytesIO) -> Any:
    """Return a pickle of plain values, arrays and tensors; refuse anything else."""
    return load("penstock.codecs.safe_pickle.unpickler:decode_pickle")(stream.read())


default_decoders: list[tuple[str, Any]] = [
    ("*.bin", decode_bin),
    ("*.txt", decode_text),
    ("*.pyd", decode_pickle),
]


class xdecode(Each[Sample, Sample]):
    """Decodes fields by the user's patterns: ``xdecode(("*.jpg", read_image), json=json.load)``.

    A decoder gets the field as an open binary stream. Patterns are matched on ``.field``;
    the last one that matches counts, False leaves the field unchanged. A field that
    matches none is an error, unless ``must_decode=False``.

    >>> list(xdecode(("*.n", lambda stream: int(stream.read())))([{"__key__": "a", "n": b"7"}]))
    [{'__key__': 'a', 'n': 7}]
    """

    keeps_count = True

    def __init__(
        self,
        *args: tuple[str, Any],
        must_decode: bool = True,
        defaults: Sequence[tuple[str, Any]] = default_decoders,
        handler: Handler = reraise_exception,
        **named: Any,
    ) -> None:
        self.handler, self.must_decode = handler, must_decode
        self.decoders = [*defaults, *args, *((f"*.{ext}", f) for ext, f in named.items())]

    def apply(self, item: Sample) -> Sample:
        result = dict(item)
        for field, value in item.items():
            if field.startswith("_"):
                continue
            found = [f for pattern, f in self.decoders if fnmatch("." + field, pattern)]
            if not found and self.must_decode:
                raise DecodingError(
                    f"xdecode: no decoder for the field {field!r}",
                    key=item.get("__key__"),
                    k=field,
                    sample=item,
                )
            if found and found[-1]:
                result[field] = self._decode_field(found[-1], field, value, item)
        return result

    def _decode_field(self, function: Any, field: str, value: bytes, item: Sample) -> Any:
        try:
            return function(io.BytesIO(value))
        except Exception as error:
            if ran_out(error):
                raise
            raise DecodingError(
                f"xdecode: cannot read {field!r}: {describe_cause(error, value)}",
                url=item.get("__url__"),
                key=item.get("__key__"),
                k=field,
                sample=item,
            ) from error
