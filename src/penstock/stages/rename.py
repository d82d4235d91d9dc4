"""Stages that rename fields."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from typing import Any

from penstock.errors import PipelineError, SampleError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.field_names import first_of, parse_fields
from penstock.stages.stage import Each

Sample = dict[str, Any]


class rename(Each[Sample, Sample]):
    """Renames fields: ``rename(image="jpg;png")`` takes the first old name that the sample has.

    Other fields stay, unless ``keep=False``, which drops everything that is not renamed.

    >>> list(rename(image="jpg;png")([{"__key__": "a", "png": 1, "cls": 2}]))
    [{'__key__': 'a', 'cls': 2, 'image': 1}]
    """

    keeps_count = True

    def __init__(
        self,
        handler: Handler = reraise_exception,
        keep: bool = True,
        **names: str | Iterable[str],
    ) -> None:
        self.handler, self.keep = handler, keep
        self.names = {new: parse_fields(old) for new, old in names.items()}

    def apply(self, item: Sample) -> Sample:
        renamed = {new: first_of(item, old) for new, old in self.names.items()}
        if not self.keep:
            return renamed
        gone = {name for old in self.names.values() for name in old}
        return {**{k: v for k, v in item.items() if k not in gone}, **renamed}


class rename_keys(Each[Sample, Sample]):
    """Renames fields by pattern: ``rename_keys(image="*.jpg")``, or pairs ``("image", "*.jpg")``.

    Patterns are matched on the lower-cased last part of the old name; of several that match,
    the last one counts. Fields that match none are dropped, unless ``keep_unselected``.

    >>> list(rename_keys(image="*jpg", keep_unselected=True)([{"__key__": "a", "big.jpg": 1}]))
    [{'__key__': 'a', 'image': 1}]
    """

    keeps_count = True
    handler = staticmethod(reraise_exception)

    def __init__(
        self,
        *pairs: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        **names: str,
    ) -> None:
        self.patterns = [(pattern, new) for new, pattern in (*pairs, *names.items())]
        if not self.patterns:
            raise PipelineError("rename_keys needs at least one new=pattern")
        self.keep_unselected, self.must_match = keep_unselected, must_match
        self.duplicate_is_error = duplicate_is_error

    def apply(self, item: Sample) -> Sample:
        result: Sample = {}
        used: set[str] = set()
        for old, value in item.items():
            last = old.lower().rsplit("/", 1)[-1]
            new = old if self.keep_unselected else None
            for pattern, candidate in self.patterns:
                if fnmatch(last, pattern):
                    new = candidate
                    used.add(pattern)
            if new is None:
                continue
            if new in result and self.duplicate_is_error:
                raise SampleError(f"rename_keys: two fields of {sorted(item)} become {new!r}")
            result[new] = value
        if self.must_match and len(used) < len({pattern for pattern, _ in self.patterns}):
            missing = sorted({pattern for pattern, _ in self.patterns} - used)
            raise SampleError(f"rename_keys: {missing} match no field of {sorted(item)}")
        return result
