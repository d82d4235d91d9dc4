"""Find the end of a CBOR item, and refuse items that take too long to decode.

cbor2 hashes keys and reduces fractions while decoding. Keys that share a hash, keys that refer to
other values (tag 29) and fractions of large numbers (tag 30) can therefore take hours. The scan
reads only the heads of items and creates no values.
"""

from __future__ import annotations

from typing import Any

from penstock.codecs.hash_collisions import MAX_EQUAL_HASHES, check_count
from penstock.errors import DecodingError

_MAX_DEPTH = 400
_MAX_FRACTION_BYTES = 4096
_BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(2, 8)
_REFERENCE, _FRACTION, _SET = 29, 30, 258
_NO_END = 31


class _Container:
    """An array, map, tag or indefinite-length string whose items are not complete yet."""

    __slots__ = ("fraction", "hashed", "key_at", "kind", "left", "odd", "tag")

    def __init__(self, kind: int, left: int, tag: int, outer: _Container | None) -> None:
        self.kind, self.left, self.tag = kind, left, tag
        """``left`` items follow. Up to a break: -1, or -2 before a map's value."""
        self.fraction: bool = tag == _FRACTION or (outer is not None and outer.fraction)
        self.hashed: bool = outer is not None and (outer.hashed or outer.hashes_next())
        """True inside of a key, or of a member of a set."""
        self.key_at = -1
        self.odd: list[tuple[int, int]] = []
        """Start and end of its keys that are neither text nor small numbers."""

    def hashes_next(self) -> bool:
        if self.kind == _MAP:
            return self.left % 2 == 0 if self.left > 0 else self.left == -1
        return self.kind == _SET


def end_of_item(data: bytes, start: int = 0) -> int:
    """Return the end of the item at ``start``.

    For a truncated item the end is beyond the data, or IndexError is raised. Raise DecodingError if
    decoding the item would take too long.

    >>> end_of_item(b"\\x82\\x01\\x61a" + b"more")
    4
    """
    path: list[_Container] = []
    at = start
    while True:
        begin, first = at, data[at]
        at += 1
        major, number = first >> 5, first & 31
        if 24 <= number < 28:
            width = 1 << number - 24
            number = int.from_bytes(data[at : at + width], "big")
            at += width
        elif number >= 28 and (number != _NO_END or not _BYTES <= major <= _SIMPLE):
            raise DecodingError("cbor: an invalid item head")
        elif number == _NO_END:
            number = -1
        outer = path[-1] if path else None
        if _ARRAY <= major <= _TAG or (number < 0 and major != _SIMPLE):
            if outer is not None and outer.hashes_next():
                outer.key_at = begin
            inner = _open(major, number, outer)
            path.append(inner)
            if inner.left:
                if len(path) > _MAX_DEPTH:
                    raise DecodingError(f"cbor: items are nested more than {_MAX_DEPTH} deep")
                continue
            path.pop()
        elif major in (_BYTES, _TEXT):
            if outer is not None and outer.fraction and number > _MAX_FRACTION_BYTES:
                raise DecodingError(f"cbor: a fraction of numbers of {number} bytes")
            at += number
        elif number < 0:
            if outer is None or outer.left >= 0:
                raise DecodingError("cbor: a break outside of an indefinite-length item")
            _check_keys(path.pop(), data)
        while path:  # an item is complete, and perhaps its containers
            outer = path[-1]
            if outer.key_at >= 0:
                outer.odd.append((outer.key_at, at))
                outer.key_at = -1
            if outer.left > 0:
                outer.left -= 1
            elif outer.kind == _MAP:
                outer.left = -3 - outer.left  # alternates between -1 and -2
            if outer.left:
                break
            _check_keys(path.pop(), data)
        else:
            return at


def _open(major: int, number: int, outer: _Container | None) -> _Container:
    if major == _TAG:
        inner = _Container(major, 1, number, outer)
        if number == _REFERENCE and (inner.hashed or inner.fraction):
            raise DecodingError("cbor: a key or fraction that refers to other values")
        return inner
    if major == _MAP:
        return _Container(major, 2 * number if number > 0 else number, 0, outer)
    in_set = major == _ARRAY and outer is not None and outer.tag == _SET
    return _Container(_SET if in_set else major, number, 0, outer)


def _check_keys(inner: _Container, data: bytes) -> None:
    """Check the keys of a complete map or set."""
    if len(inner.odd) > MAX_EQUAL_HASHES:
        check_count(len(inner.odd), {_hash_of(data[begin:end]) for begin, end in inner.odd})


def _hash_of(key: bytes) -> Any:
    """Return the hash of a key, by decoding it as the only key of a map."""
    import cbor2

    return hash(next(iter(cbor2.loads(b"\xa1" + key + b"\xf6"))))
