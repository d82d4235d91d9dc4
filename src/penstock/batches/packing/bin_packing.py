"""Chooses the samples of a buffer that go into the next row."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from penstock.batches.bucketing.length_buffer import LengthBuffer, LengthItem

LOOK = 32
"""How many of the oldest samples are tried as one of the two that fill a row."""


def take_best_fitting(waiting: LengthBuffer, space: float) -> list[LengthItem]:
    """Take the oldest items in order, then the two that best fill the space that is left.

    Taking the oldest keeps waits short and rows as mixed as the data. Always taking the longest
    that fits would use up the short ones, and leave none to fill rows with.

    >>> waiting = LengthBuffer()
    >>> for length in (4, 3, 6, 2, 5):
    ...     waiting.add(length, None, None)
    >>> [item.length for item in take_best_fitting(waiting, 10)]
    [4, 6]
    """
    lengths = waiting.lengths
    oldest = waiting.oldest()
    found: list[LengthItem] = []
    while not found or space - oldest.length >= lengths[len(lengths) // 2]:
        waiting.drop(oldest)
        found.append(oldest)
        space -= oldest.length
        if not lengths or lengths[0] > space:
            return found
        oldest = waiting.oldest()
    while lengths and lengths[0] <= space:
        for item in find_best_two(waiting, space):
            waiting.drop(item)
            found.append(item)
            space -= item.length
    return found


def find_best_two(waiting: LengthBuffer, space: float) -> list[LengthItem]:
    """Return the one or two items that leave least of the space. At least one must fit."""
    lengths, items = waiting.lengths, waiting.items
    single = items[waiting.longest_within(space)]
    best, gap = [single], space - single.length
    if gap <= 0 or space < 2 * lengths[0]:
        return best
    tried = 0
    for item in waiting.by_age():
        if item.length > space - lengths[0]:
            continue
        tried += 1
        if tried > LOOK:
            break
        index = waiting.longest_within(space - item.length)
        if index < 0:  # differences of floats are not exact
            continue
        if items[index] is item:
            # It was paired with itself: take a later item of the same length, or a shorter one.
            later = index + 1 < len(items) and lengths[index + 1] == item.length
            index += 1 if later else -1
            if index < 0:
                continue
        left = space - item.length - lengths[index]
        if left < gap:
            best, gap = [item, items[index]], left
            if gap <= 0:
                break
    return best


def take_first_fitting(waiting: LengthBuffer, space: float) -> list[LengthItem]:
    """Take the oldest item, then repeatedly the oldest that fits the space that is left.

    >>> waiting = LengthBuffer()
    >>> for length in (4, 3, 6, 2, 5):
    ...     waiting.add(length, None, None)
    >>> [item.length for item in take_first_fitting(waiting, 10)]
    [4, 3, 2]
    """
    item: LengthItem | None = waiting.oldest()
    found: list[LengthItem] = []
    while item is not None:
        waiting.drop(item)
        found.append(item)
        space -= item.length
        item = find_oldest_within(waiting, space)
    return found


def find_oldest_within(waiting: LengthBuffer, space: float) -> LengthItem | None:
    """Return the oldest item that fits, or None."""
    fitting = bisect_right(waiting.lengths, space)
    if not fitting:
        return None
    if fitting * fitting <= len(waiting):  # few fit: search them all; of many, one is old
        return min(waiting.items[:fitting], key=attrgetter("arrival"))
    return next(item for item in waiting.by_age() if item.length <= space)


FITS = {"best": take_best_fitting, "first": take_first_fitting}
