"""Which samples of a buffer go into the next row."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from penstock.batches.bucketing.length_buffer import LengthItem, Waiting

LOOK = 32
"""So many of the oldest samples are tried as one of the two that fill a row up."""


def best_fitting(waiting: Waiting, room: float) -> list[LengthItem]:
    """The oldest ones, as they came, and then the two that fill up best what room is left.

    Taking the oldest keeps waits short and rows as mixed as the data is; always taking the longest
    that fits would use up the short ones, and leave none to fill up with.

    >>> waiting = Waiting()
    >>> for length in (4, 3, 6, 2, 5):
    ...     waiting.add(length, None, None)
    >>> [item.length for item in best_fitting(waiting, 10)]
    [4, 6]
    """
    lengths = waiting.lengths
    oldest = waiting.oldest()
    found: list[LengthItem] = []
    while not found or room - oldest.length >= lengths[len(lengths) // 2]:
        waiting.drop(oldest)
        found.append(oldest)
        room -= oldest.length
        if not lengths or lengths[0] > room:
            return found
        oldest = waiting.oldest()
    while lengths and lengths[0] <= room:
        for item in best_two(waiting, room):
            waiting.drop(item)
            found.append(item)
            room -= item.length
    return found


def best_two(waiting: Waiting, room: float) -> list[LengthItem]:
    """One or two that leave least of the room. At least one must fit."""
    lengths, items = waiting.lengths, waiting.items
    single = items[waiting.longest_within(room)]
    best, gap = [single], room - single.length
    if gap <= 0 or room < 2 * lengths[0]:
        return best
    tried = 0
    for item in waiting.by_age():
        if item.length > room - lengths[0]:
            continue
        tried += 1
        if tried > LOOK:
            break
        place = waiting.longest_within(room - item.length)
        if place < 0:  # differences of floating numbers are not exact
            continue
        if items[place] is item:
            # Beside itself: one as long that came later, or the next shorter one.
            later = place + 1 < len(items) and lengths[place + 1] == item.length
            place += 1 if later else -1
            if place < 0:
                continue
        left = room - item.length - lengths[place]
        if left < gap:
            best, gap = [item, items[place]], left
            if gap <= 0:
                break
    return best


def first_fitting(waiting: Waiting, room: float) -> list[LengthItem]:
    """The first come that fits, again and again; the oldest in any case.

    >>> waiting = Waiting()
    >>> for length in (4, 3, 6, 2, 5):
    ...     waiting.add(length, None, None)
    >>> [item.length for item in first_fitting(waiting, 10)]
    [4, 3, 2]
    """
    item: LengthItem | None = waiting.oldest()
    found: list[LengthItem] = []
    while item is not None:
        waiting.drop(item)
        found.append(item)
        room -= item.length
        item = first_within(waiting, room)
    return found


def first_within(waiting: Waiting, room: float) -> LengthItem | None:
    """The first come that fits."""
    fitting = bisect_right(waiting.lengths, room)
    if not fitting:
        return None
    if fitting * fitting <= len(waiting):  # few: look at them all; many: one is found soon by age
        return min(waiting.items[:fitting], key=attrgetter("arrival"))
    return next(item for item in waiting.by_age() if item.length <= room)


FITS = {"best": best_fitting, "first": first_fitting}
