"""The user's own columns of an index: ``FIELD:MEASURE``, or a function of the raw sample.

=====================  ======================================================================
measure                value
=====================  ======================================================================
bytes, length          how many bytes the field has
seconds, samples       of sound (and seconds of video), from its header
width, height          of a picture, from its header
value                  the decoded value itself: ``label=cls:value``
anything else          a path into the decoded value: ``age=json:person.age``
=====================  ======================================================================

``jpg;png:width`` takes the first of the fields that the sample has. A sample without the field,
and a path that leads nowhere, have no value (null).
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Callable, Mapping
from typing import Any

from penstock.codecs import Decoder
from penstock.errors import DecodingError, MissingPackage, PenstockError, PipelineError
from penstock.shards.index.parquet_schema import OWN_COLUMNS
from penstock.shards.index.scan import Column

ColumnSpec = str | Column


class Measure:
    """A column given as ``FIELD:MEASURE``: called with a raw sample, it gives the value.

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
            return MEASURES.get(self.measure, self._path)(sample, field)
        except PenstockError:
            raise
        except Exception as error:
            raise DecodingError(
                f"the column {self.spec!r} cannot be measured: {error}",
                url=sample.get("__url__"),
                key=sample.get("__key__"),
                k=field,
            ) from error

    def _path(self, sample: Mapping[str, Any], field: str) -> Any:
        value = _value(sample, field)
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


def _bytes(sample: Mapping[str, Any], field: str) -> int:
    return len(sample[field])


def _value(sample: Mapping[str, Any], field: str) -> Any:
    value = _decoder()({"__key__": sample["__key__"], field: sample[field]})[field]
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value


@functools.cache
def _decoder() -> Decoder:
    return Decoder()


def _picture(sample: Mapping[str, Any], field: str) -> tuple[int, int]:
    try:
        from PIL import Image
    except ImportError:
        raise MissingPackage.of("measuring pictures", "pillow", "image") from None
    with Image.open(io.BytesIO(sample[field])) as picture:
        return picture.size


def _sound(sample: Mapping[str, Any], field: str) -> tuple[int, int]:
    """Frames and frames per second."""
    try:
        import soundfile
    except ImportError:
        raise MissingPackage.of("measuring sound", "soundfile", "audio") from None
    about = soundfile.info(io.BytesIO(sample[field]))
    return about.frames, about.samplerate


_VIDEO = ("mp4", "mov", "avi", "mpg", "mpeg", "webm", "mkv", "h264", "mjpg", "ogv", "wmv")


def _seconds(sample: Mapping[str, Any], field: str) -> float:
    if field.rsplit(".", 1)[-1] not in _VIDEO:
        frames, rate = _sound(sample, field)
        return frames / rate
    try:
        import av
    except ImportError:
        raise MissingPackage.of("measuring video", "av", "video") from None
    with av.open(io.BytesIO(sample[field]), "r") as container:
        if container.duration is None:
            raise DecodingError("the video does not say how long it is")
        return float(container.duration / av.time_base)


MEASURES: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "bytes": _bytes,
    "length": _bytes,
    "value": _value,
    "seconds": _seconds,
    "samples": lambda sample, field: _sound(sample, field)[0],
    "width": lambda sample, field: _picture(sample, field)[0],
    "height": lambda sample, field: _picture(sample, field)[1],
}
"""Name → function of the raw sample and the field."""


def make_columns(columns: Mapping[str, ColumnSpec] | None) -> dict[str, Column]:
    """The functions behind a table of columns; what cannot be one is a PipelineError."""
    made: dict[str, Column] = {}
    for name, spec in (columns or {}).items():
        if name in OWN_COLUMNS or not name:
            raise PipelineError(f"a column cannot be named {name!r}: the index has one itself")
        if isinstance(spec, str):
            made[name] = Measure(spec)
        elif callable(spec):
            made[name] = spec
        else:
            raise PipelineError(f"the column {name!r} is FIELD:MEASURE or a function, not {spec!r}")
    return made


def fields_looked_at(columns: Mapping[str, Column]) -> frozenset[str] | None:
    """The fields whose bytes the columns need; None means all, since a function may take any."""
    if not all(isinstance(column, Measure) for column in columns.values()):
        return None
    return frozenset(f for c in columns.values() if isinstance(c, Measure) for f in c.fields)


def describe(columns: Mapping[str, Column]) -> dict[str, str]:
    """Each column as text: equal texts mean that values computed earlier can be used again."""
    return {name: _description(column) for name, column in columns.items()}


def _description(column: Column) -> str:
    if isinstance(column, Measure):
        return column.spec
    name = f"{getattr(column, '__module__', '')}.{getattr(column, '__qualname__', repr(column))}"
    code = getattr(column, "__code__", None)
    if code is None:
        return name
    told = repr(
        (code.co_code, code.co_names, [c for c in code.co_consts if not hasattr(c, "co_code")])
    )
    return f"{name} {hashlib.sha256(told.encode()).hexdigest()[:16]}"
