"""The files that other tools lay beside shards, read as an index or held against one.

==================  ============================================  ===========================
file                what it holds                                 what is done with it
==================  ============================================  ===========================
wids' JSON          shards, their samples and bytes               held against the index
``sizes.json``      shard's name → samples                        held against the index
Energon's .tar.idx  per shard: uint64 offsets, the end behind     held against the index
DALI's .idx text    per shard: fields, offsets, sizes and names   is the index (version 1.2)
==================  ============================================  ===========================

The first three do not say which fields a sample has, so the shards are indexed as for
``index=True`` and both must agree: a difference is a :class:`~penstock.errors.StaleIndexError`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.errors import Origin, PipelineError, ShardError, StaleIndexError
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import IndexedShard, Rows, arrow
from penstock.shards.index.shard_stamps import stamp_of
from penstock.shards.header import padded
from penstock.shards.sample_reader import base_plus_ext, is_meta
from penstock.storage import open_url

WIDS_KIND = "wids-shard-index-v1"


@dataclasses.dataclass(slots=True)
class Sidecar:
    """What a sidecar says: a whole index, or a few facts of each shard by its URL or name."""

    path: str
    index: Index | None = None
    samples: dict[str, int] = dataclasses.field(default_factory=dict)
    size_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    offsets: dict[str, list[int]] = dataclasses.field(default_factory=dict)

    def compare(self, index: Index) -> None:
        """Raise StaleIndexError where the index of the same shards says something else."""
        for number, shard in enumerate(index.shards):
            name = shard.url if shard.url in self.samples else shard.name
            if name not in self.samples:
                raise self._differs("does not have this shard", shard.url)
            start, stop = index.starts[number], index.starts[number + 1]
            self._same("samples", self.samples[name], shard.samples, shard.url)
            if name in self.size_bytes:
                self._same("bytes", self.size_bytes[name], shard.size_bytes, shard.url)
            if name in self.offsets and index.offset[start:stop].tolist() != self.offsets[name]:
                raise self._differs("has other offsets than the shard's samples", shard.url)

    def _same(self, what: str, told: int, found: int | None, url: str) -> None:
        if told != found:
            raise self._differs(f"says {told} {what}, but the shard has {found}", url)

    def _differs(self, how: str, url: str) -> StaleIndexError:
        return StaleIndexError(
            f"the sidecar {self.path} {how}: make it anew, or say index=True", origin=Origin(url)
        )


def read_sidecar(paths: Sequence[str], shards: Sequence[str]) -> Sidecar:
    """What the sidecar files say of the shards: one file for all, or one for each.

    A file that is of none of the four kinds is a :class:`~penstock.errors.ShardError`.
    """
    if len(paths) == 1 and paths[0].endswith(".json"):
        return _json(paths[0])
    if len(paths) != len(shards):
        raise PipelineError(
            f"index= has {len(paths)} files for {len(shards)} shards: give one for each shard"
        )
    texts = [_read(path) for path in paths]
    if all(text.startswith(b"v1.") for text in texts):
        return _dali(paths, texts, shards)
    sidecar = Sidecar(paths[0])
    for path, data, url in zip(paths, texts, shards):
        sidecar.offsets[url] = _energon(path, data)
        sidecar.samples[url] = len(sidecar.offsets[url])
    return sidecar


def _read(path: str) -> bytes:
    with open_url(path, buffer_bytes=-1) as stream:
        data: bytes = stream.read()
    return data


def _unreadable(path: str, why: str) -> ShardError:
    return ShardError(
        f"this is no index that is known ({why}): give a Parquet index of penstock, wids' JSON, "
        "sizes.json, Energon's .tar.idx or DALI's .idx",
        origin=Origin(path),
    )


def _json(path: str) -> Sidecar:
    try:
        told = json.loads(_read(path))
    except ValueError as error:
        raise _unreadable(path, f"not JSON: {error}") from error
    sidecar = Sidecar(path)
    try:
        if told.get("__kind__") == WIDS_KIND or "shardlist" in told or "datasets" in told:
            for entry in _wids_shards(told):
                name = entry["url"].rsplit("/", 1)[-1]
                sidecar.samples[name] = int(entry["nsamples"])
                if entry.get("filesize") is not None:
                    sidecar.size_bytes[name] = int(entry["filesize"])
        else:
            for url, count in told.items():
                sidecar.samples[url.rsplit("/", 1)[-1]] = int(count)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(path, f"{type(error).__name__} {error}") from error
    return sidecar


def _wids_shards(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from told.get("shardlist", ())
    for dataset in told.get("datasets", ()):
        yield from dataset.get("shardlist", ())


def _energon(path: str, data: bytes) -> list[int]:
    """Where each sample begins: the file also has where the last one ends."""
    if len(data) % 8 or len(data) < 8:
        raise _unreadable(path, f"{len(data)} bytes are no list of 64-bit offsets")
    offsets = [offset for (offset,) in struct.iter_unpack("<Q", data)]
    if any(offset % 512 for offset in offsets) or offsets != sorted(offsets):
        raise _unreadable(path, "no rising offsets of tar blocks")
    return offsets[:-1]


def _dali(paths: Sequence[str], texts: Sequence[bytes], shards: Sequence[str]) -> Sidecar:
    pa = arrow()
    described, tables = [], []
    for number, (path, text, url) in enumerate(zip(paths, texts, shards)):
        rows = _dali_rows(path, text.decode("utf-8", "surrogateescape"))
        stamp = stamp_of(url)
        end = rows.offsets[-1] + rows.sizes[-1] if len(rows) else 0
        if stamp.size_bytes is not None and end > stamp.size_bytes:
            raise StaleIndexError(
                f"the sidecar {path} has samples up to byte {end}, but the shard has "
                f"{stamp.size_bytes} bytes: make it anew with wds2idx, or say index=True",
                origin=Origin(url),
            )
        newer = stamp_of(path).mtime_ns
        if newer is not None and stamp.mtime_ns is not None and newer < stamp.mtime_ns:
            raise StaleIndexError(
                f"the shard was changed after the sidecar {path} was made: make it anew with "
                "wds2idx, or say index=True",
                origin=Origin(url),
            )
        described.append(IndexedShard(url, len(rows), *stamp))
        tables.append(rows.table(number))
    return Sidecar(paths[0], Index.of_table(described, pa.concat_tables(tables)))


_component = re.compile(r"(\S*) (\d+) (\d+) (.*?)(?: (?=\S* \d+ \d+ )|$)").match


def _dali_rows(path: str, text: str) -> Rows:
    """One sample a line: ``FIELD OFFSET SIZE NAME`` of each member."""
    first, *lines = text.splitlines()
    version, _, count = first.partition(" ")
    if version != "v1.2" or count.strip() != str(len(lines)):
        raise _unreadable(path, f"its first line {first!r} is not 'v1.2 {len(lines)}'")
    rows = Rows()
    end = 0
    for line in lines:
        members: dict[str, tuple[int, int]] = {}
        key: str | None = None
        begin, place = end, 0
        while place < len(line):
            part = _component(line, place)
            if part is None:
                raise _unreadable(path, f"the line {line[:80]!r}")
            place = part.end()
            offset, size, name = int(part[2]), int(part[3]), part[4]
            stem, field = base_plus_ext(name)
            end = offset + padded(size)
            if stem is not None and field is not None and not is_meta(name):
                key = stem
                members[field.lower()] = (offset, size)
        if key is not None:
            places = [offset for offset, _ in members.values()]
            sizes = [size for _, size in members.values()]
            rows.add(key, begin, end, list(members), places, sizes)
    return rows
