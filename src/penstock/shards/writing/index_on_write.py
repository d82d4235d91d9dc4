"""The index of shards, taken down while they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import PipelineError
from penstock.shards.index.build import extend_index, one_builder, refuse_columns
from penstock.shards.index.parquet_schema import IndexedShard, Rows, arrow
from penstock.shards.index.resolve import beside
from penstock.shards.index.part_files import Parts
from penstock.shards.index.shard_stamps import refuse_streams, stamp_of


class IndexWriter:
    """Takes down where each sample went; ``close`` puts that into the index file.

    What is known of a complete shard is kept beside the index at once, so nothing needs
    to be read again after a crash. Shards that the index file has already stay in it:
    several writers may fill one folder.
    """

    def __init__(
        self, index: bool | str, names: Sequence[str], *, opener: object, check: bool
    ) -> None:
        if opener is not None or not check:
            raise PipelineError(
                "index= cannot be had with opener= or check=False, since the shards may not read "
                "back as they were written: run 'penstock index' over them instead"
            )
        arrow()
        refuse_streams(names[0])
        self.out = beside(names) if isinstance(index, bool) else index
        refuse_columns(self.out)
        self._parts = Parts(self.out)
        self._shards: list[str] = []
        self._rows, self._position = Rows(), 0

    def begin(self) -> Callable[[str, Sequence[tuple[str, bytes]], Sequence[bytes]], None]:
        """A new shard begins; the function that comes back is to be told of each sample."""
        self._rows, self._position = Rows(), 0
        return self._add

    def _add(self, key: str, fields: Sequence[tuple[str, bytes]], pieces: Sequence[bytes]) -> None:
        """``pieces``: for each field its headers, its data and the padding."""
        begin = self._position
        places, sizes = [], []
        for piece in range(0, len(pieces), 3):
            self._position += len(pieces[piece])
            places.append(self._position)
            sizes.append(len(pieces[piece + 1]))
            self._position += sizes[-1] + len(pieces[piece + 2])
        self._rows.add(key, begin, self._position, [name for name, _ in fields], places, sizes)

    def end(self, url: str, *, compressed: bool, crc32: int | None = None) -> None:
        """The shard is complete and at its place."""
        checksum = None if crc32 is None else f"crc32:{crc32:08x}"
        shard = IndexedShard(
            url, len(self._rows), *stamp_of(url), compressed=compressed, checksum=checksum
        )
        self._parts.write(shard, self._rows.table())
        self._shards.append(url)
        self._rows = Rows()

    def close(self) -> None:
        """Write the index file, where there are shards."""
        if self._shards:
            with one_builder(self.out):
                extend_index(self._shards, self.out)
            self._shards = []
