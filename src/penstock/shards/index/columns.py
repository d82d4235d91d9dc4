"""Compute the user's columns of an index: ``FIELD:MEASURE``, or a function of the raw sample.

=====================  ======================================================================
measure                value
=====================  ======================================================================
bytes, length          number of bytes of the field
seconds, samples       of audio (and seconds of video), from its header
width, height          of an image, from its header
value                  the decoded value: ``label=cls:value``
anything else          a path into the decoded value: ``age=json:person.age``
=====================  ======================================================================

``jpg;png:width`` uses the first of the fields that the sample has. The value is null if the sample
lacks the field or the path does not exist. In a JSON field, ``json:width`` is the key ``width``:
only ``bytes``, ``length`` and ``value`` keep their meaning there.
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable, Mapping
from typing import Any

from penstock.codecs import Decoder
from penstock.errors import (
    DecodingError,
    PenstockError,
    PipelineError,
    describe_cause,
    optional,
    ran_out,
)
from penstock.shards.index.parquet_schema import OWN_COLUMNS
from penstock.shards.index.scan import Column

ColumnSpec = str | Column


class Measure:
    """A column given as ``FIELD:MEASURE``: called with a raw sample, it returns the value.

    >>> Measure("json:person.age")({"__key__": "a", "json": b'{"person": {"age": 7}}'})
    7
    >>> Measure("txt:bytes")({"__key__": "a", "txt": b"hello"})
    5
    """

    def __init__(self, spec: str) -> None:
        field, colon, self.measure = spec.partition(":")
        self.spec, self.fields = spec, tuple(field.lower().split(";"))
        if not (colon and self.measure and all(self.fields)):
            raise PipelineError(
                f"a column is written FIELD:MEASURE, such as wav:seconds, cls:value or "
                f"json:person.age, not {spec!r}"
            )

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        field = next((field for field in self.fields if field in sample), None)
        if field is None:
            return None
        try:
            return self._measure_function(field)(sample, field)
        except PenstockError:
            raise
        except Exception as error:
            if ran_out(error):
                raise
            raise DecodingError(
                f"the column {self.spec!r} cannot be measured:"
                f" {describe_cause(error, sample.get(field))}",
                url=sample.get("__url__"),
                key=sample.get("__key__"),
                k=field,
            ) from error

    def _measure_function(self, field: str) -> Callable[[Mapping[str, Any], str], Any]:
        """Return the function that measures the field; a structured one has no width or seconds."""
        structured = field.rsplit(".", 1)[-1] in STRUCTURED
        if structured and self.measure not in ("bytes", "length", "value"):
            return self._follow_path
        return MEASURES.get(self.measure, self._follow_path)

    def _follow_path(self, sample: Mapping[str, Any], field: str) -> Any:
        value = _decode_value(sample, field)
        for part in self.measure.split("."):
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, (list, tuple)) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, (Mapping, list, tuple)) or value is None:
                return None
            else:
                known = ", ".join(MEASURES)
                raise PipelineError(
                    f"{self.measure!r} is no measure of the field {field!r} "
                    f"(measures: {known}, or a path into a json field)"
                )
        return value


def _count_bytes(sample: Mapping[str, Any], field: str) -> int:
    return len(sample[field])


def _decode_value(sample: Mapping[str, Any], field: str) -> Any:
    value = _decoder()({"__key__": sample["__key__"], field: sample[field]})[field]
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value


@functools.cache
def _decoder() -> Decoder:
    return Decoder()


def _measure_image(sample: Mapping[str, Any], field: str) -> tuple[int, int]:
    Image = optional("PIL.Image", "image", "measuring pictures")
    with Image.open(io.BytesIO(sample[field])) as picture:
        width, height = picture.size
    return width, height


def _measure_audio(sample: Mapping[str, Any], field: str) -> tuple[int, int]:
    """Return the number of frames and frames per second."""
    soundfile = optional("soundfile", "audio", "measuring sound")
    about = soundfile.info(io.BytesIO(sample[field]))
    return about.frames, about.samplerate


_VIDEO = ("mp4", "mov", "avi", "mpg", "mpeg", "webm", "mkv", "h264", "mjpg", "ogv", "wmv")


def _measure_seconds(sample: Mapping[str, Any], field: str) -> float:
    if field.rsplit(".", 1)[-1] not in _VIDEO:
        frames, rate = _measure_audio(sample, field)
        return frames / rate
    av = optional("av", "video", "measuring video")
    with av.open(io.BytesIO(sample[field]), "r") as container:
        if container.duration is None:
            raise DecodingError("the video's header does not state its length")
        return float(container.duration / av.time_base)


MEASURES: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "bytes": _count_bytes,
    "length": _count_bytes,
    "value": _decode_value,
    "seconds": _measure_seconds,
    "samples": lambda sample, field: _measure_audio(sample, field)[0],
    "width": lambda sample, field: _measure_image(sample, field)[0],
    "height": lambda sample, field: _measure_image(sample, field)[1],
}
"""Name → function of the raw sample and the field."""
STRUCTURED = ("json", "jsn", "cbor", "mp", "msgpack", "msg")
"""Extensions whose values have keys: a measure is then a path into the value."""


def make_columns(columns: Mapping[str, ColumnSpec] | None) -> dict[str, Column]:
    """Return the functions of a table of columns. Raise PipelineError for an invalid column."""
    made: dict[str, Column] = {}
    for name, spec in (columns or {}).items():
        if name in OWN_COLUMNS or not name:
            raise PipelineError(f"a column cannot be named {name!r}: the index uses that name")
        if isinstance(spec, str):
            made[name] = Measure(spec)
        elif callable(spec):
            made[name] = spec
        else:
            raise PipelineError(f"the column {name!r} is FIELD:MEASURE or a function, not {spec!r}")
    return made


def list_needed_fields(columns: Mapping[str, Column]) -> frozenset[str] | None:
    """Return the fields whose bytes the columns need; None means all: a function may use any."""
    if not all(isinstance(column, Measure) for column in columns.values()):
        return None
    return frozenset(f for c in columns.values() if isinstance(c, Measure) for f in c.fields)


def describe(columns: Mapping[str, Column]) -> dict[str, str]:
    """Return each column as text. Equal texts mean that earlier values can be reused."""
    return {name: _describe_column(column) for name, column in columns.items()}


def _describe_column(column: Column) -> str:
    if isinstance(column, Measure):
        return column.spec
    name = f"{getattr(column, '__module__', '')}.{getattr(column, '__qualname__', repr(column))}"
    code = getattr(column, "__code__", None)
    if code is None:
        return name
    source = repr(
        (code.co_code, code.co_names, [c for c in code.co_consts if not hasattr(c, "co_code")])
    )
    return f"{name} {hashlib.sha256(source.encode()).hexdigest()[:16]}"
