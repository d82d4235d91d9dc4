"""Scan a shard into index rows: headers are read, payloads only if a column needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import Origin, ShardError
from penstock.redact import canonical_url
from penstock.shards.byte_windows import FileWindow
from penstock.shards.decompress import MAGIC_BYTES, decompressor_for
from penstock.shards.header import padded
from penstock.shards.index.parquet_schema import IndexedShard, IndexRows
from penstock.shards.index.shard_stamps import ends_of, refuse_streams, stamp_of
from penstock.shards.open_shard import tape_of
from penstock.shards.sample_reader import Samples, base_plus_ext, text_of
from penstock.shards.tar_reader import Member, TarReader
from penstock.storage import open_url
from penstock.storage.client.checksums import Crc32
from penstock.storage.urls import is_remote

Column = Callable[[Mapping[str, Any]], Any]
"""A user's column: from a sample of raw bytes to one value."""


class PlaceReader(TarReader):
    """A reader whose members have their :class:`Member` as data: offsets instead of bytes.

    So the same code groups members into samples for reading and for the index, and both agree on
    unusual shards.
    """

    @classmethod
    def of(cls, tape: TarReader) -> PlaceReader:
        """Return a reader of this class for a tape from which nothing was read yet."""
        options: dict[str, Any] = {"want": tape.want, "concatenated": tape.concatenated}
        return cls(tape.window, tape.url, start=tape.base, rest=tape.buffer, **options)

    def next_member(self, *arguments: Any) -> Member | None:
        member = super().next_member(*arguments)
        return None if member is None else member._replace(data=member)  # type: ignore[arg-type]


def scan_shard(
    url: str,
    columns: Mapping[str, Column] | None = None,
    *,
    fields: frozenset[str] | None = None,
    concatenated: bool = False,
    group: str = "key",
) -> tuple[IndexedShard, IndexRows]:
    """Return the shard's entry for the list of shards, and the rows of its samples.

    ``columns`` are computed from each sample; ``fields`` are those that they read (None: all).
    ``group`` is one of :data:`penstock.shards.sample_reader.GROUPS`.
    A damaged shard, or a key that occurs twice, raises the same error as reading it.
    """
    refuse_streams(url)
    columns = columns or {}
    before = stamp_of(url)
    rows = IndexRows(more={name: [] for name in columns})
    with open_url(url) as opened:
        stream = Summed(opened) if is_remote(url) else opened
        tape = tape_of(stream, url, want=_wanted(columns, fields), concatenated=concatenated)
        compressed = not isinstance(tape.window, FileWindow) and _is_compressed(url)
        samples = Samples(PlaceReader.of(tape), group=group)
        for sample in samples:
            _add(rows, sample, samples.offset, columns, url)
    ends = ends_of(url)
    if stamp_of(url) != before:
        raise ShardError("the shard was changed while it was read: try again", origin=Origin(url))
    checksum = stream.checksum(before.size_bytes) if isinstance(stream, Summed) else None
    shard = IndexedShard(
        url, len(rows), *before, compressed=compressed, checksum=checksum, ends=ends
    )
    return shard, rows


class Summed:
    """A stream that computes the checksum of the bytes read."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._crc32, self._count = stream, Crc32(), 0

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._stream.read(size)
        self._crc32.update(data)
        self._count += len(data)
        return data

    def checksum(self, size_bytes: int | None) -> str | None:
        """Return the checksum if all bytes were read, else None."""
        return f"crc32:{self._crc32.hexdigest()}" if self._count == size_bytes else None

    def seekable(self) -> bool:
        return False


def _is_compressed(url: str) -> bool:
    with open_url(url) as stream:
        start = b""
        while len(start) < MAGIC_BYTES and (more := stream.read(MAGIC_BYTES - len(start))):
            start += more
    return decompressor_for(start) is not None


def _wanted(
    columns: Mapping[str, Column], fields: frozenset[str] | None
) -> Callable[[bytes], bool]:
    if not columns:
        return lambda name: False
    if fields is None:
        return lambda name: True

    def wanted(name: bytes) -> bool:
        field = base_plus_ext(text_of(name))[1]
        return field is not None and field.lower() in fields

    return wanted


def _add(
    rows: IndexRows, sample: dict[str, Any], offset: int, columns: Mapping[str, Column], url: str
) -> None:
    key = sample["__key__"]
    members: dict[str, Member] = {
        field: value for field, value in sample.items() if type(value) is Member
    }
    offsets = [member.data_offset for member in members.values()]
    sizes = [member.size for member in members.values()]
    rows.add(key, offset, offsets[-1] + padded(sizes[-1]), list(members), offsets, sizes)
    if columns:
        raw = {"__key__": key, "__url__": canonical_url(url)}
        raw.update((field, member.data) for field, member in members.items())
        for name, column in columns.items():
            try:
                rows.more[name].append(column(raw))
            except Exception as error:
                error.add_note(f"in the column {name!r} ({Origin(url, key, offset)})")
                raise
