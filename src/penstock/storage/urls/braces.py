"""Brace expansion as in a shell: ``train-{000..099}.tar`` is a hundred names.

A pattern is parsed into a small tree (text, choices, ranges), so that the names can be counted
before any is generated: a typing error such as ``{0..999999999}`` is an error, not out of memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator

from penstock.errors import UrlError
from penstock.redact import redact

MAX_URLS = 10_000_000
MEAN_CHARACTERS = 512
"""Of the most names that are allowed: there may be fewer of longer ones, for the same memory."""
_MAX_DEPTH = 50

# Three dots are not shell syntax, but occur in people's documents: {00...24}.
_NUMBERS = re.compile(r"([+-]?\d{1,18})\.{2,3}([+-]?\d{1,18})(?:\.\.([+-]?\d{1,18}))?", re.ASCII)
_LETTERS = re.compile(r"([A-Za-z])\.{2,3}([A-Za-z])(?:\.\.([+-]?\d{1,18}))?", re.ASCII)


def expand_braces(pattern: str, *, max_urls: float = MAX_URLS, blanks: bool = True) -> list[str]:
    """Return all names of the pattern; the leftmost group varies slowest.

    ``{a,b}`` is a choice; ``{0..9}``, ``{00..10..2}``, ``{9..0}`` and ``{a..e}`` are ranges (a
    leading zero pads all numbers to one width); groups may be nested. Unmatched braces, and groups
    with neither comma nor range, are kept as text. With ``blanks=False`` so are groups that contain
    white space: in a command, ``{print $1, $2}`` is an awk program. More than ``max_urls`` names
    raise a :class:`~penstock.errors.UrlError`; of names with more than ``MEAN_CHARACTERS``, fewer
    are allowed.

    >>> expand_braces("{train,val}-{08..10}.tar")[:4]
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'val-08.tar']
    """
    if "{" not in pattern:
        return [pattern]
    tree = _BraceParser(pattern, blanks).parse(0, len(pattern))
    total = _count(tree)
    most = max_urls * min(1, MEAN_CHARACTERS / len(pattern))
    if total > max(most, 1):
        raise UrlError(
            f"a pattern may expand to at most {int(most)} names, but {redact(pattern)!r} "
            f"expands to {total}: check its ranges"
        )
    return list(_generate(tree))


@dataclasses.dataclass(frozen=True, slots=True)
class _Range:
    """The numbers or letters from first to last, in steps."""

    first: int
    last: int
    step: int
    width: int | None  # None: letters

    def __len__(self) -> int:
        return abs(self.last - self.first) // self.step + 1

    def __iter__(self) -> Iterator[str]:
        sign = -1 if self.last < self.first else 1
        numbers = range(self.first, self.last + sign, sign * self.step)
        if self.width is None:
            return map(chr, numbers)
        return (f"{number:0{self.width}d}" for number in numbers)


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    """One of several sequences."""

    options: list[_Sequence]


_Sequence = list[str | _Range | _Choice]


class _BraceParser:
    def __init__(self, pattern: str, blanks: bool) -> None:
        self.pattern, self.blanks = pattern, blanks
        self.partner: dict[int, int] = {}
        opened: list[int] = []
        depth: list[int] = [0]  # nesting depth of the finished groups inside each open one
        for index, letter in enumerate(pattern):
            if letter == "{":
                opened.append(index)
                depth.append(0)
            elif letter == "}" and opened:
                self.partner[opened.pop()] = index
                inside = depth.pop() + 1
                depth[-1] = max(depth[-1], inside)
        if max(depth) > _MAX_DEPTH:
            raise UrlError(
                f"braces may be nested {_MAX_DEPTH} deep, but not deeper: {redact(pattern)[:80]!r}"
            )

    def parse(self, start: int, stop: int) -> _Sequence:
        """Return the tree of pattern[start:stop]."""
        sequence: _Sequence = []
        text = index = start
        while (index := self.pattern.find("{", index, stop)) >= 0:
            end = self.partner.get(index)
            group = None if end is None else self._parse_group(index, end)
            if group is None or end is None:
                index += 1  # a literal brace; a group may follow
                continue
            sequence += [self.pattern[text:index], group]
            text = index = end + 1
        sequence.append(self.pattern[text:stop])
        return sequence

    def _parse_group(self, start: int, end: int) -> _Range | _Choice | None:
        body = self.pattern[start + 1 : end]
        if self.pattern[start - 1 : start] == "$":  # a shell variable, ${name}
            return None
        if not self.blanks and re.search(r"\s", body):
            return None
        commas = self._find_commas(start, end)
        if not commas:
            return _parse_range(body)
        edges = [start, *commas, end]
        return _Choice([self.parse(left + 1, right) for left, right in itertools.pairwise(edges)])

    def _find_commas(self, start: int, end: int) -> list[int]:
        commas = []
        index = start + 1
        while index < end:
            if self.pattern[index] == ",":
                commas.append(index)
            index = self.partner.get(index, index) + 1
        return commas


def _parse_range(body: str) -> _Range | None:
    if match := _NUMBERS.fullmatch(body):
        first, last, step = match.groups()
        padded = any(re.match(r"[+-]?0\d", end) for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        return _Range(int(first), int(last), abs(int(step or 1)) or 1, width)
    if match := _LETTERS.fullmatch(body):
        first, last, step = match.groups()
        return _Range(ord(first), ord(last), abs(int(step or 1)) or 1, None)
    return None


def _count(sequence: _Sequence) -> int:
    return math.prod(
        sum(map(_count, part.options)) if isinstance(part, _Choice) else len(part)
        for part in sequence
        if not isinstance(part, str)
    )


def _generate(sequence: _Sequence) -> Iterator[str]:
    return map("".join, itertools.product(*map(_generate_part, sequence)))


def _generate_part(part: str | _Range | _Choice) -> Iterable[str]:
    if isinstance(part, str):
        return (part,)
    if isinstance(part, _Range):
        return part
    return itertools.chain.from_iterable(map(_generate, part.options))
