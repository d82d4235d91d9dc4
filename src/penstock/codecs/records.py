"""Decode and encode text, integers, JSON, MessagePack and CBOR.

Scalars and arrays of numpy and torch are written as plain numbers and lists.
"""

from __future__ import annotations

import contextlib
import json
import operator
import re
from typing import Any

from penstock.codecs.cbor_scan import end_of_item
from penstock.errors import WriteError, optional

_SMALL_BYTES = 4096  # up to this size any MessagePack claims allocate less than 20 MB
_SMALL_CBOR_BYTES = 64 << 10  # up to this size any keys and fractions take less than a second
_CBOR_REFERENCE = re.compile(rb"[\xd8-\xdb]\x00*\x1d")


def text_loads(data: bytes) -> str:
    """Decode UTF-8 text."""
    return data.decode("utf-8")


def text_dumps(value: Any) -> bytes:
    """Encode text as UTF-8. Raise WriteError for anything else."""
    if not isinstance(value, str):
        raise WriteError(f"a text field takes str, not {type(value).__name__}: use str(value)")
    return value.encode("utf-8")


def int_loads(data: bytes) -> int:
    """Read a decimal integer; white space around it is ignored.

    >>> int_loads(b" 3\\n")
    3
    """
    return int(data)


def int_dumps(value: Any) -> bytes:
    """Write an integer in decimal digits. Raise WriteError for anything else.

    >>> int_dumps(3), int_dumps(True)
    (b'3', b'1')
    """
    value = _to_plain(value) if hasattr(value, "tolist") else value
    try:
        return str(operator.index(value)).encode("ascii")
    except TypeError:
        raise WriteError(
            f"a whole number is needed, not {value!r:.40}: write other values as txt or json"
        ) from None


def number_dumps(value: Any) -> bytes:
    """Write a number in digits, for the extensions that no decoder reads.

    >>> number_dumps(2.5)
    b'2.5'
    """
    return str(_to_plain(value) if hasattr(value, "tolist") else value).encode("ascii")


_scan: Any = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]


def json_loads(data: bytes) -> Any:
    """Read a JSON document."""
    try:
        text = data.decode("utf-8")
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except (StopIteration, ValueError, AttributeError):
        pass
    # White space around it, another encoding, or an error. Checking for these first, as json.loads
    # does, would double the time for a short record.
    return json.loads(data)


def json_dumps(value: Any) -> bytes:
    """Write a JSON document."""
    return json.dumps(value, default=_to_plain).encode("utf-8")


def msgpack_loads(data: bytes) -> Any:
    """Read a MessagePack document."""
    msgpack = optional("msgpack", "msgpack", "decoding .mp")
    if len(data) > _SMALL_BYTES:
        # Each nested array may claim as many items as the document has bytes, and memory for them
        # is allocated at once. Skipping over the document first shows whether the items exist.
        walker = msgpack.Unpacker(max_buffer_size=len(data))
        walker.feed(data)
        walker.skip()
    return msgpack.unpackb(data)


def mp_dumps(value: Any) -> bytes:
    """Write a MessagePack document."""
    msgpack = optional("msgpack", "msgpack", "encoding .mp")
    packed: bytes = msgpack.packb(value, default=_to_plain)
    return packed


def cbor_loads(data: bytes) -> Any:
    """Read a CBOR document."""
    cbor2 = optional("cbor2", "cbor", "decoding .cbor")
    if len(data) > _SMALL_CBOR_BYTES or _CBOR_REFERENCE.search(data):
        with contextlib.suppress(IndexError):  # truncated: cbor2 reports it
            end_of_item(data)
    return cbor2.loads(data)


def cbor_dumps(value: Any) -> bytes:
    """Write a CBOR document."""
    cbor2 = optional("cbor2", "cbor", "encoding .cbor")
    packed: bytes = cbor2.dumps(value, default=_write_plain)
    return packed


def _to_plain(value: Any) -> Any:
    """Return an array, tensor or scalar of numpy or torch as numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no plain value, array or tensor")


def _write_plain(encoder: Any, value: Any) -> None:
    encoder.encode(_to_plain(value))
