"""The Parquet schema of an index file.

One row per sample, in the order of the shards:

=============  ==================  ==========================================================
column         type                meaning
=============  ==================  ==========================================================
shard          int32               the number of its shard in the list of shards
key            string              its key
offset         int64               where its first header begins (PAX headers count)
size           int64               bytes from there to the end of its last member
fields         dictionary string   the names of its fields in their order: ``cls jpg``
field_offsets  list of int64       where the data of each field begins in the shard
field_sizes    list of int64       how many bytes each field has
…                                  the user's columns
=============  ==================  ==========================================================

The file's metadata has, under ``penstock``, a JSON object: ``version``, ``created_by``,
``columns`` (the user's, as specified), ``group`` (how members were grouped into samples;
"key" if it is missing), ``checksum`` (that the file carries one, see
:mod:`penstock.shards.index.checksum`) and ``shards``, each with ``url``, ``size_bytes``,
``mtime_ns`` or
``etag``, ``samples``, ``compressed``, ``checksum`` and ``ends``. URLs of shards below the index
file's folder are relative to it, so that a data set can be moved with its index. Passwords and
signatures of URLs are left out.

An index file is untrusted: values read from it have the types and ranges described here, or are a
StaleIndexError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock import __version__
from penstock.errors import MissingPackage, Origin, ShardError, StaleIndexError, parsing
from penstock.redact import canonical_url
from penstock.shards.index.shard_stamps import ShardStamp, compare
from penstock.shards.sample_reader import GROUPS
from penstock.storage.urls import is_stream, local_path

VERSION = 1
CHECKSUM = "crc32"
METADATA = b"penstock"
OWN_COLUMNS = ("shard", "key", "offset", "size", "fields", "field_offsets", "field_sizes")


def arrow() -> Any:
    """Import ``pyarrow`` with ``pyarrow.parquet``."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackage(
            "indexes and Parquet files need the package 'pyarrow', which is installed with "
            "penstock: pip install pyarrow"
        ) from None
    return pyarrow


def damaged(why: str, path: str | None) -> StaleIndexError:
    """Return the error for an index whose content is invalid."""
    return StaleIndexError(
        f"the index is damaged: {why}; run 'penstock index' over the shards again",
        origin=None if path is None else Origin(path),
    )


def damage_of(path: str | None) -> contextlib.AbstractContextManager[None]:
    """Raise what reading and converting damaged rows raises as StaleIndexError."""
    return parsing(lambda why: damaged(why, path))


@dataclasses.dataclass(frozen=True, slots=True)
class IndexedShard:
    """One shard of an index: where it is, how many samples it has, and which version was read."""

    url: str
    samples: int
    size_bytes: int | None = None
    mtime_ns: int | None = None
    etag: str | None = None
    compressed: bool = False
    checksum: str | None = dataclasses.field(default=None, compare=False)
    """Of all bytes of the file, as ``crc32:HEX``, if all were read when it was indexed."""
    ends: str | None = dataclasses.field(default=None, compare=False)
    """Of the first and last bytes of a local file: see
    :func:`penstock.shards.index.shard_stamps.ends_of`."""

    @property
    def stamp(self) -> ShardStamp:
        """What must still be true of the shard."""
        return ShardStamp(self.size_bytes, self.mtime_ns, self.etag)

    def check(self, found: ShardStamp, read_ends: Callable[[], str | None]) -> None:
        """Raise StaleIndexError unless the shard that was found is the one that was indexed.

        ``read_ends`` is called if only the checksum of both ends can decide.
        """
        compare(self.url, self.stamp, found, self.ends, read_ends)

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return canonical_url(self.url).rsplit("/", 1)[-1]


@dataclasses.dataclass(slots=True)
class IndexRows:
    """The samples of one shard, as lists of equal length; the user's columns in ``more``."""

    keys: list[str] = dataclasses.field(default_factory=list)
    offsets: list[int] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    fields: list[str] = dataclasses.field(default_factory=list)
    field_offsets: list[list[int]] = dataclasses.field(default_factory=list)
    field_sizes: list[list[int]] = dataclasses.field(default_factory=list)
    more: dict[str, list[Any]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def add(
        self,
        key: str,
        begin: int,
        end: int,
        names: Sequence[str],
        field_offsets: list[int],
        sizes: list[int],
    ) -> None:
        """Add a sample that spans bytes ``begin`` to ``end``, with the offsets of its fields'
        data."""
        self.keys.append(key)
        self.offsets.append(begin)
        self.sizes.append(end - begin)
        self.fields.append(join_fields(names))
        self.field_offsets.append(field_offsets)
        self.field_sizes.append(sizes)

    def table(self, shard: int = 0) -> Any:
        """Return the rows as an Arrow table."""
        pa = arrow()
        columns = {
            "shard": pa.array([shard] * len(self), pa.int32()),
            "key": _strings(self.keys),
            "offset": pa.array(self.offsets, pa.int64()),
            "size": pa.array(self.sizes, pa.int64()),
            "fields": pa.array(self.fields, pa.string()).dictionary_encode(),
            "field_offsets": pa.array(self.field_offsets, pa.list_(pa.int64())),
            "field_sizes": pa.array(self.field_sizes, pa.list_(pa.int64())),
            **{name: _values(name, values, self.keys) for name, values in self.more.items()},
        }
        return pa.table(columns)


def _strings(texts: Sequence[str]) -> Any:
    """Make a string array of keys with the bytes of the tar, also if these are not UTF-8."""
    pa = arrow()
    data = [text.encode("utf-8", "surrogateescape") for text in texts]
    binary = pa.array(data, pa.binary())
    return pa.StringArray.from_buffers(len(binary), *binary.buffers()[1:], None)


def _values(name: str, values: list[Any], keys: Sequence[str]) -> Any:
    pa = arrow()
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ShardError(
            f"the values of the column {name!r} have no common type: {error}; "
            "return numbers, texts, or None"
        ) from error
    except UnicodeEncodeError as error:
        first = next((key for key, value in zip(keys, values) if value == error.object), None)
        raise ShardError(
            f"a value of the column {name!r} is no text: {error}", origin=Origin("", first)
        ) from error


def join_fields(fields: Sequence[str]) -> str:
    """Join the names of a sample's fields into one text.

    >>> join_fields(["cls", "jpg"]), join_fields(["my file"])
    ('cls jpg', '["my file"]')
    """
    text = " ".join(fields)
    if text.isprintable() and text.split(" ") == list(fields) and not text.startswith("["):
        return text
    return json.dumps(list(fields))


def split_fields(text: str) -> tuple[str, ...]:
    """Invert :func:`join_fields`; raise ValueError if the text is not a list of names.

    >>> split_fields('["my file"]'), split_fields("cls jpg")
    (('my file',), ('cls', 'jpg'))
    """
    if not text.startswith("["):
        return tuple(text.split(" "))
    names = tuple(json.loads(text))
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{text!r} is not a list of fields")
    return names


def metadata_of(
    shards: Sequence[IndexedShard],
    columns: Mapping[str, str],
    folder: str | None,
    group: str = "key",
) -> dict[bytes, bytes]:
    """Return the schema's metadata for an index file in ``folder``."""
    described = []
    for shard in shards:
        entry = {
            name: value for name, value in dataclasses.asdict(shard).items() if value is not None
        }
        entry["url"] = relative_url(shard.url, folder)
        described.append(entry)
    about = {
        "version": VERSION,
        "created_by": f"penstock {__version__}",
        "columns": dict(columns),
        "group": group,
        "checksum": CHECKSUM,
        "shards": described,
    }
    return {METADATA: json.dumps(about).encode()}


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """The metadata of an index file."""

    shards: list[IndexedShard]
    columns: dict[str, str]
    """The user's columns, as specified."""
    has_checksum: bool
    group: str = "key"
    """How members were grouped into samples."""


def parse_metadata(metadata: Mapping[bytes, bytes] | None, path: str) -> About:
    """Parse and check the metadata of the index file at ``path``."""
    text = (metadata or {}).get(METADATA)
    if text is None:
        raise StaleIndexError(
            "this Parquet file is not an index of penstock: make one with 'penstock index'",
            origin=Origin(path),
        )
    with damage_of(path):
        about = json.loads(text)
        version = about.get("version")
        if version != VERSION:
            raise StaleIndexError(
                f"an index of version {version!r}, but this penstock ({__version__}) "
                f"reads version {VERSION}: run 'penstock index' again",
                origin=Origin(path),
            )
        folder = os.path.dirname(path)
        shards = [_shard(entry, folder) for entry in about["shards"]]
        columns = {str(name): str(spec) for name, spec in about.get("columns", {}).items()}
        group = about.get("group", "key")
        if group not in GROUPS:
            raise StaleIndexError(
                f"an index of samples grouped by {group!r}, which this penstock ({__version__}) "
                "does not know: run 'penstock index' again",
                origin=Origin(path),
            )
        return About(shards, columns, about.get("checksum") is not None, group)


_Count = (int, type(None))
_Text = (str, type(None))
_ENTRY: dict[str, tuple[type, ...]] = {
    "url": (str,),
    "samples": (int,),
    "size_bytes": _Count,
    "mtime_ns": _Count,
    "etag": _Text,
    "compressed": (bool,),
    "checksum": _Text,
    "ends": _Text,
}
"""The types of what the metadata says about a shard."""


def _shard(entry: Any, folder: str) -> IndexedShard:
    """Parse a shard of the metadata; raise ValueError or TypeError if it is invalid."""
    known = {name: value for name, value in entry.items() if name in _ENTRY}
    for name, value in known.items():
        if type(value) not in _ENTRY[name]:
            raise ValueError(f"a shard whose {name} is {value!r}")
    shard = IndexedShard(**{**known, "url": absolute_url(entry["url"], folder)})
    if shard.samples < 0 or (shard.size_bytes or 0) < 0 or "\0" in shard.url:
        raise ValueError(f"a shard {shard.url!r} of {shard.samples} samples")
    if is_stream(shard.url):
        raise ValueError("a shard that is a command or standard input")
    return shard


def check_types(schema: Any, path: str) -> None:
    """Raise StaleIndexError unless the index's own columns have the types that they must have."""
    pa = arrow()
    numbers = pa.list_(pa.int64())
    fields = pa.dictionary(pa.int32(), pa.string())
    kinds = (pa.int32(), pa.string(), pa.int64(), pa.int64(), fields, numbers, numbers)
    for name, kind in zip(OWN_COLUMNS, kinds):
        found = [field.type for field in schema if field.name == name]
        if found != [kind]:
            have = " and ".join(map(str, found)) or "nothing"
            raise damaged(f"its column {name!r} holds {have}, not {kind}", path)


def relative_url(url: str, folder: str | None) -> str:
    """Return the URL as it is written to an index file in ``folder``."""
    path = local_path(url)
    if path is None or folder is None:
        return canonical_url(url)
    path, folder = os.path.abspath(path), os.path.abspath(folder)
    if os.path.commonpath([path, folder]) == folder:
        path = os.path.relpath(path, folder)
    return os.path.join(os.curdir, path) if local_path(path) != path else path


def absolute_url(url: str, folder: str) -> str:
    """Resolve a URL of an index file in ``folder``."""
    path = local_path(url)
    return url if path is None else os.path.normpath(os.path.join(folder, path))
