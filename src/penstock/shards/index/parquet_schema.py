"""How an index lies in its Parquet file.

One row per sample, in the order of the shards:

=============  ==================  ==========================================================
column         type                meaning
=============  ==================  ==========================================================
shard          int32               the number of its shard in the list of shards
key            string              its key
offset         int64               where its first header stands (PAX headers count)
size           int64               bytes from there to the end of its last member
fields         dictionary string   the names of its fields in their order: ``cls jpg``
field_offsets  list of int64       where the data of each field begins in the shard
field_sizes    list of int64       how many bytes each field has
…                                  the user's own columns
=============  ==================  ==========================================================

The file's metadata has, under ``penstock``, a JSON object: ``version``, ``created_by``,
``columns`` (the user's, as they were asked for) and ``shards``, each with ``url``,
``size_bytes``, ``mtime_ns`` or ``etag``, ``samples``, ``compressed`` and ``checksum``. URLs of
shards below the index file's folder are relative to it, so that a data set can be moved with its
index. Passwords and signatures of URLs are left out.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import __version__
from penstock.errors import MissingPackage, Origin, ShardError
from penstock.shards.index.shard_stamps import Stamp
from penstock.redact import named
from penstock.storage.urls import local_path

VERSION = 1
METADATA = b"penstock"
OWN_COLUMNS = ("shard", "key", "offset", "size", "fields", "field_offsets", "field_sizes")


def arrow() -> Any:
    """The package ``pyarrow``, with ``pyarrow.parquet`` loaded."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackage.of("an index", "pyarrow", "index") from None
    return pyarrow


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
    """Of all bytes of the file, as ``crc32:HEX``, where they passed by when it was indexed."""

    @property
    def stamp(self) -> Stamp:
        """What must still be true of the shard."""
        return Stamp(self.size_bytes, self.mtime_ns, self.etag)

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return named(self.url).rsplit("/", 1)[-1]


@dataclasses.dataclass(slots=True)
class Rows:
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
        places: list[int],
        sizes: list[int],
    ) -> None:
        """One more sample, from byte ``begin`` to byte ``end``, and where its fields' data is."""
        self.keys.append(key)
        self.offsets.append(begin)
        self.sizes.append(end - begin)
        self.fields.append(join_fields(names))
        self.field_offsets.append(places)
        self.field_sizes.append(sizes)

    def table(self, shard: int = 0) -> Any:
        """The rows as an Arrow table."""
        pa = arrow()
        columns = {
            "shard": pa.array([shard] * len(self), pa.int32()),
            "key": _strings(self.keys),
            "offset": pa.array(self.offsets, pa.int64()),
            "size": pa.array(self.sizes, pa.int64()),
            "fields": pa.array(self.fields, pa.string()).dictionary_encode(),
            "field_offsets": pa.array(self.field_offsets, pa.list_(pa.int64())),
            "field_sizes": pa.array(self.field_sizes, pa.list_(pa.int64())),
            **{name: _values(name, values) for name, values in self.more.items()},
        }
        return pa.table(columns)


def _strings(texts: Sequence[str]) -> Any:
    """A string array of keys as they stand in the tar, also where those bytes are not UTF-8."""
    pa = arrow()
    data = [text.encode("utf-8", "surrogateescape") for text in texts]
    binary = pa.array(data, pa.binary())
    return pa.StringArray.from_buffers(len(binary), *binary.buffers()[1:], None)


def _values(name: str, values: list[Any]) -> Any:
    pa = arrow()
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise ShardError(
            f"the values of the column {name!r} have no common type: {error}; "
            "give numbers, texts, or None"
        ) from error


def join_fields(fields: Sequence[str]) -> str:
    """The names of a sample's fields as one text.

    >>> join_fields(["cls", "jpg"]), join_fields(["my file"])
    ('cls jpg', '["my file"]')
    """
    text = " ".join(fields)
    if text.isprintable() and text.split(" ") == list(fields) and not text.startswith("["):
        return text
    return json.dumps(list(fields))


def split_fields(text: str) -> tuple[str, ...]:
    """The way back from :func:`join_fields`.

    >>> split_fields('["my file"]'), split_fields("cls jpg")
    (('my file',), ('cls', 'jpg'))
    """
    return tuple(json.loads(text)) if text.startswith("[") else tuple(text.split(" "))


def metadata_of(
    shards: Sequence[IndexedShard], columns: Mapping[str, str], folder: str | None
) -> dict[bytes, bytes]:
    """The schema's metadata for an index file in ``folder``."""
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
        "shards": described,
    }
    return {METADATA: json.dumps(about).encode()}


def parse_metadata(
    metadata: Mapping[bytes, bytes] | None, path: str
) -> tuple[list[IndexedShard], dict[str, str]]:
    """The shards and the user's columns of the index file at ``path``."""
    text = (metadata or {}).get(METADATA)
    if text is None:
        raise ShardError(
            "this Parquet file is no index of penstock: make one with 'penstock index'",
            origin=Origin(path),
        )
    about = json.loads(text)
    if about.get("version") != VERSION:
        raise ShardError(
            f"an index of version {about.get('version')!r}, but this penstock ({__version__}) "
            f"reads version {VERSION}: run 'penstock index' again",
            origin=Origin(path),
        )
    folder = os.path.dirname(path)
    names = {field.name for field in dataclasses.fields(IndexedShard)}
    shards = []
    for entry in about["shards"]:
        known = {name: value for name, value in entry.items() if name in names}
        shards.append(IndexedShard(**{**known, "url": absolute_url(entry["url"], folder)}))
    return shards, about.get("columns", {})


def relative_url(url: str, folder: str | None) -> str:
    """The URL as it is written into an index file in that folder."""
    path = local_path(url)
    if path is None or folder is None:
        return named(url)
    path, folder = os.path.abspath(path), os.path.abspath(folder)
    if os.path.commonpath([path, folder]) == folder:
        path = os.path.relpath(path, folder)
    return os.path.join(os.curdir, path) if local_path(path) != path else path


def absolute_url(url: str, folder: str) -> str:
    """The URL that an index file in that folder means."""
    path = local_path(url)
    return url if path is None else os.path.normpath(os.path.join(folder, path))
