"""Stages that print or log samples as they pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TextIO, TypeVar

from penstock.context import Context
from penstock.redact import redact_value
from penstock.stages.run import CountedRun, Run
from penstock.stages.stage import Stage

T = TypeVar("T")


class info(Stage[T, T]):
    """Writes the first ``n`` samples (and every ``every``-th) to ``stream``, a line per field.

    ``fmt`` is a format string for a whole sample instead: ``"{__key__} {cls}"``.

    >>> list(info(n=1, stream=sys.stdout, name="look")([{"__key__": "a", "cls": 2}]))
    --- look
    __key__ 'a'
    cls 2
    [{'__key__': 'a', 'cls': 2}]
    """

    keeps_count = True

    def __init__(
        self,
        fmt: str | None = None,
        n: int = 3,
        every: int = -1,
        width: int = 50,
        stream: TextIO | None = None,
        name: str = "",
    ) -> None:
        self.fmt, self.n, self.every, self.width = fmt, n, every, width
        self.stream, self.title = stream, name

    def __reduce__(self) -> Any:
        # A stream cannot be sent to another process; there it is that process's stderr.
        return (info, (self.fmt, self.n, self.every, self.width, None, self.title))

    def show(self, item: Any) -> str:
        if isinstance(item, dict):  # its URL may contain a password
            item = {name: redact_value(value) for name, value in item.items()}
        if self.fmt is not None:
            return self.fmt.format(**item) if isinstance(item, dict) else self.fmt.format(item)
        values = item if isinstance(item, (tuple, list)) else [item]
        pairs = item.items() if isinstance(item, dict) else enumerate(values)
        lines = [f"{name} {repr(value)[: self.width]}" for name, value in pairs]
        return "\n".join([f"--- {self.title}", *lines])

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return InfoRun(self, source, context)


class InfoRun(CountedRun[T]):
    """Runs :class:`info`."""

    def __iter__(self) -> Iterator[T]:
        stage: info[T] = self.stage
        stream = stage.stream or sys.stderr
        for item in self.source:
            if self.seen < stage.n or (stage.every > 0 and self.seen % stage.every == 0):
                stream.write(stage.show(item) + "\n")
            self.seen += 1
            yield item


class log_keys(Stage[T, T]):
    """Appends a line ``number TAB worker TAB rank TAB key`` for every sample to ``logfile``.

    Several processes may write to one file: each line is one write.

    >>> list(log_keys(None)([{"__key__": "a"}]))
    [{'__key__': 'a'}]
    """

    keeps_count = True

    def __init__(self, logfile: str | None = None) -> None:
        self.logfile = logfile

    def start(self, source: Run[T], context: Context) -> Run[T]:
        return LogKeysRun(self, source, context)


class LogKeysRun(CountedRun[T]):
    """Runs :class:`log_keys`."""

    def __iter__(self) -> Iterator[T]:
        if not self.stage.logfile:
            yield from self.source
            return
        worker, rank = self.context.worker, self.context.rank
        # Unbuffered and appending: the system writes each line in one piece, without a lock.
        with open(self.stage.logfile, "ab", buffering=0) as log:
            for item in self.source:
                key = item.get("__key__") if isinstance(item, dict) else None
                self.seen += 1
                log.write(f"{self.seen - 1}\t{worker}\t{rank}\t{key}\n".encode())
                yield item
