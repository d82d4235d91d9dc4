"""Fields as text, numbers and JSON, for people and tables; a description of all others."""

from __future__ import annotations

import functools
import io
import re
from typing import Any

from penstock.codecs import Decoder
from penstock.codecs.image_specs import IMAGE_EXTENSIONS
from penstock.errors import PenstockError
from penstock.tools.content_types import mismatch

_TEXT = frozenset(
    [
        "txt",
        "text",
        "transcript",
        "caption",
        "captions",
        "html",
        "htm",
        "md",
        "csv",
        "tsv",
        "xml",
        "yaml",
        "yml",
        "srt",
        "vtt",
    ]
)
_RECORDS = frozenset(
    ["txt", "text", "transcript", "cls", "cls2", "index", "inx", "id", "json", "jsn"]
)
_JSON = frozenset(("json", "jsn"))
_NUMBERS = frozenset(["cls", "cls2", "index", "inx", "id"])
IMAGES = frozenset(IMAGE_EXTENSIONS) - {"mpg", "mpeg", "h5", "hdf"}
SOUNDS = frozenset(["flac", "mp3", "wav", "ogg", "opus", "m4a", "wma"])


SHORT_BYTES = 200
"""Fields of no known kind that are not longer are described by their text, if they hold any."""


def extension_of(field: str) -> str:
    """Return the last part of a field's name, without ``.gz``.

    >>> extension_of("seg.png"), extension_of("json.gz")
    ('png', 'json')
    """
    return re.sub(r"\.gz$", "", field.lower()).rpartition(".")[2]


def kind_of(field: str) -> str:
    """Return ``"text"``, ``"number"``, ``"json"``, ``"image"``, ``"sound"`` or ``"bytes"``.

    >>> kind_of("cls"), kind_of("meta.json"), kind_of("npy")
    ('number', 'json', 'bytes')
    """
    extension = extension_of(field)
    if extension in _NUMBERS:
        return "number"
    if extension in _JSON:
        return "json"
    if extension in _TEXT:
        return "text"
    return "image" if extension in IMAGES else "sound" if extension in SOUNDS else "bytes"


def is_readable(field: str) -> bool:
    """Whether the field holds text, a number or JSON."""
    return kind_of(field) in ("text", "number", "json")


def read_value(field: str, data: bytes, key: str = "", url: str | None = None) -> Any:
    """Return the text, number or JSON value of a field; a DecodingError if it is not one.

    >>> read_value("cls", b"3"), read_value("json", b"[1]"), read_value("caption", b"hi")
    (3, [1], 'hi')
    """
    if extension_of(field) not in _RECORDS:
        return data.decode("utf-8", "replace")
    return _decoder()({"__key__": key, "__url__": url, field: data})[field]


@functools.cache
def _decoder() -> Decoder:
    return Decoder()


def text_in(data: bytes) -> str | None:
    """Return data of any field as text; None if it is not UTF-8, or has control characters.

    >>> text_in(b"n01440764"), text_in(b"\\xff\\xd8"), text_in(b"\\x00")
    ('n01440764', None, None)
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if "".join(text.split()).isprintable() else None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height by the picture's header; None where it cannot be read."""
    try:
        from PIL import Image
    except ImportError:
        return None
    broken = (OSError, ValueError, SyntaxError, TypeError, OverflowError, EOFError)
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return picture.size
    except (*broken, Image.DecompressionBombError):
        return None


def sound_length(data: bytes) -> float | None:
    """Return the seconds of sound by its header; None where it cannot be read."""
    try:
        import soundfile

        about = soundfile.info(io.BytesIO(data))
        return float(about.frames / about.samplerate)
    except (ImportError, OSError, RuntimeError, ZeroDivisionError, TypeError, ValueError):
        return None


def describe_field(field: str, data: bytes) -> str:
    """Describe the content of a field in a few words.

    >>> describe_field("jpg", b"\\x89PNG\\r\\n\\x1a\\n"), describe_field("txt", b"hi")
    ("it is a PNG file, not 'jpg'", "'hi'")
    """
    if not data:
        return "empty"
    kind = kind_of(field)
    if is_readable(field):
        try:
            return repr(read_value(field, data))
        except PenstockError as error:
            return f"cannot be read: {error.message}"
    other = mismatch(field, data[:64])
    if other is not None:
        return other
    if kind == "image":
        size = image_size(data)
        return "picture" if size is None else f"picture, {size[0]} x {size[1]}"
    if kind == "sound":
        seconds = sound_length(data)
        return "sound" if seconds is None else f"sound, {seconds:.2f} s"
    if kind == "bytes" and len(data) <= SHORT_BYTES and (text := text_in(data)) is not None:
        return repr(text)
    return f"bytes, {data[:8].hex(' ')}{' …' if len(data) > 8 else ''}"
