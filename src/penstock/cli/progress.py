"""Progress bars: the one place that makes them.

A bar is for a person who waits. It goes to stderr, only when that is a terminal, and is gone when
the work is done; in a pipe, a log or a test there is none, and rich is not even loaded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

EVERY_S = 0.1
"""How often a bar moves. Drawing it for every item would take longer than reading a sample."""


def shown() -> bool:
    """Whether somebody can see a bar."""
    return sys.stderr.isatty()


def track(
    items: Iterable[T], what: str, total: int | None = None, *, unit: str = "samples"
) -> Iterator[T]:
    """Gives the items; meanwhile a bar tells how many have come, and how fast.

    >>> list(track(range(3), "Counting"))
    [0, 1, 2]
    """
    if not shown():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if total is None and isinstance(items, Sized):
        total = len(items)
    rate = TextColumn("{task.fields[rate]:>9,.0f} " + unit + "/s", style="cyan")
    bar = Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        rate,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    count, started = 0, time.perf_counter()
    told = started
    with bar:
        task = bar.add_task(what, total=total, rate=0.0)
        for item in items:
            yield item
            count += 1
            now = time.perf_counter()
            if now - told > EVERY_S:
                bar.update(task, completed=count, rate=count / (now - started))
                told = now
        bar.update(task, completed=count, rate=count / (time.perf_counter() - started))
