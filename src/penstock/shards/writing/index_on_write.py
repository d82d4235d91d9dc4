"""Record the index of shards while they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import PipelineError
from penstock.shards.index.build import extend_index, one_builder, refuse_columns
from penstock.shards.index.default_path import beside
from penstock.shards.index.parquet_schema import IndexedShard, IndexRows, arrow
from penstock.shards.index.part_files import PartFiles
from penstock.shards.index.shard_stamps import ends_of, refuse_streams, stamp_of
from penstock.storage.urls import local_path


class IndexWriter:
    """Records the position of each sample; ``close`` writes the index file.

    The rows of a complete shard are saved next to the index at once, so that nothing needs to be
    read again after a crash. Shards that are already in the index file stay in it: several writers
    may fill one folder.
    """

    def __init__(
        self, index: bool | str, names: Sequence[str], *, opener: object, check: bool
    ) -> None:
        if opener is not None or not check:
            raise PipelineError(
                "index= cannot be combined with opener= or check=False, since the shards may not "
                "read back as they were written: run 'penstock index' over them instead"
            )
        arrow()
        refuse_streams(names[0])
        self.out = beside(names) if isinstance(index, bool) else local_path(index) or index
        refuse_columns(self.out)
        self._parts = PartFiles(self.out)
        self._shards: list[str] = []
        self._rows = ShardRows(self._parts)

    def begin(self) -> Callable[[str, Sequence[tuple[str, bytes]], Sequence[bytes]], None]:
        """Begin a new shard. Return the function to call with each of its samples."""
        self._rows = ShardRows(self._parts)
        return self._rows.add

    def end(self, url: str, *, compressed: bool, crc32: int | None = None) -> None:
        """Save the rows of a shard that is complete and visible."""
        self._rows.end(url, compressed=compressed, crc32=crc32)
        self._shards.append(url)

    def close(self) -> None:
        """Write the index file, if there are shards."""
        if self._shards:
            with one_builder(self.out):
                extend_index(self._shards, self.out)
            self._shards = []


class ShardRows:
    """The index rows of one shard, collected while it is written; ``end`` writes its part file."""

    def __init__(self, parts: PartFiles) -> None:
        self._parts = parts
        self._rows, self._position = IndexRows(), 0

    def add(self, key: str, fields: Sequence[tuple[str, bytes]], pieces: Sequence[bytes]) -> None:
        """Record a sample. ``pieces`` are the headers, the data and the padding of each field."""
        begin = self._position
        offsets, sizes = [], []
        for piece in range(0, len(pieces), 3):
            self._position += len(pieces[piece])
            offsets.append(self._position)
            sizes.append(len(pieces[piece + 1]))
            self._position += sizes[-1] + len(pieces[piece + 2])
        self._rows.add(key, begin, self._position, [name for name, _ in fields], offsets, sizes)

    def end(self, url: str, *, compressed: bool, crc32: int | None = None) -> None:
        """Write the part file of a shard that is complete and visible."""
        checksum = None if crc32 is None else f"crc32:{crc32:08x}"
        shard = IndexedShard(
            *(url, len(self._rows), *stamp_of(url)),
            compressed=compressed,
            checksum=checksum,
            ends=ends_of(url),
        )
        self._parts.write(shard, self._rows.table())
        self._rows = IndexRows()
