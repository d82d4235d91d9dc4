"""Text, whole numbers, JSON, MessagePack and CBOR.

Numbers and arrays of numpy and torch are written as the plain numbers and lists they hold.
"""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import MissingPackage, WriteError

_SMALL_BYTES = 4096  # up to here even the worst MessagePack claims stay under 20 MB


def text_loads(data: bytes) -> str:
    """The bytes as UTF-8 text."""
    return data.decode("utf-8")


def text_dumps(value: Any) -> bytes:
    """Text as UTF-8; anything else is a WriteError."""
    if not isinstance(value, str):
        raise WriteError(f"a text field takes str, not {type(value).__name__}: use str(value)")
    return value.encode("utf-8")


def int_loads(data: bytes) -> int:
    """The whole number that is written in the bytes; blanks around it do not matter.

    >>> int_loads(b" 3\\n")
    3
    """
    return int(data)


def int_dumps(value: Any) -> bytes:
    """The number in decimal digits.

    >>> int_dumps(3), int_dumps(True)
    (b'3', b'1')
    """
    value = _plain(value) if hasattr(value, "tolist") else value
    return str(int(value) if isinstance(value, bool) else value).encode("ascii")


_scan: Any = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]


def json_loads(data: bytes) -> Any:
    """The value of a JSON document."""
    try:
        text = data.decode("utf-8")
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except (StopIteration, ValueError, AttributeError):
        pass
    # With space around it, in another encoding, or wrong: half of the time that this would take
    # for a short record goes into finding out.
    return json.loads(data)


def json_dumps(value: Any) -> bytes:
    """The value as a JSON document."""
    return json.dumps(value, default=_plain).encode("utf-8")


def msgpack_loads(data: bytes) -> Any:
    """The value of a MessagePack document."""
    try:
        import msgpack
    except ImportError as error:
        raise MissingPackage.of("decoding .mp", "msgpack", "msgpack") from error
    if len(data) > _SMALL_BYTES:
        # Nested arrays may each claim as many items as the document has bytes, and room for them
        # is taken at once. Walking over the document first tells whether the items are there.
        walker = msgpack.Unpacker(max_buffer_size=len(data))
        walker.feed(data)
        walker.skip()
    return msgpack.unpackb(data)


def mp_dumps(value: Any) -> bytes:
    """The value as a MessagePack document."""
    try:
        import msgpack
    except ImportError as error:
        raise MissingPackage.of("encoding .mp", "msgpack", "msgpack") from error
    packed: bytes = msgpack.packb(value, default=_plain)
    return packed


def cbor_loads(data: bytes) -> Any:
    """The value of a CBOR document."""
    try:
        import cbor2
    except ImportError as error:
        raise MissingPackage.of("decoding .cbor", "cbor2", "cbor") from error
    return cbor2.loads(data)


def cbor_dumps(value: Any) -> bytes:
    """The value as a CBOR document."""
    try:
        import cbor2
    except ImportError as error:
        raise MissingPackage.of("encoding .cbor", "cbor2", "cbor") from error
    packed: bytes = cbor2.dumps(value, default=_write_plain)
    return packed


def _plain(value: Any) -> Any:
    """The numbers and lists in an array, tensor or scalar of numpy or torch."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain value, array or tensor")


def _write_plain(encoder: Any, value: Any) -> None:
    encoder.encode(_plain(value))
