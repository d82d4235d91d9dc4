"""``diff``: samples that were added, removed, moved or changed between two data sets."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from penstock.redact import redact
from penstock.tools.inputs import LocatedSample, Shards, list_shards, read_samples


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One sample that differs: ``change`` is added, removed, moved or changed."""

    change: str
    key: str
    old_shard: str | None = None
    new_shard: str | None = None
    fields: tuple[str, ...] = ()
    """``changed``: the fields that differ, with + if new and - if gone."""

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        figures = dataclasses.asdict(self)
        for side in ("old_shard", "new_shard"):
            figures[side] = None if figures[side] is None else redact(figures[side])
        return figures

    def __str__(self) -> str:
        mark = {"added": "+", "removed": "-", "moved": ">", "changed": "!"}[self.change]
        if self.change == "changed":
            return f"{mark} {self.key}  {' '.join(self.fields)}"
        if self.change == "moved":
            where = f"{redact(self.old_shard or '')} to {redact(self.new_shard or '')}"
            return f"{mark} {self.key}  {where}"
        return f"{mark} {self.key}  {redact(self.old_shard or self.new_shard or '')}"


class _Place(NamedTuple):
    number: int  # of the shard in the list
    shard: str
    order: int  # of the sample in the data set
    fields: dict[str, bytes]  # field → digest of its content


def diff(
    a: Shards,
    b: Shards,
) -> Iterator[Difference]:
    """Yield how the samples of ``b`` differ from those of ``a``.

    Samples are matched by key; the second sample of a key in one set is matched with the
    second in the other. ``moved`` is a sample with the same content in another shard of the list,
    or in another order in the same shard. ``changed`` names the fields whose content differs.
    """
    old, new = list_shards(a), list_shards(b)
    yield from compare(read_samples(old), read_samples(new))


def compare(a: Iterable[LocatedSample], b: Iterable[LocatedSample]) -> Iterator[Difference]:
    """Yield the differences between two streams of samples."""
    old = dict(_places(a))
    common: list[tuple[str, _Place, _Place]] = []
    for name, place in _places(b):
        before = old.pop(name, None)
        key = name[0]
        if before is None:
            yield Difference("added", key, None, place.shard)
            continue
        fields = tuple(_changed(before.fields, place.fields))
        if fields:
            yield Difference("changed", key, before.shard, place.shard, fields)
        else:
            common.append((key, before, place))
    for name, place in old.items():
        yield Difference("removed", name[0], place.shard)
    yield from _moved(common)


def _places(samples: Iterable[LocatedSample]) -> Iterator[tuple[tuple[str, int], _Place]]:
    seen: collections.Counter[str] = collections.Counter()
    for order, located in enumerate(samples):
        key = located.key
        seen[key] += 1
        digests = {field: _digest(data) for field, data in located.fields.items()}
        yield (key, seen[key]), _Place(located.number, located.shard, order, digests)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _changed(old: dict[str, bytes], new: dict[str, bytes]) -> Iterator[str]:
    for field in sorted({*old, *new}):
        if field not in new:
            yield f"-{field}"
        elif field not in old:
            yield f"+{field}"
        elif old[field] != new[field]:
            yield field


def _moved(common: list[tuple[str, _Place, _Place]]) -> Iterator[Difference]:
    """Yield samples in another shard, and the fewest that explain another order within one."""
    staying: dict[int, list[tuple[str, _Place, _Place]]] = collections.defaultdict(list)
    for key, old, new in common:
        if old.number != new.number:
            yield Difference("moved", key, old.shard, new.shard)
        else:
            staying[old.number].append((key, old, new))
    for group in staying.values():
        keep = longest_ascending([old.order for _, old, _ in group])
        for place, (key, old, new) in enumerate(group):
            if place not in keep:
                yield Difference("moved", key, old.shard, new.shard)


def longest_ascending(numbers: list[int]) -> set[int]:
    """Return the indexes of a longest ascending subsequence.

    >>> sorted(longest_ascending([3, 0, 1, 2]))
    [1, 2, 3]
    """
    tails: list[int] = []  # the lowest number that ends an ascending subsequence of each length
    places: list[int] = []
    before: list[int] = []
    for place, number in enumerate(numbers):
        length = bisect.bisect_left(tails, number)
        before.append(places[length - 1] if length else -1)
        if length == len(tails):
            tails.append(number)
            places.append(place)
        else:
            tails[length], places[length] = number, place
    keep: set[int] = set()
    place = places[-1] if places else -1
    while place >= 0:
        keep.add(place)
        place = before[place]
    return keep
