"""Samples as dicts of the fields that match."""

from __future__ import annotations

from typing import Any

from penstock.errors import PipelineError, SampleError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.field_names import parse_fields
from penstock.stages.stage import Each

Sample = dict[str, Any]


class interleaved_to_dict(Each[Sample, Sample]):
    """Keeps the fields whose extension matches: ``interleaved_to_dict("json;jpg;png")``.

    Fields like ``__key__`` are dropped. Of the others, those that match no pattern become None; any
    None is an error, unless ``none_is_error=False`` (by default it is what ``missing_is_error``
    says).

    >>> sample = {"__key__": "a", "json": {}, "x1.jpg": 1, "y.txt": 2}
    >>> list(interleaved_to_dict("json;jpg", missing_is_error=False)([sample]))
    [{'json': {}, 'x1.jpg': 1, 'y.txt': None}]
    """

    keeps_count = True
    looks = False

    def __init__(
        self,
        *patterns: str,
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> None:
        if len(patterns) == 1 and isinstance(patterns[0], str) and " " in patterns[0]:
            patterns = tuple(patterns[0].split())
        if not patterns:
            raise PipelineError('interleaved_to_dict needs a pattern, such as "json;jpg;png"')
        self.endings = tuple(name for pattern in patterns for name in parse_fields(pattern))
        self.handler, self.missing_is_error = handler, missing_is_error
        self.none_is_error = missing_is_error if none_is_error is None else none_is_error

    def apply(self, item: Sample) -> Sample:
        result = {
            field: value if self._matches(field) else None
            for field, value in item.items()
            if not field.startswith("__")
        }
        if self.none_is_error:
            for field, value in result.items():
                if value is None:
                    raise SampleError(
                        f"interleaved_to_dict: the field {field!r} is None or matches none of "
                        f"{';'.join(self.endings)!r}; none_is_error=False allows that"
                    )
        return result

    def _matches(self, field: str) -> bool:
        return any(field == ending or field.endswith(f".{ending}") for ending in self.endings)
