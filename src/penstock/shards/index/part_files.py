"""Write and join the parts of an index: one small file per shard."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import (
    Origin,
    PenstockError,
    PipelineError,
    ShardError,
    StaleIndexError,
    StorageError,
)
from penstock.redact import canonical_url
from penstock.shards.index.checksum import parquet_writer
from penstock.shards.index.columns import describe, list_needed_fields
from penstock.shards.index.parquet_schema import OWN_COLUMNS, IndexedShard, arrow, metadata_of
from penstock.shards.index.row_source import FileRowSource
from penstock.shards.index.scan import Column, scan_shard
from penstock.shards.index.shard_stamps import ends_of, stamp_of
from penstock.storage import WriteStream, open_url
from penstock.storage.urls import is_remote, local_path

logger = logging.getLogger("penstock.shards.index")

GROUP_ROWS = 131_072
"""Minimum samples of a row group: shards are joined until there are this many."""

FOLDER_TRIES = 100
"""Another builder deletes the folder of parts when its index is complete, so opening is retried."""

PART_TRIES = 20
"""A worker of an equal job may publish a shard again and replace its part: joining is retried."""

LEFT_OVER_S = 3600
"""A part file that is older was left by a killed process: no part takes this long to write."""


class PartFiles:
    """The part files of the index ``out``. Sent to the worker processes."""

    def __init__(
        self,
        out: str,
        columns: Mapping[str, Column] | None = None,
        concatenated: bool = False,
        group: str = "key",
    ) -> None:
        path = local_path(out)
        if path is None:
            raise PipelineError(f"an index is written to a local file, not to {out!r}")
        self.out, self.folder = path, path + ".parts"
        self.columns, self.concatenated, self.group = dict(columns or {}), concatenated, group

    def begin(self, urls: Sequence[str] = (), others: Collection[str] = ()) -> None:
        """Make the folder, and parts from the rows of an existing index.

        ``urls`` are the shards as the user names them, perhaps with a password. The rows of
        ``others``, those of them that nobody asked to index, are also used for copies.
        """
        own = {place_of(url): url for url in urls}
        if not any(is_remote(url) or os.path.exists(place) for place, url in own.items()):
            return  # reading the shards raises the error of a mistyped path
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the index cannot be made here ({error.strerror}): run 'penstock index SHARDS -o "
                "FILE' with a file where you may write, and use index=FILE",
                origin=Origin(self.out),
            ) from error
        if os.path.exists(self.out) and not self.concatenated:
            try:
                self._reuse(own, others)
            except PenstockError as error:
                logger.warning("the shards are read again: %s", error)

    def _reuse(self, own: Mapping[str, str], others: Collection[str]) -> None:
        """Make parts from the rows of the existing index, for shards that did not change.

        Only for the shards in ``own``: an index must not decide which URLs are opened. An index
        without a checksum is not used, because its rows cannot be verified.
        """
        source = FileRowSource(self.out)
        if source.checksum is None or source.about.columns != describe(self.columns):
            return
        if source.about.group != self.group:
            return
        names = [*OWN_COLUMNS, *self.columns]
        row = 0
        for shard in source.about.shards:
            span = (row, row + shard.samples)
            row += shard.samples
            url = own.get(place_of(shard.url))
            if url is None or os.path.exists(self.name(url)):
                continue
            shard = replace(shard, url=url)
            if is_unchanged(shard, or_copied=url in others):
                empty = source.schema.empty_table().select(names)
                pieces = source.pieces(names, [span])
                self.write(shard, arrow().concat_tables([empty, *pieces]))

    def name(self, url: str) -> str:
        """Return the path of the shard's part file."""
        identity = [place_of(url), describe(self.columns), self.concatenated]
        identity += [] if self.group == "key" else [self.group]  # parts of earlier versions fit
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        return os.path.join(self.folder, f"{digest}.parquet")

    def kept(self, url: str, *, or_copied: bool = False) -> IndexedShard | None:
        """Return the shard from its part file, if there is one and the shard did not change."""
        part = self.name(url)
        if not os.path.exists(part):
            return None
        try:
            source = FileRowSource(part)
        except PenstockError:
            return None
        if source.checksum is None or len(source.about.shards) != 1:
            return None
        shard = replace(source.about.shards[0], url=url)
        return shard if is_unchanged(shard, or_copied=or_copied) else None

    def make(self, url: str) -> IndexedShard:
        """Read the shard and write its part file."""
        fields = list_needed_fields(self.columns)
        options: dict[str, Any] = {"concatenated": self.concatenated, "group": self.group}
        shard, rows = scan_shard(url, self.columns, fields=fields, **options)
        try:
            table = rows.table()
        except ShardError as error:
            error.locate(Origin(url, None if error.origin is None else error.origin.key))
            raise
        self.write(shard, table)
        return shard

    def write(self, shard: IndexedShard, table: Any) -> None:
        """Write the rows of a shard to its part, atomically."""
        about = metadata_of([shard], describe(self.columns), None, self.group)
        table = table.replace_schema_metadata(about)
        with (
            self._open(self.name(shard.url)) as stream,
            parquet_writer(stream, table.schema) as writer,
        ):
            writer.write_table(table)

    def _open(self, part: str) -> WriteStream:
        """Open a new part file. Make its folder again if another builder deletes it."""
        for _ in range(FOLDER_TRIES):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.makedirs(self.folder, exist_ok=True)
                return open_url(part, "wb")
        os.makedirs(self.folder, exist_ok=True)
        return open_url(part, "wb")

    def clear(self, urls: Sequence[str]) -> None:
        """Delete the parts of these shards, and files that killed builds have left."""
        used = {self.name(url) for url in urls}
        long_ago = time.time() - LEFT_OVER_S
        with contextlib.suppress(OSError):  # other builders may do the same, or still write here
            for entry in os.scandir(self.folder):
                if entry.path in used or entry.stat().st_mtime < long_ago:
                    os.unlink(entry.path)
            os.rmdir(self.folder)


def place_of(url: str) -> str:
    """Return a canonical name: equal for all URLs and paths of the same shard."""
    path = local_path(url)
    return canonical_url(url) if path is None else os.path.realpath(path)


def places_of(source: FileRowSource) -> dict[str, int]:
    """Return the place of each shard of an index file → its number; computed once."""
    if source.places is None:
        shards = source.about.shards
        source.places = {place_of(shard.url): number for number, shard in enumerate(shards)}
    return source.places


def is_unchanged(shard: IndexedShard, *, or_copied: bool = False) -> bool:
    """Return whether the shard still has the stamp in the index, or may be a copy of it.

    A copy may also be a shard that was changed between its ends, so it is read again if the user
    asks for its index.
    """
    try:
        now = stamp_of(shard.url)
        if or_copied:
            shard.check(now, lambda: ends_of(shard.url))
            return True
    except PenstockError:
        return False
    return now.size_bytes is not None and now == shard.stamp


def write_index(
    out: str,
    parts: Sequence[str],
    urls: Sequence[str],
    columns: Mapping[str, str],
    group: str = "key",
) -> None:
    """Join part files into the index file ``out``."""
    for _ in range(PART_TRIES):
        with contextlib.suppress(StaleIndexError):  # a part was replaced while it was read
            return _join_parts(out, parts, urls, columns, group)
    return _join_parts(out, parts, urls, columns, group)


def _join_parts(
    out: str, parts: Sequence[str], urls: Sequence[str], columns: Mapping[str, str], group: str
) -> None:
    pa = arrow()
    shards, schemas = [], []
    for part, url in zip(parts, urls):
        source = FileRowSource(part)
        shards.append(replace(source.about.shards[0], url=url))
        schemas.append(source.schema.remove_metadata())
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    folder = os.path.dirname(os.path.abspath(local_path(out) or out))
    schema = schema.with_metadata(metadata_of(shards, columns, folder, group))
    options = {
        "use_dictionary": ["shard", "fields"],
        "column_encoding": {"offset": "DELTA_BINARY_PACKED", "size": "DELTA_BINARY_PACKED"},
    }
    with open_url(out, "wb") as stream, parquet_writer(stream, schema, **options) as writer:
        for table in _read_groups(parts, schema):
            writer.write_table(table, row_group_size=len(table))


def _read_groups(parts: Sequence[str], schema: Any) -> Iterator[Any]:
    """Yield the rows of all parts, with the numbers of their shards, as a table per row group."""
    pa = arrow()
    waiting: list[Any] = []
    rows = 0
    for number, part in enumerate(parts):
        table = FileRowSource(part).table()
        numbers = pa.array([number] * len(table), pa.int32())
        table = table.set_column(table.column_names.index("shard"), "shard", numbers)
        waiting.append(table.select(schema.names).cast(schema))
        rows += len(table)
        if rows >= GROUP_ROWS:
            yield pa.concat_tables(waiting).unify_dictionaries().combine_chunks()
            waiting, rows = [], 0
    if rows:
        yield pa.concat_tables(waiting).unify_dictionaries().combine_chunks()
