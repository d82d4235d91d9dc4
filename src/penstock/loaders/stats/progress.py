"""A progress bar for terminals that displays the loader's statistics."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

EVERY_S = 0.5
"""Interval between updates, long enough to read the figures."""


def watch(loader: Any, what: str = "Training", total: int | None = None) -> Iterator[Any]:
    """Yield the loader's batches and show a progress bar with the line of ``loader.stats()``.

    The bar is drawn on stderr if that is a terminal. ``total`` is the number of batches, by default
    the loader's length if it has one.

    >>> import penstock
    >>> loader = penstock.WebLoader(penstock.DataPipeline([1, 2, 3]), batch_size=None)
    >>> list(penstock.watch(loader))
    [1, 2, 3]
    """
    if not sys.stderr.isatty():
        yield from loader
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if total is None:
        try:
            total = len(loader)
        except TypeError:  # the number of batches is not known
            total = None
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[line]}", style="cyan"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total, line="")
        updated = 0.0
        for number, batch in enumerate(loader, 1):
            yield batch
            now = time.perf_counter()
            if now - updated > EVERY_S:
                bar.update(task, completed=number, line=loader.stats().line())
                updated = now
