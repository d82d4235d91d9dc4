"""Read an index's rows from a Parquet file, or from a table in memory.

Both yield the chosen columns of row ranges in pieces, so that no rows are in memory twice.
"""

from __future__ import annotations

import bisect
import itertools
import multiprocessing
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from penstock.errors import Origin, ShardError, StaleIndexError
from penstock.shards.index.checksum import verify_checksum
from penstock.shards.index.parquet_schema import (
    OWN_COLUMNS,
    arrow,
    check_types,
    damage_of,
    damaged,
    parse_metadata,
)
from penstock.storage.streams import storage_error

Range = tuple[int, int]
"""First row and the row after the last."""


class RowSource(Protocol):
    """The source of an :class:`~penstock.shards.index.Index`'s columns."""

    @property
    def group(self) -> str:
        """How members were grouped into samples."""

    @property
    def path(self) -> str | None:
        """The file, or None."""

    @property
    def schema(self) -> Any:
        """The names and types of the columns, as an Arrow schema."""

    def names(self) -> list[str]:
        """Return the names of the columns."""

    def pieces(self, columns: Sequence[str], ranges: Sequence[Range]) -> Iterator[Any]:
        """Yield these columns of these rows, in their order, as Arrow tables."""


class MemoryRowSource:
    """A table in memory."""

    path = None
    group = "key"

    def __init__(self, table: Any) -> None:
        self.table = table

    @property
    def schema(self) -> Any:
        return self.table.schema

    def names(self) -> list[str]:
        return list(self.table.column_names)

    def pieces(self, columns: Sequence[str], ranges: Sequence[Range]) -> Iterator[Any]:
        table = self.table.select(columns)
        for start, stop in ranges:
            yield table.slice(start, stop - start)


class FileRowSource:
    """A Parquet file. Only the needed row groups are read, and the file does not stay open.

    The constructor checks the checksum, the metadata, the types of the columns and the number of
    rows, and raises StaleIndexError. ``checksum`` is None for a file of an earlier version, which
    has none.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp = self._read_stamp()
        self.checksum = verify_checksum(path)
        with damage_of(path), self._open() as file:
            schema, groups = file.schema_arrow, file.metadata
            counts = [groups.row_group(number).num_rows for number in range(file.num_row_groups)]
        self.about = parse_metadata(schema.metadata, path)
        if self.about.has_checksum and self.checksum is None:
            raise damaged("it carries no checksum, although it says so", path)
        check_types(schema, path)
        lacks = self.about.columns.keys() - set(schema.names)
        if lacks:
            raise damaged(f"it lacks its column {min(lacks)!r}", path)
        self.schema = schema
        self._begins: list[int] = [0, *itertools.accumulate(counts)]
        listed = sum(shard.samples for shard in self.about.shards)
        if min(counts, default=0) < 0 or listed != self.rows:
            raise damaged(f"it has {self.rows} rows, but its list of shards counts {listed}", path)
        self.places: dict[str, int] | None = None  # see part_files.places_of

    @classmethod
    def in_use(cls, path: str) -> FileRowSource | None:
        """Return the source of this file that an index in memory has, unless the file changed."""
        found = _in_use.get(os.path.abspath(path))
        return found if found is not None and found._read_stamp() == found._stamp else None

    @classmethod
    def shared(cls, path: str) -> FileRowSource:
        """Return the source that is in use, or a new one: a thousand data sets may share a file."""
        name = os.path.abspath(path)
        source = cls.in_use(name)
        if source is None:
            source = _in_use[name] = cls(name)
        return source

    @property
    def group(self) -> str:
        return self.about.group

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._begins[-1]

    def _read_stamp(self) -> tuple[int, int, int] | None:
        """Return what distinguishes this file from a later one with the same name."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _open(self) -> Any:
        pa = arrow()
        if self._read_stamp() != self._stamp:
            raise StaleIndexError(
                "the index was replaced while it was in use: open it again",
                origin=Origin(self.path),
            )
        try:
            return pa.parquet.ParquetFile(
                self.path, memory_map=True, page_checksum_verification=True
            )
        except FileNotFoundError:
            raise ShardError(
                "there is no such index: make it with 'penstock index'", origin=Origin(self.path)
            ) from None
        except OSError as error:
            if error.errno is None:
                raise  # Arrow's error for a damaged file
            raise storage_error("cannot read the index", self.path, error) from error

    def names(self) -> list[str]:
        return list(self.schema.names)

    def pieces(self, columns: Sequence[str], ranges: Sequence[Range]) -> Iterator[Any]:
        begins = self._begins
        with damage_of(self.path), self._open() as file:
            at = -1
            group: Any = None
            for start, stop in ranges:
                number = bisect.bisect_right(begins, start) - 1
                while start < stop:
                    if number != at:
                        at, group = number, self._read_group(file, number, columns)
                    end = min(stop, begins[number + 1])
                    yield group.slice(start - begins[number], end - start)
                    start, number = end, number + 1

    def _read_group(self, file: Any, number: int, columns: Sequence[str]) -> Any:
        # Arrow's threads do not survive the fork of a loader worker.
        threads = multiprocessing.parent_process() is None
        group = file.read_row_group(number, columns=list(columns), use_threads=threads)
        if len(group) != self._begins[number + 1] - self._begins[number]:
            raise damaged(f"row group {number} has {len(group)} rows", self.path)
        for name in columns:
            if name in OWN_COLUMNS and group.column(name).null_count:
                raise damaged(f"its column {name!r} lacks values", self.path)
        return group

    def table(self) -> Any:
        """Read all rows and columns."""
        with damage_of(self.path), self._open() as file:
            return file.read(use_threads=False)


_in_use: weakref.WeakValueDictionary[str, FileRowSource] = weakref.WeakValueDictionary()
