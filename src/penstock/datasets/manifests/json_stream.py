"""Reads the pairs of one large JSON object without holding all of it in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from penstock.errors import ManifestError, Origin

BLOCK = 1 << 22  # characters read at a time
SHORT = 1 << 12  # fewer characters are not worth parsing in one call
_LARGEST = 1 << 28  # a row with more characters is treated as unterminated
_NEAR = 16  # this close to the end of a block, an error or a number may be caused by the cut

_ENTRY = re.compile(r'\s*"([^"\\]*)"\s*:\s*')
_NEXT = re.compile(r"\s*(\S)")


class JsonPairs:
    """Yields the pairs of a JSON object, several at a time, from a text stream of any length.

    Anything but a JSON object raises a :class:`~penstock.errors.ManifestError` with the line.

    >>> import io
    >>> list(JsonPairs(io.StringIO('{"a": {"x": 1}, "b": {"x": 2}}'), "m.json"))
    [[('a', {'x': 1})], [('b', {'x': 2})]]
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name
        self._text, self._offset, self._line = "", 0, 1
        self._ended = False
        self._unclear: tuple[int, int] | None = None  # a cut that failed to parse
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
            raise self._error("there is more text after the end of the object")

    def _many(self) -> list[tuple[str, Any]]:
        """Return all pairs up to the last one that ends in this block; [] if that is unclear.

        The block is cut after a "}" before a comma. If that is inside a pair, the text before it is
        not JSON, and the pairs are read one by one.
        """
        end = self._text.rfind("},", self._offset + SHORT) + 1
        if not end or self._unclear == (self._line, end):
            return []
        try:
            self._decode_many("{" + self._text[self._offset : end] + "}")
        except (ValueError, RecursionError):
            self._unclear = (self._line, end)
            return []
        self._offset = end
        return self._last  # the pairs of the outermost object, which ends last

    def _key(self) -> str:
        found = _ENTRY.match(self._text, self._offset)
        if found is not None and found.end() < len(self._text):
            self._offset = found.end()
            return found[1]
        if self._peek() != '"':  # the key is cut by the block, has escapes, or is missing
            raise self._error("an id in double quotes is expected here")
        key: str = self._value()
        self._pass(":")
        return key

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._offset)
            except json.JSONDecodeError as error:
                sure = error.pos + _NEAR < len(self._text) and "Unterminated" not in error.msg
                if self._ended or sure:
                    raise self._error(error.msg, error.pos) from None
            except RecursionError:
                raise self._error("values are nested too deep") from None
            except ValueError as error:  # a number with thousands of digits
                raise self._error(str(error)) from None
            else:
                if end + _NEAR < len(self._text) or self._ended:
                    self._offset = end
                    return value
            self._more()

    def _peek(self) -> str:
        """Return the next character that is not a space; "" at the end."""
        while (found := _NEXT.match(self._text, self._offset)) is None:
            if self._ended:
                self._offset = len(self._text)
                return ""
            self._more()
        self._offset = found.start(1)
        return found[1]

    def _pass(self, wanted: str) -> str:
        """Consume the next character, which must be one of ``wanted``."""
        mark = self._peek()
        if not mark or mark not in wanted:
            raise self._error(
                f"{' or '.join(map(repr, wanted))} is expected here, not "
                f"{repr(mark) if mark else 'the end of the file'}; "
                'a manifest is {"id": {"key": value, …}, …}'
            )
        self._offset += 1
        return mark

    def _more(self) -> None:
        self._line += self._text.count("\n", 0, self._offset)
        rest = self._text[self._offset :]
        block = self._stream.read(max(BLOCK, len(rest)))  # doubling, for rows longer than a block
        self._text, self._offset, self._ended = rest + block, 0, not block
        if len(rest) > _LARGEST:
            raise self._error("a row, or a text in it, does not end")

    def _error(self, what: str, offset: int | None = None) -> ManifestError:
        line = self._line + self._text.count("\n", 0, self._offset if offset is None else offset)
        return ManifestError(f"line {line}: {what}", origin=Origin(self._name))
