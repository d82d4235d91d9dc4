"""Where an index's rows come from: a Parquet file, or a table in memory.

Both give the rows of chosen ranges, some columns at a time, in pieces: so nothing is ever
held twice.
"""

from __future__ import annotations

import bisect
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from penstock.errors import Origin, ShardError, StaleIndexError
from penstock.shards.index.parquet_schema import arrow

Range = tuple[int, int]
"""First row and the row behind the last."""


class Source(Protocol):
    """What an :class:`~penstock.shards.index.Index` reads its columns from."""

    @property
    def path(self) -> str | None:
        """The file, where it is one."""

    def names(self) -> list[str]:
        """The columns there are."""

    def pieces(self, columns: Sequence[str], ranges: Sequence[Range]) -> Iterator[Any]:
        """Those columns of those rows, in their order, as Arrow tables."""


class TableSource:
    """A table in memory."""

    path = None

    def __init__(self, table: Any) -> None:
        self.table = table

    def names(self) -> list[str]:
        return list(self.table.column_names)

    def pieces(self, columns: Sequence[str], ranges: Sequence[Range]) -> Iterator[Any]:
        table = self.table.select(columns)
        for start, stop in ranges:
            yield table.slice(start, stop - start)


class FileSource:
    """A Parquet file; only the row groups that are asked for are read, and nothing stays open."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp = self._found()
        with self._open() as file:
            self.metadata: dict[bytes, bytes] | None = file.schema_arrow.metadata
            self._names: list[str] = file.schema_arrow.names
            counts = (file.metadata.row_group(g).num_rows for g in range(file.num_row_groups))
            self._begins = [0]
            for count in counts:
                self._begins.append(self._begins[-1] + count)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._begins[-1]

    def _found(self) -> tuple[int, int, int] | None:
        """What tells this file from another that takes its place under the same name."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _open(self) -> Any:
        pa = arrow()
        if self._found() != self._stamp:
            raise StaleIndexError(
                "the index was replaced while it was in use: open it anew", origin=Origin(self.path)
            )
        try:
            return pa.parquet.ParquetFile(self.path, memory_map=True)
        except FileNotFoundError:
            raise ShardError(
                "there is no such index: make it with 'penstock index'", origin=Origin(self.path)
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise ShardError(f"cannot read the index: {error}", origin=Origin(self.path)) from error

    def names(self) -> list[str]:
        return list(self._names)

    def nothing(self, columns: Sequence[str]) -> Any:
        """A table with those columns and no rows."""
        with self._open() as file:
            schema = file.schema_arrow
        return schema.empty_table().select(columns)

    def pieces(self, columns: Sequence[str], ranges: Sequence[Range]) -> Iterator[Any]:
        begins = self._begins
        # Arrow's threads may not survive the fork that made a loader worker.
        threads = multiprocessing.parent_process() is None
        with self._open() as file:
            at = -1
            group: Any = None
            for start, stop in ranges:
                number = bisect.bisect_right(begins, start) - 1
                while start < stop:
                    if number != at:
                        at, group = (
                            number,
                            file.read_row_group(number, columns=list(columns), use_threads=threads),
                        )
                    end = min(stop, begins[number + 1])
                    yield group.slice(start - begins[number], end - start)
                    start, number = end, number + 1
