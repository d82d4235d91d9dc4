"""``--fields "new:old1,old2 …"``: choose fields and rename them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import Origin, PipelineError, SampleError
from penstock.nearest_name import suggest


class FieldSpec:
    """Which fields of a sample to take, in this order, and under which names.

    Items are separated by spaces. ``jpg`` takes a field as it is; ``image:jpg,png`` takes the first
    of ``jpg`` and ``png`` that the sample has and names it ``image``. A single item may have its
    commas too: ``jpg,json`` takes both.

    >>> spec = FieldSpec("image:jpg,png cls")
    >>> spec.select({"__key__": "a", "png": b"...", "cls": b"3", "txt": b"x"})
    {'image': b'...', 'cls': b'3'}
    >>> FieldSpec("jpg,json").names
    ['jpg', 'json']
    """

    def __init__(self, text: str | Sequence[str]) -> None:
        words = text.split() if isinstance(text, str) else list(text)
        self.sources: dict[str, list[str]] = {}
        for word in words:
            new, colon, old = word.partition(":")
            pairs = [(new, old)] if colon else [(name, name) for name in word.split(",")]
            for name, olds in pairs:
                fields = [field.lower() for field in olds.split(",")]
                if not name or not all(fields) or name in self.sources:
                    raise PipelineError(
                        "--fields takes names or NEW:OLD1,OLD2, separated by spaces and each NEW "
                        f"once, not {word!r}"
                    )
                self.sources[name] = fields
        if not self.sources:
            raise PipelineError("--fields needs at least one field")
        self._seen: set[str] = set()
        self._found: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names that fields have afterwards."""
        return list(self.sources)

    @property
    def wanted(self) -> frozenset[str]:
        """All fields that may be looked at."""
        return frozenset(field for fields in self.sources.values() for field in fields)

    def select(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chosen fields that the sample has."""
        if len(self._seen) < 4096:
            self._seen.update(sample)
        chosen = {}
        for name, fields in self.sources.items():
            for field in fields:
                if field in sample:
                    chosen[name] = sample[field]
                    self._found.add(name)
                    break
        return chosen

    def require(self, sample: Mapping[str, Any], origin: Origin | None = None) -> dict[str, Any]:
        """Return the chosen fields; a sample that lacks one is a SampleError."""
        chosen = self.select(sample)
        for name, fields in self.sources.items():
            if name not in chosen:
                raise self._missing(fields, [f for f in sample if f[:2] != "__"], origin)
        return chosen

    def check_found(self) -> None:
        """Raise SampleError if one of the fields was in none of the samples selected from."""
        if not self._seen:
            return
        for name, fields in self.sources.items():
            if name not in self._found:
                raise self._missing(fields, [f for f in self._seen if f[:2] != "__"], None)

    def _missing(
        self, fields: list[str], known: Sequence[str], origin: Origin | None
    ) -> SampleError:
        where = "no sample has" if origin is None else "the sample lacks"
        there = ", ".join(sorted(known)[:20]) or "none"
        return SampleError(
            f"{where} the field {' or '.join(map(repr, fields))} (there are: {there})"
            f"{suggest(fields[0], known)}",
            origin=origin,
        )
