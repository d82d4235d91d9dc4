"""The encoder: a sample of values in, a sample of bytes out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from penstock.codecs.gzip_fields import gzip_bytes
from penstock.codecs.registry import DECODERS, ENCODERS, load
from penstock.errors import MissingPackage, PenstockError, PipelineError, WriteError

Sample = dict[str, Any]

default_handlers = ENCODERS
_CHECKED = {
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), "a whole number"),
    **dict.fromkeys(("json", "jsn"), "a JSON document"),
}


def encode_based_on_extension1(data: Any, tname: str, handlers: Mapping[str, Any]) -> Any:
    """Return the bytes of one field, by the last component of its name.

    Bytes are unchanged, text becomes UTF-8 for every extension, fields whose name begins with
    ``_`` keep their value, and a field whose name ends in ``.gz`` is compressed after encoding.
    Text for the built-in extensions of numbers and JSON must be valid.

    >>> encode_based_on_extension1({"a": 1}, "meta.json", default_handlers)
    b'{"a": 1}'
    """
    if tname.startswith("_"):
        return data
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    name = tname.lower()
    if name.endswith(".gz"):
        return gzip_bytes(encode_based_on_extension1(data, name[:-3], handlers))
    extension = name.rpartition(".")[2]
    if isinstance(data, str):
        if extension in _CHECKED and handlers is default_handlers:
            _check_text(extension, data)
        return data.encode("utf-8")
    if extension not in handlers:
        raise WriteError(
            f"no encoder for the extension {extension!r} and a {type(data).__name__}:"
            " give bytes, or an encoder for it as encoder={extension: function}"
        )
    return handlers[extension](data)


def _check_text(extension: str, text: str) -> None:
    """Raise a WriteError for text that the extension's decoder could not read."""
    try:
        DECODERS[extension](text.encode("utf-8"))
    except ValueError:
        what = _CHECKED[extension]
        raise WriteError(
            f".{extension} must hold {what}, not {text!r:.40}: write text as txt"
        ) from None


def encode_based_on_extension(sample: Sample, handlers: Mapping[str, Any]) -> Sample:
    """Return the sample with every field as bytes. A WriteError names the key and the field.

    >>> encode_based_on_extension({"__key__": "a", "cls": 3}, default_handlers)
    {'__key__': 'a', 'cls': b'3'}
    """
    result: Sample = {}
    field = ""
    try:
        for field, value in sample.items():
            result[field] = encode_based_on_extension1(value, field, handlers)
    except (MissingPackage, MemoryError):
        raise
    except Exception as error:
        known = isinstance(error, PenstockError)
        cause = str(error) if known else f"{type(error).__name__}: {error}"
        key = sample.get("__key__")
        raise WriteError(f"encode: cannot write {field!r} of sample {key!r}: {cause}") from error
    return result


def _keep(sample: Sample) -> Sample:
    return sample


def _encode_by_default(sample: Sample) -> Sample:
    return encode_based_on_extension(sample, default_handlers)


def make_encoder(spec: Any) -> Callable[[Sample], Sample]:
    """Return the function for a writer's ``encoder=``: it takes values and returns bytes.

    True: by extension, with the built-in table. False or None: the sample unchanged.
    A dict: by extension, with only these functions. A function of the sample: that function.

    >>> make_encoder({"up": lambda value: value.upper().encode()})({"__key__": "a", "up": "x"})
    {'__key__': 'a', 'up': b'x'}
    >>> make_encoder(True)({"__key__": "a", "json": [1]})
    {'__key__': 'a', 'json': b'[1]'}
    """
    if spec is True:
        return _encode_by_default
    if spec is False or spec is None:
        return _keep
    if isinstance(spec, Mapping):
        return functools.partial(encode_based_on_extension, handlers=spec)
    if callable(spec):
        return spec  # type: ignore[no-any-return]
    raise PipelineError(
        "encoder= is True, False, None, a dict of functions by extension or a function,"
        f" not {spec!r}"
    )


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """Encode an image (Pillow, array or tensor) in a format: ``"png"``, ``"jpg"``, …"""
    encode: Callable[..., bytes] = load("images:imageencoder")
    return encode(image, format)
