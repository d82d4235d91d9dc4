"""The parts that an index is put together from: one small file per shard."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import Origin, PenstockError, PipelineError, StorageError
from penstock.shards.index.columns import describe, fields_looked_at
from penstock.shards.index.parquet_schema import (
    OWN_COLUMNS,
    IndexedShard,
    arrow,
    metadata_of,
    parse_metadata,
)
from penstock.shards.index.scan import Column, scan_shard
from penstock.shards.index.shard_stamps import stamp_of
from penstock.shards.index.row_source import FileSource
from penstock.redact import named
from penstock.storage import WriteStream, open_url
from penstock.storage.urls import local_path

GROUP_ROWS = 131_072
"""A row group of the file: shards are put together until there are that many samples."""

FOLDER_TRIES = 100
"""An index that is complete has its folder of parts deleted, just when the next one needs it."""

LEFT_OVER_S = 3600
"""Nobody writes one part for that long."""


class Parts:
    """The part files of the index ``out``; goes to the worker processes."""

    def __init__(
        self, out: str, columns: Mapping[str, Column] | None = None, concatenated: bool = False
    ) -> None:
        path = local_path(out)
        if path is None:
            raise PipelineError(f"an index is written to a local file, not to {out!r}")
        self.out, self.folder = path, path + ".parts"
        self.columns, self.concatenated = dict(columns or {}), concatenated

    def begin(self, urls: Sequence[str] = ()) -> None:
        """Make the folder, and parts of what an index that is there already knows.

        ``urls`` are the shards as the user names them, perhaps with a password.
        """
        own = {place_of(url): url for url in urls}
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the index cannot be made here ({error.strerror}): run 'penstock index SHARDS -o "
                "FILE' with a file where you may write, and say index=FILE",
                origin=Origin(self.out),
            ) from error
        if not os.path.exists(self.out) or self.concatenated:
            return
        with contextlib.suppress(PenstockError):  # an old or damaged one is of no use
            source = FileSource(self.out)
            shards, described = parse_metadata(source.metadata, self.out)
            if described != describe(self.columns):
                return
            names = [*OWN_COLUMNS, *self.columns]
            row = 0
            for shard in shards:
                shard = replace(shard, url=own.get(place_of(shard.url), shard.url))
                place = (row, row + shard.samples)
                row += shard.samples
                if os.path.exists(self.name(shard.url)) or not is_as_told(shard):
                    continue
                pieces = list(source.pieces(names, [place])) or [source.nothing(names)]
                self.write(shard, arrow().concat_tables(pieces))

    def name(self, url: str) -> str:
        """The shard's part file."""
        told = json.dumps([place_of(url), describe(self.columns), self.concatenated])
        digest = hashlib.sha256(told.encode()).hexdigest()[:32]
        return os.path.join(self.folder, f"{digest}.parquet")

    def kept(self, url: str) -> IndexedShard | None:
        """The shard as it was found earlier, where that is still true."""
        part = self.name(url)
        if not os.path.exists(part):
            return None
        try:
            shards, _ = parse_metadata(FileSource(part).metadata, part)
        except PenstockError:
            return None
        return replace(shards[0], url=url) if is_as_told(replace(shards[0], url=url)) else None

    def make(self, url: str) -> IndexedShard:
        """Read the shard and write its part."""
        fields = fields_looked_at(self.columns)
        shard, rows = scan_shard(url, self.columns, fields=fields, concatenated=self.concatenated)
        self.write(shard, rows.table())
        return shard

    def write(self, shard: IndexedShard, table: Any) -> None:
        """Write the rows of a shard to its part; it appears whole or not at all."""
        about = metadata_of([shard], describe(self.columns), None)
        with self._open(self.name(shard.url)) as stream:
            arrow().parquet.write_table(
                table.replace_schema_metadata(about), stream, compression="zstd"
            )

    def _open(self, part: str) -> WriteStream:
        """A new part file; its folder is made, however often another builder deletes it."""
        for _ in range(FOLDER_TRIES):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.makedirs(self.folder, exist_ok=True)
                return open_url(part, "wb")
        os.makedirs(self.folder, exist_ok=True)
        return open_url(part, "wb")

    def clear(self, urls: Sequence[str]) -> None:
        """Delete the parts of these shards, and what builds that were killed have left."""
        used = {self.name(url) for url in urls}
        long_ago = time.time() - LEFT_OVER_S
        with contextlib.suppress(OSError):  # others may do the same, or still write here
            for entry in os.scandir(self.folder):
                if entry.path in used or entry.stat().st_mtime < long_ago:
                    os.unlink(entry.path)
            os.rmdir(self.folder)


def place_of(url: str) -> str:
    """The same text for all ways to name the same place."""
    path = local_path(url)
    return named(url) if path is None else os.path.realpath(path)


def is_as_told(shard: IndexedShard) -> bool:
    """Whether the shard is still what the index says of it."""
    try:
        now = stamp_of(shard.url)
    except PenstockError:
        return False
    return now.size_bytes is not None and now == shard.stamp


def write_index(
    out: str, parts: Sequence[str], urls: Sequence[str], columns: Mapping[str, str]
) -> None:
    """Put part files together into the index file ``out``."""
    pa = arrow()
    shards, schemas = [], []
    for part, url in zip(parts, urls):
        found, _ = parse_metadata(FileSource(part).metadata, part)
        shards.append(replace(found[0], url=url))
        schemas.append(pa.parquet.read_schema(part).remove_metadata())
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    folder = os.path.dirname(os.path.abspath(local_path(out) or out))
    schema = schema.with_metadata(metadata_of(shards, columns, folder))
    options = {
        "compression": "zstd",
        "use_dictionary": ["shard", "fields"],
        "column_encoding": {"offset": "DELTA_BINARY_PACKED", "size": "DELTA_BINARY_PACKED"},
    }
    with (
        open_url(out, "wb") as stream,
        contextlib.closing(pa.parquet.ParquetWriter(stream, schema, **options)) as writer,
    ):
        for table in _groups(parts, schema):
            writer.write_table(table, row_group_size=len(table))


def _groups(parts: Sequence[str], schema: Any) -> Iterator[Any]:
    """The rows of all parts, with the numbers of their shards, in tables of a row group each."""
    pa = arrow()
    waiting: list[Any] = []
    rows = 0
    for number, part in enumerate(parts):
        table = pa.parquet.read_table(part, use_threads=False)
        numbers = pa.array([number] * len(table), pa.int32())
        table = table.set_column(table.column_names.index("shard"), "shard", numbers)
        waiting.append(table.select(schema.names).cast(schema))
        rows += len(table)
        if rows >= GROUP_ROWS:
            yield pa.concat_tables(waiting).unify_dictionaries().combine_chunks()
            waiting, rows = [], 0
    if rows:
        yield pa.concat_tables(waiting).unify_dictionaries().combine_chunks()
