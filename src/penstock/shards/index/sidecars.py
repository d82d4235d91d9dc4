"""DALI's index files: read as an index, and written beside shards.

DALI's tool ``wds2idx`` writes one text file per shard, with the fields, offsets, sizes and names of
all members of each sample (version 1.2). That is enough to serve as the index. Index files of
other tools lack the fields or the keys and are refused: ``index=True`` builds a complete index.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.errors import Origin, PipelineError, ShardError, StaleIndexError, parsing
from penstock.shards.header import BLOCK, padded
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import IndexedShard, IndexRows, arrow
from penstock.shards.index.shard_stamps import notice_copy, stamp_of
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import base_plus_ext, is_meta, text_of
from penstock.storage import open_url


@dataclasses.dataclass(frozen=True)
class Sidecar:
    """The index that the sidecar files contain."""

    index: Index


def read_sidecar(paths: Sequence[str], shards: Sequence[str]) -> Sidecar:
    """Read DALI's index files, one for each shard.

    Raise :class:`~penstock.errors.ShardError` for a file of another kind or a damaged one, and
    :class:`~penstock.errors.StaleIndexError` if a shard changed after its file was written.
    """
    if len(paths) != len(shards):
        raise PipelineError(
            f"index= has {len(paths)} files for {len(shards)} shards: give one DALI .idx file for "
            "each shard, or use index=True"
        )
    texts = [_read(path) for path in paths]
    pa = arrow()
    described, tables = [], []
    for number, (path, text, url) in enumerate(zip(paths, texts, shards)):
        with parsing(functools.partial(_unreadable, path)):
            lines = _parse_lines(path, text)
            rows = _make_rows(lines)
            tables.append(rows.table(number))
        stamp = stamp_of(url)
        end = max(map(operator.add, rows.offsets, rows.sizes), default=0)
        if stamp.size_bytes is not None and end > stamp.size_bytes:
            raise StaleIndexError(
                f"the sidecar {path} has samples up to byte {end}, but the shard has "
                f"{stamp.size_bytes} bytes: {_REMEDY}",
                origin=Origin(url),
            )
        written_ns = stamp_of(path).mtime_ns
        if written_ns is not None and stamp.mtime_ns is not None and written_ns < stamp.mtime_ns:
            if not _fits(url, lines):
                raise StaleIndexError(
                    f"the shard was changed after the sidecar {path} was written: {_REMEDY}",
                    origin=Origin(url),
                )
            notice_copy(url)
        described.append(IndexedShard(url, len(rows), *stamp))
    return Sidecar(Index.of_table(described, pa.concat_tables(tables)))


def _read(path: str) -> bytes:
    with open_url(path, buffer_bytes=-1) as stream:
        data: bytes = stream.read()
    return data


def _unreadable(path: str, why: str) -> ShardError:
    return ShardError(
        f"unknown kind of index ({why}): use a Parquet index of penstock, DALI's .idx files, or "
        "index=True",
        origin=Origin(path),
    )


_REMEDY = "write it again with 'penstock index --also dali' or wds2idx, or use index=True"


class _Component(NamedTuple):
    """A member, as a DALI index describes it."""

    field: str
    offset: int
    size: int
    name: str


_match_component = re.compile(r"(\S*) (\d+) (\d+) (.*?)(?: (?=\S* \d+ \d+ )|$)", re.ASCII).match


def _parse_lines(path: str, data: bytes) -> list[list[_Component]]:
    """Return the members of each sample: a line per sample, ``FIELD OFFSET SIZE NAME`` for each."""
    first, *lines = text_of(data).removesuffix("\n").split("\n")
    version, _, count = first.partition(" ")
    if version != "v1.2" or count.strip() != str(len(lines)):
        raise _unreadable(path, f"its first line {first[:80]!r} is not 'v1.2 {len(lines)}'")
    return [list(_parse_line(path, line)) for line in lines]


def _parse_line(path: str, line: str) -> Iterator[_Component]:
    position = 0
    while position < len(line):
        part = _match_component(line, position)
        if part is None:
            raise _unreadable(path, f"the line {line[:80]!r}")
        position = part.end()
        yield _Component(part[1], int(part[2]), int(part[3]), part[4])


def _make_rows(lines: Sequence[Sequence[_Component]]) -> IndexRows:
    rows = IndexRows()
    end = 0
    for line in lines:
        members: dict[str, tuple[int, int]] = {}
        key: str | None = None
        begin = end
        for _, offset, size, name in line:
            stem, field = base_plus_ext(name)
            end = offset + padded(size)
            if stem is not None and field is not None and not is_meta(name):
                key = stem
                members[field.lower()] = (offset, size)
        if key is not None:
            offsets = [offset for offset, _ in members.values()]
            sizes = [size for _, size in members.values()]
            rows.add(key, begin, end, list(members), offsets, sizes)
    return rows


def write_dali(shard: IndexedShard) -> str:
    """Write DALI's index of a shard beside it, ``x.idx`` for ``x.tar``, and return its URL.

    The file equals that of DALI's ``wds2idx``, without the members that belong to no sample.
    """
    if shard.compressed:
        raise ShardError(
            "DALI cannot read a compressed shard by an index: store it as a plain tar",
            origin=Origin(shard.url),
        )
    lines: list[str] = []
    last: str | None = None
    with open_shard(shard.url, want=lambda name: False) as reader:
        for member in reader:
            name = text_of(member.name)
            key, field = base_plus_ext(name)
            if key is None or field is None or is_meta(name):
                continue
            if "\n" in name or field.split() != [field]:
                raise ShardError(
                    f"DALI's index cannot hold the name {name!r}: pack the shard again without "
                    "line breaks in names and spaces in extensions",
                    origin=Origin(shard.url, offset=member.offset),
                )
            part = f"{field} {member.data_offset} {member.size} {name}"
            if key == last:
                lines[-1] += " " + part
            else:
                lines.append(part)
            last = key
    text = "".join(f"{line}\n" for line in [f"v1.2 {len(lines)}", *lines])
    path = os.path.splitext(shard.url)[0] + ".idx"
    with open_url(path, "wb") as stream:
        stream.write(text.encode("utf-8", "surrogateescape"))
    return path


def _fits(url: str, lines: Sequence[Sequence[_Component]]) -> bool:
    """Return whether the shard has the index's first and last member at the given offsets.

    Copying can make an index older than its shard although both are unchanged.
    """
    members = [member for line in (*lines[:1], *lines[-1:]) for member in line]
    return bool(members) and all(_is_at(url, member) for member in (members[0], members[-1]))


def _is_at(url: str, expected: _Component) -> bool:
    start = expected.offset - BLOCK
    try:
        with open_shard(url, start=max(start, 0), only=True, want=lambda name: False) as reader:
            member = reader.next_member()
    except ShardError:
        return False
    return member is not None and expected[1:] == (
        *(member.data_offset, member.size),
        text_of(member.name),
    )
