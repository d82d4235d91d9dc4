"""A progress bar that tells how the loader does, for a person at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

EVERY_S = 0.5
"""How often the line changes: figures that jump cannot be read."""


def watch(loader: Any, what: str = "Training", total: int | None = None) -> Iterator[Any]:
    """Gives the loader's batches; meanwhile a bar shows the line of ``loader.stats()``.

    It is drawn on stderr, where that is a terminal; in a pipe or a log there is none. ``total`` is
    the number of batches, by default the loader's length where it has one.

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
        except TypeError:  # how many batches there are is not known
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
        told = 0.0
        for number, batch in enumerate(loader, 1):
            yield batch
            now = time.perf_counter()
            if now - told > EVERY_S:
                bar.update(task, completed=number, line=loader.stats().line())
                told = now
