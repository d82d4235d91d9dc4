"""Members to samples, also in shards that have a key several times.

Reading for training refuses a second sample with the key of an earlier one. Commands that rework
shards take it: members with one key that follow each other are a sample, and a field that comes
again begins another one. As in every reader, a field that readers add themselves is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.errors import DuplicateError, Origin
from penstock.handlers import Handler, ask, reraise_exception
from penstock.redact import canonical_url
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import (
    READ_ERRORS,
    READERS_OWN,
    Sample,
    base_plus_ext,
    is_meta,
    text_of,
)
from penstock.shards.tar_reader import Member


def group_members(members: Iterable[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    """Yield each sample as its key and its members by field; a key may come several times."""
    key, fields = "", dict[str, Member]()
    try:
        for member in members:
            if (split := _split(member.name)) is None:
                continue
            stem, field = split
            if field in READERS_OWN:
                raise DuplicateError(
                    f"the field {field!r} is one that readers add to every sample: "
                    "'penstock verify --repair' leaves the member out",
                    origin=Origin(getattr(members, "url", ""), stem, member.offset),
                )
            if stem != key or field in fields:
                if fields:
                    yield key, fields
                key, fields = stem, {}
            fields[field] = member
    except READ_ERRORS:
        # The header of a member that cannot be read may show that the sample before is complete.
        begun = getattr(members, "begun", None)
        following = None if begun is None else _split(begun[0])
        if fields and following is not None and (following[0] != key or following[1] in fields):
            yield key, fields
        raise
    if fields:
        yield key, fields


def _split(name: bytes) -> tuple[str, str] | None:
    """Split a member's name into key and field; None if it belongs to no sample."""
    text = text_of(name)
    stem, extension = base_plus_ext(text)
    return None if stem is None or extension is None or is_meta(text) else (stem, extension.lower())


def make_sample(key: str, url: str, members: Mapping[str, Member]) -> Sample:
    """Return the sample of members whose data was read."""
    return {
        "__key__": key,
        "__url__": url,
        **{field: member.data for field, member in members.items()},
    }


def read_all(
    urls: Iterable[str], handler: Handler = reraise_exception
) -> Iterator[tuple[Sample, int]]:
    """Yield the samples of shards with their offsets, also those with a key that came before.

    An error goes to ``handler``: if that returns true, reading continues with the next shard.
    """
    for url in urls:
        name = canonical_url(url)
        try:
            with open_shard(url) as tape:
                for key, members in group_members(tape):
                    yield (
                        make_sample(key, name, members),
                        next(iter(members.values())).offset,
                    )
        except READ_ERRORS as error:
            if not ask(handler, error):
                raise
