"""What commands that write shards report, and what they do with a key that comes twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from penstock.errors import DuplicateError, Origin, PipelineError
from penstock.redact import redact

DUPLICATES = ("error", "number", "keep")


@dataclasses.dataclass
class Written:
    """What a command has written."""

    output: str
    shards: int = 0
    samples: int = 0
    bytes: int = 0
    """The bytes of all fields."""
    rejected: int = 0
    failed: int = 0
    """Damaged shards that ``cat`` has cut, or commands of ``proc`` that failed in this run."""
    messages: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {**dataclasses.asdict(self), "output": redact(self.output)}


class KeyPolicy:
    """What happens to a key that a shard has already: ``--duplicates error|number|keep``.

    >>> policy = KeyPolicy("number")
    >>> [policy.apply({"__key__": key}, "x.tar")["__key__"] for key in ("a", "a", "b", "a")]
    ['a', 'a~2', 'b', 'a~3']
    """

    def __init__(self, duplicates: str) -> None:
        if duplicates not in DUPLICATES:
            raise PipelineError(
                f"duplicates= is one of {', '.join(DUPLICATES)}, not {duplicates!r}"
            )
        self.duplicates = duplicates
        self._seen: dict[str, int] = {}

    def apply(self, sample: Mapping[str, Any], shard: str) -> Mapping[str, Any]:
        """Return the sample, with another key if it must be numbered."""
        if self.duplicates == "keep":
            return sample
        key = name = sample["__key__"]
        while name in self._seen:
            if self.duplicates == "error":
                raise duplicate_error(key, shard)
            self._seen[key] += 1
            name = f"{key}~{self._seen[key]}"
        self._seen[name] = 1
        return sample if name == key else {**sample, "__key__": name}


REMEDY = "--duplicates number appends ~2, ~3 and so on, --duplicates keep writes both"


def duplicate_error(key: str, shard: str, remedy: str = REMEDY) -> DuplicateError:
    return DuplicateError(
        f"the shard would have the key {key!r} twice: {remedy}", origin=Origin(shard, key)
    )
