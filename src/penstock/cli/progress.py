"""Progress bars at a terminal.

A bar goes to stderr, only when that is a terminal, and is removed when the work is done. In a
pipe, a log or a test there is none, and rich is not imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

T = TypeVar("T")

BAR_WIDTH = 24
EVERY_S = 0.1
"""How often a bar is drawn. Drawing it for every item would take longer than reading a sample."""


_hidden = False


def hide(hidden: bool = True) -> None:
    """Draw no bars in this process from now on, as ``--quiet`` asks; False draws them again."""
    global _hidden
    _hidden = hidden


def shown() -> bool:
    """Whether bars are drawn: stderr is a terminal, and :func:`hide` was not called."""
    return not _hidden and sys.stderr.isatty()


def track(
    items: Iterable[T],
    what: str,
    total: int | None = None,
    *,
    unit: str = "samples",
) -> Iterator[T]:
    """Yield the items; meanwhile a bar shows how many have come, and how fast.

    >>> list(track(range(3), "Counting"))
    [0, 1, 2]
    """
    if not shown():
        yield from items
        return
    from rich.console import Console

    if total is None and isinstance(items, Sized):
        total = len(items)
    console = Console(stderr=True)
    bar = _bar(console, what, total, unit)
    count, started = 0, time.perf_counter()
    drawn = started
    with bar:
        task = bar.add_task(what, total=total, rate=0.0)
        for item in items:
            yield item
            count += 1
            now = time.perf_counter()
            if now - drawn > EVERY_S:
                bar.update(task, completed=count, rate=count / (now - started))
                drawn = now
        bar.update(task, completed=count, rate=count / (time.perf_counter() - started))


def _bar(console: Any, what: str, total: int | None, unit: str) -> Any:
    """Return a bar that fits the terminal; a narrow one has no time, no rate, and fewer words."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    rate = TextColumn("{task.fields[rate]:>9,.0f} " + unit + "/s", style="cyan")
    count_width = 2 * len(str(total or 0)) + 1
    left = console.width - count_width - 2
    columns: list[Any] = [MofNCompleteColumn(table_column=Column(no_wrap=True))]
    for column, width in ((rate, 12 + len(unit) + 1), (TimeElapsedColumn(), 8)):
        if left - len(what) - width >= BAR_WIDTH // 2:
            columns.append(column)
            left -= width
    words = max(min(24, left - BAR_WIDTH), min(len(what), left - BAR_WIDTH // 3), 1)
    text = TextColumn(
        "{task.description:<" + str(words) + "}",
        table_column=Column(no_wrap=True, max_width=words, overflow="ellipsis"),
    )
    line = BarColumn(bar_width=max(min(BAR_WIDTH, left - words - 1), 1))
    return Progress(text, line, *columns, console=console, transient=True)
