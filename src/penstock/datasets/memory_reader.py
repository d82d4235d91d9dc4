"""Read single samples of shards from the shared memory of the machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.datasets.shared_bytes import SharedBytes
from penstock.errors import Origin, PipelineError, SampleError, ShardError
from penstock.redact import canonical_url, redact
from penstock.shards.index import SampleReader
from penstock.shards.index.parquet_schema import IndexedShard
from penstock.shards.index.shard_stamps import ends_of, stamp_of
from penstock.shards.sample_reader import Sample
from penstock.storage import open_url
from penstock.storage.urls import local_path

PART_BYTES = 8 << 20


class MemoryReader(SampleReader):
    """Reads any sample of an index from a copy of all shards in memory.

    The copy is made when the first sample is asked for, and shared by all processes of the machine
    (:class:`~penstock.datasets.shared_bytes.SharedBytes`). A shard that is not as it was when the
    index was made is a :class:`~penstock.errors.StaleIndexError`, a compressed one a
    :class:`~penstock.errors.ShardError`.
    """

    remote = False

    def _begin(self) -> None:
        super()._begin()
        self._shared: SharedBytes | None = None

    def prepare(self) -> Any:
        plan = super().prepare()
        if self._shared is None:
            self._shared = self._copied()
            urls = [canonical_url(shard.url) for shard in self.index.shards]
            self._starts = list(zip(self._shared.starts, urls, map(self._path, urls)))
        return plan

    def _path(self, url: str) -> str | None:
        return local_path(url) if self.local_paths else None

    def read(self, row: int, later: bool = False, into: Sample | None = None) -> Sample:
        (_, _, _, count, shard_of, keys, code_of, names_of, start_of, offset_of,
         within_of, size_of) = self._plan or self.prepare()  # fmt: skip
        if not 0 <= row < count:
            raise SampleError(f"there is no sample {row}: the index has {count}")
        start, url, path = self._starts[shard_of(row)]
        if into is None:
            sample: Sample = {"__key__": keys.at(row), "__url__": url}
            if path is not None:
                sample["__local_path__"] = path
        else:
            sample = into
        start += offset_of(row)
        field: int = start_of(row)
        memory = self._shared.memory  # type: ignore[union-attr]  # prepare() has set it
        for name in names_of[code_of(row)]:
            at = start + within_of(field)
            sample[name] = memory[at : at + size_of(field)]
            field += 1
        return sample

    def read_many(self, rows: Sequence[int]) -> list[Sample]:
        return [self.read(row) for row in rows]

    def close(self) -> None:
        super().close()
        if self._shared is not None:
            self._shared.close()
        self._shared = self._plan = None

    def _copied(self) -> SharedBytes:
        index = self.index
        digest = hashlib.blake2b(digest_size=16)
        sizes = []
        for shard in index.shards:
            sizes.append(self._size(shard))
            digest.update(f"{canonical_url(shard.url)}\0{shard.stamp}\n".encode("utf-8", "replace"))
        what = f"{len(sizes)} shards" + (f" ({redact(index.shards[0].url)}, …)" if sizes else "")
        return SharedBytes(digest.hexdigest(), sizes, self._parts, what=what)

    def _size(self, shard: IndexedShard) -> int:
        if shard.compressed:
            raise ShardError(
                "a compressed shard cannot be read at any offset: store it as a plain tar",
                origin=Origin(shard.url),
            )
        if shard.size_bytes is None:
            raise PipelineError(
                f'memory="ram" needs the size of every shard, and the index does not have that of '
                f"{redact(shard.url)}: run 'penstock index' over the shards again"
            )
        return shard.size_bytes

    def _parts(self, number: int) -> Iterator[bytes]:
        shard = self.index.shards[number]
        shard.check(stamp_of(shard.url), lambda: ends_of(shard.url))
        stream: Any
        if self.cache is None:
            stream = open_url(shard.url, patience=self.patience)
        else:
            stream = self.cache.open(shard.url, checksum=shard.checksum, patience=self.patience)
        with stream:
            while part := stream.read(PART_BYTES):
                yield part
