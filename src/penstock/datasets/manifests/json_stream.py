"""The pairs of one large JSON object, without ever holding all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from penstock.errors import ManifestError, Origin

BLOCK = 1 << 22  # characters read at a time
SHORT = 1 << 12  # less than this is not worth trying to read at once
_LARGEST = 1 << 28  # a row that is not complete after so many characters never will be
_NEAR = 16  # so near the end of a block, an error or a number may be only what a cut has left

_ENTRY = re.compile(r'\s*"([^"\\]*)"\s*:\s*')
_NEXT = re.compile(r"\s*(\S)")


class JsonPairs:
    """The pairs of a JSON object, some at a time, from a text stream of any length.

    What is no JSON object is a :class:`~penstock.errors.ManifestError` that names the line.

    >>> import io
    >>> list(JsonPairs(io.StringIO('{"a": {"x": 1}, "b": {"x": 2}}'), "m.json"))
    [[('a', {'x': 1})], [('b', {'x': 2})]]
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name
        self._text, self._place, self._line = "", 0, 1
        self._ended = False
        self._unclear: tuple[int, int] | None = None  # where a cut has failed
        self._decode = json.JSONDecoder().raw_decode
        self._last: list[tuple[str, Any]] = []
        self._decode_many = json.JSONDecoder(object_pairs_hook=self._object).decode

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._last = pairs
        return dict(pairs)

    def __iter__(self) -> Iterator[list[tuple[str, Any]]]:
        self._pass("{")
        if self._peek() != "}":
            yield [(self._key(), self._value())]
        while self._pass(",}") == ",":
            yield self._many() or [(self._key(), self._value())]
        if self._peek():
            raise self._error("more stands behind the end of the object")

    def _many(self) -> list[tuple[str, Any]]:
        """All pairs up to the last that surely ends in this block; none where that is unclear.

        The block is cut behind some "}" before a comma. If that is not the end of a pair
        but lies inside one, what is before it is no JSON, and the pairs are read one by one.
        """
        end = self._text.rfind("},", self._place + SHORT) + 1
        if not end or self._unclear == (self._line, end):
            return []
        try:
            self._decode_many("{" + self._text[self._place : end] + "}")
        except (json.JSONDecodeError, RecursionError):
            self._unclear = (self._line, end)
            return []
        self._place = end
        return self._last  # of the outermost object, which ended last

    def _key(self) -> str:
        found = _ENTRY.match(self._text, self._place)
        if found is not None and found.end() < len(self._text):
            self._place = found.end()
            return found[1]
        if self._peek() != '"':  # here it is cut by a block, has escapes, or is none
            raise self._error("an id in double quotes is expected here")
        key: str = self._value()
        self._pass(":")
        return key

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._place)
            except json.JSONDecodeError as error:
                sure = error.pos + _NEAR < len(self._text) and "Unterminated" not in error.msg
                if self._ended or sure:
                    raise self._error(error.msg, error.pos) from None
            except RecursionError:
                raise self._error("values are nested too deep") from None
            else:
                if end + _NEAR < len(self._text) or self._ended:
                    self._place = end
                    return value
            self._more()

    def _peek(self) -> str:
        """The next character that is no space; nothing at the end."""
        while (found := _NEXT.match(self._text, self._place)) is None:
            if self._ended:
                self._place = len(self._text)
                return ""
            self._more()
        self._place = found.start(1)
        return found[1]

    def _pass(self, wanted: str) -> str:
        """Go beyond the next character, which must be one of those wanted."""
        mark = self._peek()
        if not mark or mark not in wanted:
            raise self._error(
                f"{' or '.join(map(repr, wanted))} is expected here, not "
                f"{repr(mark) if mark else 'the end of the file'}; "
                'a manifest is {"id": {"key": value, …}, …}'
            )
        self._place += 1
        return mark

    def _more(self) -> None:
        self._line += self._text.count("\n", 0, self._place)
        rest = self._text[self._place :]
        block = self._stream.read(max(BLOCK, len(rest)))  # doubling, for rows longer than a block
        self._text, self._place, self._ended = rest + block, 0, not block
        if len(rest) > _LARGEST:
            raise self._error("a row, or a text in it, does not end")

    def _error(self, what: str, place: int | None = None) -> ManifestError:
        line = self._line + self._text.count("\n", 0, self._place if place is None else place)
        return ManifestError(f"line {line}: {what}", origin=Origin(self._name))
