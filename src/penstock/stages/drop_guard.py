"""Detects a stage that drops everything while the data is read again without end.

``resampled=True``, ``repeat()`` and ``with_epoch(n)`` read the data repeatedly. If a stage drops
every item, the loop that waits for one would never return. A rare item must still be waited for:
a stage may drop at random, and one pass over a small source may be unlucky.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError

if TYPE_CHECKING:
    from penstock.stages.run import Run

MOST_PASSES = 100
"""The most passes over the data that may yield nothing."""
MANY_ITEMS = 100_000
"""One pass with this many dropped items is enough, unless the stage drops at random."""
CHECKED_ITEMS = 64
"""A stage checks the passes once per this many consecutive dropped items."""


class Dropping:
    """Checks how many consecutive items stages drop, and in how many passes over the source.

    If ``counts`` is True, the caller's loop keeps the number of dropped items in a local variable
    and updates it with :meth:`more`.
    """

    def __init__(self, *runs: Run[Any]) -> None:
        self.runs = runs
        self.counts: bool = runs[0].endless or runs[0].context.counts_drops
        self._since: int | None = None

    def more(self, dropped: int) -> int:
        """Return ``dropped`` plus one, and check every ``CHECKED_ITEMS`` items."""
        dropped += self.counts
        source = self.runs[0].source
        if dropped and not dropped % CHECKED_ITEMS and source is not None:
            self.check(dropped, source.full_passes())
        return dropped

    def check(self, dropped: int, passes: int | None) -> None:
        """Raise a :class:`~penstock.errors.PipelineError` if no item can be expected.

        ``passes`` is the source's ``full_passes()`` after the last of these items.
        """
        if dropped <= CHECKED_ITEMS or self._since is None or passes is None:
            self._since = passes
            return
        whole = passes - self._since - 1  # the first and the last may be parts of a pass
        many = dropped >= MANY_ITEMS
        if any(run.may_keep_items for run in self.runs):
            hopeless = whole >= MOST_PASSES and many
        else:
            at_random = any(run.drops_at_random for run in self.runs)
            hopeless = whole >= MOST_PASSES or (whole >= 1 and many and not at_random)
        if hopeless:
            names = ", ".join(run.name for run in self.runs)
            raise _nothing_left_error(f"{names} dropped {dropped} items in a row", whole)


def check_empty_pass(last: Run[Any], passes: int) -> None:
    """Raise after ``passes`` consecutive passes without an item, if these are too many.

    ``last`` is the last stage of the pass. The source was not empty.
    """
    runs = list(_all_runs(last))
    many = sum(run.dropped for run in runs) >= MANY_ITEMS
    if passes >= MOST_PASSES or (many and not any(run.drops_at_random for run in runs)):
        names = dict.fromkeys(run.name for run in runs if run.dropped)
        who = f"{', '.join(names)} dropped every item" if names else "no item came out"
        raise _nothing_left_error(who, passes)


def fewest(passes: Iterable[int | None]) -> int | None:
    """Return the passes of several sources as those of one, which is endless if all are.

    >>> fewest([3, 2]), fewest([3, None]), fewest([])
    (2, None, None)
    """
    found = list(passes)
    known = [count for count in found if count is not None]
    return min(known) if known and len(known) == len(found) else None


def _nothing_left_error(what: str, passes: int) -> PipelineError:
    times = "a whole pass" if passes == 1 else f"{passes} whole passes"
    return PipelineError(
        f"{what} in {times} over the data, which would be read again without end: check when the "
        "stage drops items, and the data"
    )


def _all_runs(run: Run[Any]) -> Iterator[Run[Any]]:
    yield run
    for parent in run.parents():
        yield from _all_runs(parent)
