"""Where the samples of shards are, and their bytes in any order.

An index (:mod:`penstock.shards.index`) refuses a shard that has a key twice. Commands that rework
shards must take such shards too, so they list samples with :mod:`penstock.tools.member_groups`.
"""

from __future__ import annotations

import hashlib
import io
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.errors import Origin, PenstockError, SampleError, ShardError, StorageError
from penstock.jobs.plan import stamp_inputs
from penstock.nearest_name import suggest
from penstock.redact import canonical_url, redact
from penstock.shards.byte_windows import LARGE_BYTES, WINDOW_BYTES, FileWindow, StreamWindow
from penstock.shards.decompress import MAGIC_BYTES, Decompressed, decompressor_for
from penstock.shards.header import BLOCK
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import Sample, base_plus_ext, text_of
from penstock.shards.tar_reader import Member, TarReader
from penstock.storage import open_url
from penstock.storage.streams import storage_error
from penstock.storage.urls import is_stream, local_path, rewrite_url
from penstock.tools.call_record import Entry
from penstock.tools.disk_columns import DiskNumbers, DiskTexts
from penstock.tools.member_groups import group_members, make_sample

CHUNK_BYTES = 1 << 20
READ_BYTES = 32 << 20
"""Samples are read in groups of about this size."""
MAX_OPEN = 64


class Inputs(NamedTuple):
    """Shards that can be read at any offset, and what identifies the content of each."""

    urls: list[str]
    """Where to read: the shard itself, or an uncompressed copy of it."""
    stamps: list[dict[str, Any]]


def open_inputs(urls: Sequence[str], spool: Callable[[int], str]) -> Inputs:
    """Prepare shards for reading at any offset.

    Streams and compressed shards are copied, uncompressed, to the files ``spool(number)``.
    """
    copies: dict[str, tuple[str, str]] = {}
    for number, url in enumerate(dict.fromkeys(urls)):
        if is_stream(url) or _is_compressed(url):
            path = spool(number)
            copies[url] = path, _copy(url, path)
    stamps = stamp_inputs(url for url in urls if url not in copies)
    found = []
    for url in urls:
        size, stamp = (None, copies[url][1]) if url in copies else stamps[url]
        found.append({"url": canonical_url(url), "size": size, "stamp": stamp})
    return Inputs([copies[url][0] if url in copies else url for url in urls], found)


def _is_compressed(url: str) -> bool:
    with open_url(url) as stream:
        return decompressor_for(stream.read(MAGIC_BYTES)) is not None


def _copy(url: str, path: str) -> str:
    """Copy a stream or compressed shard to a plain file, and return its SHA-256."""
    digest = hashlib.sha256()
    with open_url(url) as stream:
        first = b""
        while len(first) < MAGIC_BYTES and (more := stream.read(MAGIC_BYTES - len(first))):
            first += more
        make = decompressor_for(first)
        source: Any = stream
        if make is not None:
            source, first = Decompressed(stream, first, make, url), b""
        try:
            with open(path, "wb") as copy:
                while data := first or source.read(CHUNK_BYTES):
                    first = b""
                    digest.update(data)
                    copy.write(data)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise storage_error("cannot copy the stream to", path, error) from error
    return digest.hexdigest()


class SamplePlaces:
    """All samples of shards: their keys, and where each begins and ends.

    ``urls`` are what messages name, ``inputs`` where the bytes are. ``field`` is a field whose
    values are kept in :attr:`values`. All columns are in temporary files.
    """

    def __init__(self, urls: Sequence[str], inputs: Inputs, field: str | None = None) -> None:
        self.urls, self.inputs = list(urls), inputs
        self.keys, self.values = DiskTexts(), DiskTexts()
        self.shard, self.offset, self.end, self.size = (DiskNumbers() for _ in range(4))
        self._files: dict[int, tuple[Any, FileWindow | None]] = {}
        self._process = os.getpid()
        self._group_bytes = READ_BYTES
        known: dict[str, tuple[int, int]] = {}
        for number, place in enumerate(inputs.urls):
            begin = len(self.keys)
            if place in known:
                self._repeat(number, *known[place])
            else:
                self._scan(number, place, field)
            known[place] = begin, len(self.keys)
        for column in (self.keys, self.values, self.shard, self.offset, self.end, self.size):
            column.view()  # workers are forked now

    def _scan(self, number: int, place: str, field: str | None) -> None:
        def want(name: bytes) -> bool:
            return field is not None and base_plus_ext(text_of(name).lower())[1] == field

        with open_shard(place, want=want) as tape:
            for key, members in group_members(tape):
                last = next(reversed(members.values()))
                self.keys.append(key)
                self.shard.append(number)
                self.offset.append(next(iter(members.values())).offset)
                self.end.append(last.data_offset + (last.size + BLOCK - 1) // BLOCK * BLOCK)
                self.size.append(sum(member.size for member in members.values()))
                if field is not None:
                    if field not in members:
                        names = ", ".join(sorted(members))
                        raise SampleError(
                            f"the sample lacks the field {field!r} (there are: {names})"
                            f"{suggest(field, members)}",
                            origin=self.origin(len(self.keys) - 1),
                        )
                    value = members[field].data
                    self.values.append(value if isinstance(value, bytes) else b"")

    def _repeat(self, number: int, begin: int, end: int) -> None:
        """Add the samples of a shard that occurs again in the list of shards."""
        self.shard.extend([number] * (end - begin))
        for places in (self.offset, self.end, self.size):
            places.extend(places[begin:end])
        for texts in (self.keys, self.values):
            for text in [texts.get_bytes(row) for row in range(begin, min(end, len(texts)))]:
                texts.append(text)

    def __len__(self) -> int:
        return len(self.keys)

    def origin(self, number: int) -> Origin:
        """Return where a sample is, for messages."""
        return Origin(self.urls[self.shard[number]], self.keys[number], self.offset[number])

    # ── a source for write_order ───────────────────────────────────────────────────────────────

    @property
    def identity(self) -> Any:
        return self.inputs.stamps

    def entries(self) -> Iterator[Entry]:
        for url, stamp in zip(self.urls, self.inputs.stamps):
            yield redact(url), [stamp["size"], stamp["stamp"]]

    def limit_memory(self, size_bytes: int) -> None:
        """Read samples in groups of about this size."""
        self._group_bytes = max(size_bytes, 1)

    def read(self, numbers: Sequence[int]) -> Iterator[Sample]:
        """Yield the samples of those numbers, in that order.

        They are read in groups, each in the order of the shards.
        """
        group: list[int] = []
        waiting = 0
        for number in numbers:
            size = self.end[number] - self.offset[number]
            if group and waiting + size > self._group_bytes:
                yield from self._read_group(group)
                group, waiting = [], 0
            group.append(number)
            waiting += size
        yield from self._read_group(group)

    def _read_group(self, numbers: list[int]) -> Iterator[Sample]:
        ordered = sorted(numbers, key=lambda n: (self.shard[n], self.offset[n]))
        if ordered == numbers:
            yield from map(operator.itemgetter(1), self._read_ordered(ordered))
            return
        found = dict(self._read_ordered(ordered))
        for number in numbers:
            yield found[number]

    def _read_ordered(self, ordered: list[int]) -> Iterator[tuple[int, Sample]]:
        """Yield samples with their numbers, which are in the order of the shards."""
        run: list[int] = []
        for number in ordered:
            if run and not self._follows(run[-1], number):
                yield from zip(run, self._read_run(run))
                run = []
            run.append(number)
        if run:
            yield from zip(run, self._read_run(run))

    def _follows(self, one: int, other: int) -> bool:
        return bool(self.shard[one] == self.shard[other] and self.end[one] == self.offset[other])

    def _read_run(self, run: list[int]) -> Iterator[Sample]:
        """Yield samples that follow each other in a shard."""
        shard, begin, end = self.shard[run[0]], self.offset[run[0]], self.end[run[-1]]
        url = canonical_url(self.urls[shard])
        samples = group_members(self._members(shard, begin, end, (end - begin) // len(run)))
        for number in run:
            key, members = next(samples, ("", {}))
            if key != self.keys[number]:
                raise ShardError(
                    "the shard was changed while it was read: run the command again",
                    origin=self.origin(number),
                )
            yield make_sample(key, url, members)

    def _members(self, shard: int, begin: int, end: int, typical: int) -> Iterator[Member]:
        """Yield the members between the offsets ``begin`` and ``end`` of a shard.

        ``typical`` is the mean size of their samples, by which the reader chooses its buffers.
        """
        url = self.urls[shard]
        stream, window = self._open(shard)
        try:
            if window is not None:
                window.window_bytes = min(end - begin, WINDOW_BYTES)
                tape = TarReader(window, url, start=begin)
                tape.large = typical >= LARGE_BYTES
            else:
                if hasattr(stream, "read_range"):
                    data = stream.read_range(begin, end - begin)
                else:
                    stream.seek(begin)
                    data = stream.read(end - begin)
                tape = TarReader(StreamWindow(io.BytesIO(), url), url, start=begin, rest=data)
            while tape.base + tape.position < end and (member := tape.next_member()) is not None:
                yield member
        except OSError as error:
            if isinstance(error, PenstockError):
                raise
            raise storage_error("cannot read", url, error) from error

    def _open(self, shard: int) -> tuple[Any, FileWindow | None]:
        """Return the stream of a shard, and the window of a local one."""
        if self._process != os.getpid():  # forked: the parent's streams have the parent's position
            self._process, self._files = os.getpid(), {}
        if shard not in self._files:
            while len(self._files) >= MAX_OPEN:
                self._files.pop(next(iter(self._files)))[0].close()
            url = self.inputs.urls[shard]
            stream: Any = open_url(url)
            local = local_path(rewrite_url(url)) is not None
            self._files[shard] = stream, FileWindow(stream.fileno(), url) if local else None
        return self._files[shard]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}}
