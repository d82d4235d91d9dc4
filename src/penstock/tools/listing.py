"""``ls``, ``head`` and ``show``: what is in shards."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from penstock.errors import Origin, PenstockError, SampleError
from penstock.nearest_name import MOST_NAMES, suggest
from penstock.redact import redact
from penstock.shards.index.scan import PlaceReader
from penstock.shards.sample_reader import base_plus_ext, is_meta, text_of
from penstock.shards.tar_reader import Member
from penstock.tools.field_spec import FieldSpec
from penstock.tools.field_values import describe_field, is_readable, read_value
from penstock.tools.inputs import LocatedSample, Shards, list_shards, read_samples


@dataclasses.dataclass(frozen=True, slots=True)
class ListedSample:
    """A sample without its data: where it is, and the size of each field."""

    shard: str
    key: str
    offset: int
    fields: dict[str, int]
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    """``head``: text, numbers and JSON; of other fields a description."""

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        figures = dataclasses.asdict(self)
        figures["shard"] = redact(self.shard)
        if not self.values:
            del figures["values"]
        return figures


def ls(
    shards: Shards,
    *,
    list_file: str | None = None,
    count: int | None = None,
    fields: FieldSpec | str | None = None,
) -> Iterator[ListedSample]:
    """Yield the samples of shards with the sizes of their fields; only headers are read.

    >>> import os, tempfile, penstock
    >>> name = os.path.join(tempfile.mkdtemp(), "x.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     _ = sink.write({"__key__": "a", "txt": "hello", "cls": 7})
    >>> [(sample.key, sample.offset, sample.fields) for sample in ls(name)]
    [('a', 0, {'cls': 1, 'txt': 5})]
    """
    yield from list_samples(list_shards(shards, list_file), count=count, fields=fields)


def list_samples(
    urls: list[str], *, count: int | None = None, fields: FieldSpec | str | None = None
) -> Iterator[ListedSample]:
    """Yield what :func:`ls` does of shards whose URLs are already expanded."""
    spec = _spec(fields)
    places = read_samples(urls, want=lambda name: False, reader=PlaceReader.of)
    for found in itertools.islice(places, count):
        members: dict[str, Member] = found.fields if spec is None else spec.select(found.fields)
        sizes = {field: member.size for field, member in members.items()}
        yield ListedSample(found.shard, found.key, found.offset, sizes)
    if spec is not None and count is None:
        spec.check_found()


def head(
    shards: Shards,
    *,
    list_file: str | None = None,
    count: int | None = 5,
    fields: FieldSpec | str | None = None,
) -> Iterator[ListedSample]:
    """Yield the first samples with their text, numbers and JSON, and a description of the rest."""
    spec = _spec(fields)
    found = read_samples(list_shards(shards, list_file))
    for located in itertools.islice(found, count):
        data = located.fields if spec is None else spec.select(located.fields)
        sizes = {field: len(value) for field, value in data.items()}
        values = {field: _value(field, value, located) for field, value in data.items()}
        yield ListedSample(located.shard, located.key, located.offset, sizes, values)
    if spec is not None:
        spec.check_found()


def _spec(fields: FieldSpec | str | None) -> FieldSpec | None:
    return FieldSpec(fields) if isinstance(fields, str) else fields


def _value(field: str, data: bytes, located: LocatedSample) -> Any:
    if not is_readable(field):
        return describe_field(field, data)
    try:
        return read_value(field, data, located.key, located.shard)
    except PenstockError:
        return describe_field(field, data)


@dataclasses.dataclass(frozen=True, slots=True)
class ShownMember:
    """A member of a sample, with its data."""

    name: str
    field: str
    offset: int
    data_offset: int
    size: int
    description: str
    data: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class ShownSample:
    """A sample with all members and their offsets."""

    shard: str
    key: str
    offset: int
    members: list[ShownMember]

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON, without the data."""
        members = [dataclasses.asdict(member) for member in self.members]
        for member in members:
            del member["data"]
        figures = {"shard": redact(self.shard), "key": self.key, "offset": self.offset}
        return {**figures, "members": members}


def show(shard: str, key: str | None = None) -> ShownSample:
    """Return one sample of a shard with its members: that of ``key``, or the first.

    A key that is not in the shard is a SampleError that names the nearest one.
    """
    known: set[str] = set()

    def want(name: bytes) -> bool:
        text = text_of(name)
        found = base_plus_ext(text)[0]
        if found is not None and not is_meta(text) and len(known) <= MOST_NAMES:
            known.add(found)
        return key is None or found == key

    urls = list_shards(shard)
    for located in read_samples(urls, want=want, reader=_WantedPlaces.of):
        members = []
        for field, member in located.fields.items():
            data = bytes(member.data or b"")
            described = describe_field(field, data)
            place = member.offset, member.data_offset, member.size
            members.append(ShownMember(text_of(member.name), field, *place, described, data))
        return ShownSample(located.shard, located.key, located.offset, members)
    if key is None:
        raise SampleError("there is no sample to show", origin=Origin(urls[0]))
    hint = suggest(key, known)
    raise SampleError(f"there is no sample {key!r}{hint}", origin=Origin(urls[0]))


class _WantedPlaces(PlaceReader):
    """As its base, but only for members whose data is wanted."""

    def next_member(self, *arguments: Any) -> Member | None:
        member = super().next_member(*arguments)
        while member is not None and member.data.data is None:  # type: ignore[union-attr]
            member = super().next_member()
        return member
