"""Adds fields to samples by their key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.handlers import reraise_exception
from penstock.stages.stage import Each

Sample = dict[str, Any]


class associate(Each[Sample, Sample]):
    """Adds the fields that ``associator``, a mapping or a function, has for the sample's key.

    >>> list(associate({"a": {"cls": 1}})([{"__key__": "a", "txt": "x"}]))
    [{'__key__': 'a', 'txt': 'x', 'cls': 1}]
    """

    keeps_count = True
    handler = staticmethod(reraise_exception)

    def __init__(
        self, associator: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]
    ) -> None:
        self.associator = associator

    def apply(self, item: Sample) -> Sample:
        key = item["__key__"]
        found = self.associator(key) if callable(self.associator) else self.associator.get(key, {})
        item.update(found)
        return item
