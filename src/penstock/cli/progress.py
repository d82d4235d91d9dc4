"""Progress bars: the one place that makes them.

A bar is for a person who waits. It goes to stderr, only when that is a terminal, and leaves
one line behind; in a pipe, a log or a test there is none, and rich is not even loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def shown() -> bool:
    """Whether somebody can see a bar."""
    return sys.stderr.isatty()


def track(
    items: Iterable[T], what: str, total: int | None = None, *, unit: str = "samples"
) -> Iterator[T]:
    """Gives the items; meanwhile a bar tells how many have come, how fast, and how long it takes yet.

    >>> list(track(range(3), "Counting"))
    [0, 1, 2]
    """
    if not shown():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if total is None and hasattr(items, "__len__"):
        total = len(items)
    rate = TextColumn("{task.fields[rate]:>9,.0f} " + unit + "/s", style="cyan")
    bar = Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        rate,
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(what, total=total, rate=0.0)
        for count, item in enumerate(items, start=1):
            yield item
            seconds = bar.tasks[task].elapsed or 0.0
            bar.update(task, completed=count, rate=count / seconds if seconds else 0.0)
