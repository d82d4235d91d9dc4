"""Stages that turn samples into tuples."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from operator import itemgetter
from typing import Any

from penstock.errors import PipelineError, SampleError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.field_names import first_of, parse_fields
from penstock.stages.stage import Each

Sample = dict[str, Any]


class to_tuple(Each[Sample, tuple[Any, ...]]):
    """Makes tuples of the named fields: ``to_tuple("jpg;png", "cls")`` or ``to_tuple("jpg cls")``.

    A missing field is an error, unless ``missing_is_error=False`` replaces it by None.
    A field that is None is an error too, unless ``none_is_error=False``.

    >>> list(to_tuple("jpg;png", "cls")([{"__key__": "a", "png": 1, "cls": 2}]))
    [(1, 2)]
    """

    keeps_count = True
    looks = False

    def __init__(
        self,
        *fields: str | Iterable[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> None:
        if len(fields) == 1 and isinstance(fields[0], str) and " " in fields[0]:
            fields = tuple(fields[0].split())
        for field in fields:
            if isinstance(field, str) and " " in field:
                raise PipelineError(
                    f"to_tuple: pass one string with spaces, or one string per field, not {field!r}"
                )
        self.fields = [parse_fields(field) for field in fields]
        self._firsts = [names[0] if names else "" for names in self.fields]
        self._taken = itemgetter(*self._firsts) if len(self._firsts) > 1 else None
        self.handler, self.missing_is_error = handler, missing_is_error
        self.none_is_error = missing_is_error if none_is_error is None else none_is_error

    @property
    def quiet(self) -> bool:
        return type(self).apply is to_tuple.apply  # a subclass's apply may not be pure

    def apply_ready(self, items: list[Sample]) -> list[tuple[Any, ...]]:
        try:
            results = list(map(self._taken, items)) if self._taken is not None else []
        except KeyError:
            results = []
        for column in zip(*results):
            if type(None) in set(map(type, column)):
                results = []
        return results or super().apply_ready(items)

    def apply(self, item: Sample) -> tuple[Any, ...]:
        try:
            # Most samples have the first name of each field: this takes a fifth of the time.
            if self._taken is not None:
                result: tuple[Any, ...] = self._taken(item)
            else:  # itemgetter makes tuples of two or more
                result = tuple([item[name] for name in self._firsts])
        except KeyError:
            result = tuple(
                [first_of(item, names, None, self.missing_is_error) for names in self.fields]
            )
        if self.none_is_error:
            for value in result:
                if value is None:
                    raise self._none_error(result)
        return result

    def _none_error(self, result: tuple[Any, ...]) -> SampleError:
        index = [value is None for value in result].index(True)
        return SampleError(
            f"to_tuple: the field {';'.join(self.fields[index])!r} is None; "
            "none_is_error=False allows that"
        )


class extract_keys(Each[Sample, tuple[Any, ...]]):
    """Makes tuples of the fields that match patterns: ``extract_keys("*.jpg;*.png", "*.cls")``.

    Each pattern must match one field. ``duplicate_is_error=False`` takes the first of
    several, ``ignore_missing=True`` leaves out missing fields.

    >>> list(extract_keys("*.jpg", "cls")([{"__key__": "a", "big.jpg": 1, "cls": 2}]))
    [(1, 2)]
    """

    keeps_count = True
    handler = staticmethod(reraise_exception)

    def __init__(
        self, *patterns: str, duplicate_is_error: bool = True, ignore_missing: bool = False
    ) -> None:
        self.patterns = [parse_fields(pattern) for pattern in patterns]
        self.duplicate_is_error, self.ignore_missing = duplicate_is_error, ignore_missing

    def apply(self, item: Sample) -> tuple[Any, ...]:
        result = []
        for patterns in self.patterns:
            found = [
                name
                for name in item
                if any(fnmatch(name, p) or fnmatch("." + name, p) for p in patterns)
            ]
            if len(found) > 1 and self.duplicate_is_error:
                raise SampleError(f"extract_keys: {patterns} match several fields: {found}")
            if not found and not self.ignore_missing:
                raise SampleError(f"extract_keys: {patterns} match no field of {list(item)}")
            if found:
                result.append(item[found[0]])
        return tuple(result)
