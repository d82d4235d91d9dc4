"""What a pipeline must return, in plain Python. Nothing here imports the library.

An item is a tuple of ids: one for a number, several for a batch. How much is known about a stream
is its *grade*:

    order   exactly these items, in this order
    bag     exactly these items, in some order
    flat    exactly these ids, in some order and grouping
    some    no other ids than these
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle, islice
from typing import Any, NamedTuple

Item = tuple[int, ...]


class Known(NamedTuple):
    items: list[Item]
    grade: str

    def ids(self) -> list[int]:
        return list(chain.from_iterable(self.items))

    def problem(self, found: Sequence[Item]) -> str | None:
        """Why a run that returned these items is wrong; None if it is not."""
        ids = list(chain.from_iterable(found))
        if self.grade == "order":
            return difference(self.items, found)
        if self.grade == "bag":
            return bag_difference(self.items, found)
        if self.grade == "flat":
            return bag_difference(self.ids(), ids)
        strangers = set(ids) - set(self.ids())
        return f"ids that are not in the data: {sorted(strangers)}" if strangers else None


def difference(wanted: Sequence[Any], found: Sequence[Any]) -> str | None:
    """The first place where two sequences differ."""
    for place, (one, other) in enumerate(zip(wanted, found)):
        if one != other:
            return f"item {place} is {other}, expected {one}"
    if len(wanted) != len(found):
        return f"{len(found)} items, expected {len(wanted)}"
    return None


def bag_difference(wanted: Iterable[Any], found: Iterable[Any]) -> str | None:
    wanted, found = Counter(wanted), Counter(found)
    missing, extra = wanted - found, found - wanted
    if missing or extra:
        return f"missing {sorted(missing.elements())}, too many {sorted(extra.elements())}"
    return None


Change = Callable[..., Known]


def per_item(change: Callable[..., list[int]]) -> Change:
    """Any number of items for each, whatever came before: ``change(id, …)`` returns their ids."""

    def apply(known: Known, *args: Any) -> Known:
        items: list[tuple[int, ...]] = [
            (id,) for (old,) in known.items for id in change(old, *args)
        ]
        return known._replace(items=items)

    return apply


def per_stream(change: Callable[..., list[Item]], otherwise: str = "some") -> Change:
    """A change that depends on the order; where that is not known, the grade is ``otherwise``."""

    def apply(known: Known, *args: Any) -> Known:
        if known.grade == "order":
            return known._replace(items=change(known.items, *args))
        return known._replace(grade=worst(known.grade, otherwise))

    return apply


GRADES = ("order", "bag", "flat", "some")


def worst(*grades: str) -> str:
    return max(grades, key=GRADES.index)


def same(known: Known, *args: Any) -> Known:
    return known


def graded(grade: str) -> Change:
    """The same ids, of which less is known."""
    return lambda known, *args: known._replace(grade=worst(known.grade, grade))


def chunks(known: Known, size: int, partial: bool = True) -> Known:
    """Batches of numbers."""
    if known.grade != "order":
        return known._replace(grade=worst(known.grade, "flat" if partial else "some"))
    ids = known.ids()
    items = [tuple(ids[start : start + size]) for start in range(0, len(ids), size)]
    return known._replace(items=[item for item in items if partial or len(item) == size])


def single(known: Known) -> Known:
    """Batches taken apart."""
    return known._replace(items=[(id,) for id in known.ids()])


def cut(known: Known, length: int) -> Known:
    """The stream, begun again as often as needed and cut to ``length`` items."""
    if known.grade == "order":
        return known._replace(items=list(islice(cycle(known.items), length)))
    return known._replace(grade="some")


def alternate(streams: Iterable[Iterable[Any]], longest: bool = True) -> Iterator[Any]:
    """One item from each stream in turn; ended ones are passed over, or end it all."""
    iterators = [iter(stream) for stream in streams]
    while iterators:
        for iterator in list(iterators):
            try:
                yield next(iterator)
            except StopIteration:
                if not longest:
                    return
                iterators.remove(iterator)
