"""``verify``: find every fault of shards, with its code and byte."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.codecs import Decoder
from penstock.codecs.field_handlers import handle_extension
from penstock.errors import (
    DecodingError,
    MissingPackage,
    PenstockError,
    ShardError,
    StaleIndexError,
    StorageError,
    UnsafeError,
)
from penstock.redact import canonical_url, redact
from penstock.shards.decompress import MAGIC_BYTES
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import READERS_OWN, base_plus_ext, is_meta, joins, text_of
from penstock.tools.content_types import mismatch
from penstock.tools.findings import Finding
from penstock.tools.inputs import Shards, list_shards
from penstock.tools.reader_rules import ReaderRule, rule_for
from penstock.tools.tar_walk import Fault, TarEntry, TolerantReader

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def verify(
    shards: Shards,
    *,
    list_file: str | None = None,
    decode: bool = False,
    reader: str | Sequence[str] = (),
    require: str | Sequence[str] = (),
    index: str | None = None,
) -> Iterator[Finding]:
    """Yield every fault of the shards.

    ``decode`` also decodes every field. ``reader`` (``--for``) names readers that must be able to
    read the shards: ``webdataset``, ``open_clip``, ``hub``. ``require`` lists fields that every
    sample must have; ``jpg;png`` accepts either. ``index`` is the index file to compare with;
    by default the one beside the shards, if there is one.

    >>> import os, tempfile, penstock
    >>> name = os.path.join(tempfile.mkdtemp(), "x.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     _ = sink.write({"__key__": "a", "txt": "hello"})
    >>> [(found.code, found.key, found.offset) for found in verify(name, require="txt,jpg")]
    [('PS301', 'a', 0)]
    """
    urls = list_shards(shards, list_file)
    verifier = Verifier(urls, decode=decode, reader=reader, require=require, index=index)
    yield from verifier.findings
    for url in urls:
        yield from verifier.check(url)
    yield from verifier.finish()


def split_words(text: str | Sequence[str]) -> list[str]:
    """Return the words of a list that is separated by commas.

    >>> split_words("jpg, json"), split_words(["jpg"])
    (['jpg', 'json'], ['jpg'])
    """
    words = text.split(",") if isinstance(text, str) else text
    return [word.strip() for word in words if word.strip()]


def unsafe_name(name: str) -> str | None:
    """Return why a name must not become a path, or None.

    >>> unsafe_name("../a.jpg"), unsafe_name("a/b.jpg")
    ('it leaves its folder', None)
    """
    if name.startswith("/"):
        return "it is an absolute path"
    if ".." in name.split("/"):
        return "it leaves its folder"
    if _CONTROL.search(name):
        return "it has control characters"
    return None


class Verifier:
    """Checks shards one by one; :func:`verify` is its simple form.

    ``samples`` and ``checked`` count; ``findings`` are those about the index as a whole.
    """

    def __init__(
        self,
        shards: Sequence[str],
        *,
        decode: bool = False,
        reader: str | Sequence[str] = (),
        require: str | Sequence[str] = (),
        index: str | None = None,
    ) -> None:
        self.rules: list[ReaderRule] = [rule_for(name) for name in split_words(reader)]
        self.require = [word.lower().split(";") for word in split_words(require)]
        self.decoder = make_decoder() if decode else None
        self.findings: list[Finding] = []
        self.index = self._load_index(shards, index)
        self.places = {} if self.index is None else _places(self.index)
        self.samples = self.checked = 0
        self._keys: dict[int, str] = {}  # hash of a key → the shard it was in first
        self._first_fields: tuple[str, ...] | None = None

    def check(self, url: str) -> Iterator[Finding]:
        """Yield the faults of one shard."""
        try:
            with open_shard(url) as tape:
                start = _start(tape)
                yield from ShardCheck(self, url).run(TolerantReader.of(tape), start)
        except MissingPackage:
            raise
        except (StorageError, ShardError) as error:
            yield Finding("PS901", url, error.message)
        self.checked += 1

    def finish(self) -> Iterator[Finding]:
        """Yield what only shows after the last shard."""
        for rule in self.rules:
            yield from rule.finish()

    def _load_index(self, shards: Sequence[str], index: str | None) -> Any:
        from penstock.shards.index.default_path import place_for
        from penstock.shards.index.index import Index
        from penstock.shards.index.part_files import place_of
        from penstock.storage.urls import is_stream, local_path

        if any(map(is_stream, shards)):
            return None
        path = place_for(shards) if index is None else local_path(index) or index
        if not os.path.exists(path):
            if index is not None:
                self.findings.append(Finding("PS901", path, "there is no such index"))
            return None
        try:
            loaded = Index.load(path)
        except (ShardError, StorageError) as error:
            self.findings.append(Finding("PS402", path, error.message))
            return None
        if index is None and not _places(loaded).keys() & set(map(place_of, shards)):
            return None  # an index of other shards, whose names have the same beginning
        return loaded


def _places(index: Any) -> dict[str, int]:
    """Return canonical name of each shard → its number in the index."""
    from penstock.shards.index.part_files import place_of

    return {place_of(shard.url): number for number, shard in enumerate(index.shards)}


def _start(tape: Any) -> bytes:
    """Return the first bytes of a shard as it is stored."""
    descriptor = getattr(tape.window, "descriptor", None)
    if descriptor is not None:
        return os.pread(descriptor, MAGIC_BYTES, 0)
    unpacker = getattr(tape.window.read, "__self__", None)
    magic: bytes = getattr(unpacker, "magic", b"") or tape.buffer[:MAGIC_BYTES]
    return magic


class ShardCheck:
    """The check of one shard."""

    def __init__(self, verifier: Verifier, url: str) -> None:
        self.verifier, self.url = verifier, url
        self.dashed = verifier.index is not None and verifier.index.group == "dashed"
        self._fields_of: dict[str, frozenset[str]] = {}  # keys of this shard → fields
        self._known: dict[tuple[str, ...], frozenset[str]] = {}  # one set for equal fields
        self._key: str | None = None
        self._members: dict[str, TarEntry] = {}
        self._offset = 0
        self._others = 0  # samples with other fields than the first one
        self._other: tuple[str, int, tuple[str, ...]] | None = None
        self._row: int | None = None
        self._rows_end = 0
        self._samples = 0
        self._fatal = False

    def run(self, reader: TolerantReader, start: bytes) -> Iterator[Finding]:
        rules = self.verifier.rules
        for rule in rules:
            yield from rule.begin(self.url, start)
        yield from self._open_index()
        for item in reader.entries(self._wants):
            for rule in rules:
                yield from rule.member(item)
            if isinstance(item, Fault):
                yield from self._fault(item)
            else:
                yield from self._member(item)
        yield from self._sample()
        yield from self._end()
        for rule in rules:
            yield from rule.end()

    def _wants(self, name: bytes) -> bool:
        return self.verifier.decoder is not None or any(
            rule.wants(name) for rule in self.verifier.rules
        )

    def _found(
        self, code: str, message: str, offset: int | None, field: str | None = None
    ) -> Finding:
        return Finding(code, self.url, message, self._key, offset, field)

    def _fault(self, fault: Fault) -> Iterator[Finding]:
        key = field = None
        if fault.name is not None:
            key, field = base_plus_ext(text_of(fault.name))
        if fault.code in ("PS101", "PS105", "PS107"):
            # Members of the last sample may be missing because of the fault.
            if key == self._key or (key is None and not self._looks_complete()):
                self._key, self._members = None, {}
        if fault.code != "PS106":
            self._row = None  # the index cannot be compared any further
        self._fatal |= fault.code in ("PS101", "PS103", "PS105", "PS107")
        yield Finding(fault.code, self.url, fault.message, key, fault.offset, field)

    def _looks_complete(self) -> bool:
        """Whether the last sample has the fields of the first one and those that are required."""
        fields = self._members.keys()
        return fields >= set(self.verifier._first_fields or ()) and all(
            any(field in fields for field in choices) for choices in self.verifier.require
        )

    def _member(self, entry: TarEntry) -> Iterator[Finding]:
        name = text_of(entry.name)
        key, field = base_plus_ext(name)
        problem = unsafe_name(name)
        if problem is not None:
            message = f"the name {name!r} is unsafe: {problem}"
            yield Finding("PS205", self.url, message, key, entry.offset, field)
        if entry.special is not None:
            message = f"{entry.special}: {name!r}"
            yield Finding("PS206", self.url, message, key, entry.offset, field)
            return
        if is_meta(name):
            return
        if key is None or field is None:
            message = f"the name {name!r} belongs to no sample"
            yield Finding("PS204", self.url, message, None, entry.offset)
            return
        field = field.lower()
        if self.dashed and (joined := self._joined(entry.name, key, field)):
            field = joined
        elif key != self._key:
            yield from self._sample()
            self._key, self._members, self._offset = key, {}, entry.offset
        if field in self._members or field in READERS_OWN:
            again = "again" if field in self._members else "which every sample has already"
            yield self._found("PS202", f"the field {field!r} {again}", entry.offset, field)
            return
        self._members[field] = entry
        if entry.size == 0:
            yield self._found("PS303", "0 bytes", entry.offset, field)
        elif (other := mismatch(field, entry.data)) is not None:
            yield self._found("PS305", other, entry.offset, field)

    def _joined(self, name: bytes, key: str, field: str) -> str:
        """Return the field that an image adds to the document before it; "" if it does not."""
        if self._key is None:
            return ""
        own, document = (text.encode("utf-8", "surrogateescape") for text in (key, self._key))
        return joins(name, own, field, document, self._members)

    def _sample(self) -> Iterator[Finding]:
        """Check a sample after its last member."""
        key, members = self._key, self._members
        if key is None or not members:
            return
        verifier = self.verifier
        verifier.samples += 1
        self._samples += 1
        yield from self._duplicates(key, members)
        for choices in verifier.require:
            if not any(field in members for field in choices):
                there = ", ".join(sorted(members))
                message = f"no {' or '.join(choices)} among {there}"
                yield self._found("PS301", message, self._offset, choices[0])
        for rule in verifier.rules:
            yield from rule.sample(key, members, self._offset)
        if verifier.decoder is not None:
            for field, entry in members.items():
                if entry.size:
                    yield from self._decode(key, field, entry)
        fields = tuple(sorted(members))
        if verifier._first_fields is None:
            verifier._first_fields = fields
        elif fields != verifier._first_fields:
            self._others += 1
            self._other = self._other or (key, self._offset, fields)
        yield from self._compare_row(key, members)
        self._key, self._members = None, {}

    def _duplicates(self, key: str, members: dict[str, TarEntry]) -> Iterator[Finding]:
        earlier = self._fields_of.get(key)
        if earlier is not None:
            again = [field for field in members if field in earlier]
            if again:
                entry = members[again[0]]
                message = f"the fields {', '.join(again)} again in this shard"
                yield self._found("PS203", message, entry.offset, again[0])
            else:
                message = f"{', '.join(members)} apart from {', '.join(sorted(earlier))}"
                yield self._found("PS201", message, self._offset)
            self._fields_of[key] = earlier.union(members)
            return
        names = tuple(members)
        self._fields_of[key] = self._known.setdefault(names, frozenset(names))
        other = self.verifier._keys.setdefault(hash(key), self.url)
        if other is not self.url:
            message = f"the key is also in {redact(other)}"
            yield self._found("PS203", message, self._offset)

    def _decode(self, key: str, field: str, entry: TarEntry) -> Iterator[Finding]:
        decoder = self.verifier.decoder
        sample = {"__key__": key, "__url__": canonical_url(self.url), field: entry.data}
        try:
            if decoder is not None:
                decoder(sample)
        except MissingPackage:
            raise
        except (DecodingError, UnsafeError) as error:
            yield self._found("PS304", error.message, entry.offset, field)

    def _end(self) -> Iterator[Finding]:
        if not self._samples and not self._fatal:
            yield Finding("PS207", self.url, "there is no sample in it", None, 0)
        if self._other is not None and not self.dashed:  # documents have any number of images
            key, offset, fields = self._other
            first = ", ".join(self.verifier._first_fields or ())
            message = (
                f"{self._others:,} of {self._samples:,} samples have other fields than the first "
                f"one ({first}); the first of them has {', '.join(fields)}"
            )
            yield Finding("PS302", self.url, message, key, offset)
        if self._row is not None and self._row != self._rows_end:
            count = self._rows_end - self._row
            yield Finding("PS402", self.url, f"the index has {count:,} more samples", None, 0)

    def _open_index(self) -> Iterator[Finding]:
        """Find the shard's rows in the index, and whether they are of this version."""
        from penstock.shards.index.part_files import place_of

        index = self.verifier.index
        if index is None:
            return
        number = self.verifier.places.get(place_of(self.url))
        if number is None:
            yield Finding("PS401", self.url, f"the index {index.path} has no such shard")
            return
        try:
            index.check(number)
        except StaleIndexError as error:
            yield Finding("PS401", self.url, error.message)
            return
        except PenstockError:
            return  # reading says what is wrong
        self._row, self._rows_end = int(index.starts[number]), int(index.starts[number + 1])

    def _compare_row(self, key: str, members: dict[str, TarEntry]) -> Iterator[Finding]:
        index, row = self.verifier.index, self._row
        if row is None:
            return
        self._row = row + 1
        if row >= self._rows_end:
            difference = "no further sample"
        elif index.keys[row] != key or int(index.offset[row]) != self._offset:
            difference = f"{index.keys[row]!r} at byte {int(index.offset[row])}"
        elif index.fields_of(row) != {f: (e.data_offset, e.size) for f, e in members.items()}:
            difference = f"the fields {index.fields_of(row)}"
        else:
            return
        self._row = None
        yield self._found("PS402", f"the index has {difference} here", self._offset)


def make_decoder() -> Decoder:
    """Return a decoder of everything the library can read."""
    from penstock.codecs.audio import AUDIO_EXTENSIONS, decode_audio_as_array
    from penstock.codecs.video import VIDEO_EXTENSIONS, open_media

    def play(data: bytes) -> int:
        with open_media(data) as container:
            return sum(1 for _ in container.decode(video=0))

    return Decoder(
        "rgb8",
        handle_extension(AUDIO_EXTENSIONS, decode_audio_as_array),
        handle_extension(VIDEO_EXTENSIONS, play),
    )
