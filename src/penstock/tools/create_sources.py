"""The inputs of ``create``: folders, plan files, tables, folders of images."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from penstock import limits
from penstock.codecs.image_files import (
    IMG_EXTENSIONS,
    is_hidden,
    is_image,
    split_image_name,
    unified_field,
)
from penstock.errors import Origin, PipelineError, SampleError, StorageError, UnsafeError
from penstock.jobs.control_folder import HIDDEN
from penstock.jobs.output_listing import OutputSet
from penstock.redact import redact
from penstock.shards.index.parquet_schema import arrow
from penstock.shards.sample_reader import Sample, base_plus_ext
from penstock.shards.writing.shard_names import field_problem, is_plain_key, key_problem
from penstock.storage import open_url
from penstock.storage.listing import list_prefix
from penstock.storage.local.walk import walk_links
from penstock.storage.small_files import stamp_file
from penstock.storage.streams import storage_error
from penstock.storage.urls import local_path, rewrite_url, scheme_of
from penstock.tools.call_record import Entry

TABLES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}
_INDEX = re.compile(r"\.index\.parquet(\.lock|\.parts)?$").search
ROW_GROUPS_KEPT = 2
READ_BYTES = 16 << 20
FILE_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class PendingField(NamedTuple):
    """One field of a sample that is not made yet."""

    field: str
    source: str
    """A path or URL; ``text:`` and the text; ``pipe:`` and a command."""
    size: int
    version: str | None = None

    def read(self) -> bytes:
        """Return the bytes; a file that is not as long as it was planned is a StorageError."""
        if self.source.startswith("text:"):
            return self.source[5:].encode("utf-8", "surrogateescape")
        path = local_path(rewrite_url(self.source))
        if path is not None and scheme_of(self.source) != "pipe":
            return self.read_file(path)
        with open_url(self.source, buffer_bytes=-1) as stream:
            data: bytes = stream.read()
        return self.check_size(data)

    def read_file(self, path: str) -> bytes:
        """Return the bytes of a local file, with few calls: a shard may be made of many files."""
        try:
            descriptor = os.open(path, FILE_FLAGS)
            try:
                data = os.read(descriptor, self.size + 1)
                while len(data) != self.size and (more := os.read(descriptor, READ_BYTES)):
                    data += more
                    if self.version is None and len(data) > limits.MAX_DECODED_BYTES:
                        raise limits.too_large("a device")  # it may have no end
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error("cannot read", path, error) from error
        return self.check_size(data)

    def check_size(self, data: bytes) -> bytes:
        if self.version is not None and len(data) != self.size:
            raise StorageError(
                f"the file had {self.size} bytes when the shards were planned, and now "
                f"{len(data)}: run the command again",
                origin=Origin(self.source),
            )
        return data


class LocalField(PendingField):
    """A field that is a local file; its source is the path."""

    __slots__ = ()

    def read(self) -> bytes:
        return self.read_file(self.source)


class FileInput:
    """Samples whose fields are files, texts and the output of commands."""

    remedy = "; rename the file, or the key in the plan or table"

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.parts: list[list[PendingField]] = []
        self.rejected: list[tuple[str, str]] = []
        """Files that become no part of a sample, each with the reason."""

    @property
    def size(self) -> Sequence[int]:
        return array("q", (sum(part.size for part in parts) for parts in self.parts))

    @property
    def identity(self) -> Any:
        return [self.keys, self.parts]

    def entries(self) -> Iterator[Entry]:
        for key, parts in zip(self.keys, self.parts):
            for field, source, size, version in parts:
                member = f"{key}.{field}"
                if source.startswith("text:"):
                    version = str(crc32(source.encode("utf-8", "surrogateescape")))
                is_file = source and not source.startswith("text:")
                yield redact(source) if is_file else member, [member, size, version]

    def fields_of(self, number: int) -> list[str]:
        return [part.field for part in self.parts[number]]

    def read(self, numbers: Sequence[int]) -> Iterator[Sample]:
        for number in numbers:
            sample: Sample = {"__key__": self.keys[number]}
            for part in self.parts[number]:
                sample[part.field] = part.read()
            yield sample

    def add(self, key: str, part: PendingField, known: dict[str, int]) -> None:
        """Add a field to the sample of that key; one that it has already is a SampleError."""
        number = known.get(key)
        if number is None:
            number = known[key] = len(self.keys)
            self.keys.append(key)
            self.parts.append([])
        for other in self.parts[number]:
            if other.field == part.field:
                raise SampleError(
                    f"two files would be the field {part.field!r} of the sample {key!r}: "
                    f"{redact(other.source)} and {redact(part.source)}; choose keys that differ "
                    "(--key)"
                )
        self.parts[number].append(part)

    def check_name(self, name: str, key: str, field: str) -> bool:
        """Whether the key and field can be written; if not, the file is rejected."""
        problem = (None if is_plain_key(key) else key_problem(key)) or _field_problem(field)
        if problem is None and not field:
            problem = "the name has no extension"
        if problem is not None:
            self.rejected.append((name, problem))
        return problem is None


def key_maker(key: str) -> Callable[[str], tuple[str | None, str | None]]:
    """Return the function that makes key and field of a file's relative path.

    >>> key_maker("path")("a/b.seg.png"), key_maker("base")("a/b.seg.png")
    (('a/b', 'seg.png'), ('b', 'seg.png'))
    >>> key_maker(r"(n\\d+)/")("x/n07/image.jpg")
    ('n07', 'jpg')
    """
    if key == "path":
        return base_plus_ext
    if key == "base":
        return lambda path: base_plus_ext(path.rpartition("/")[2])
    try:
        pattern = re.compile(key)
    except re.error as error:
        raise PipelineError(
            f"--key is path, base or a regular expression, not {key!r}: {error}"
        ) from None
    if pattern.groups != 1:
        raise PipelineError(
            f"--key is path, base or a regular expression with one group, but {key!r} has "
            f"{pattern.groups}"
        )

    def by_pattern(path: str) -> tuple[str | None, str | None]:
        found = pattern.search(path)
        field = base_plus_ext(path.rpartition("/")[2])[1]
        return (None, None) if found is None or not found[1] else (found[1], field)

    return by_pattern


def list_folder(
    root: str, rejected: list[tuple[str, str]], written: Mapping[str, OutputSet] = {}
) -> Iterator[tuple[str, PendingField]]:
    """Yield the files below a folder, local or remote: the relative path, and the file.

    Links are followed, except those that lead back to a folder above them: they are rejected.
    ``written`` has the names that the command writes, by the real path of their folder: they are
    rejected, and so are indexes beside them. Folders ``.penstock``, of jobs, are left out.
    """
    path = local_path(rewrite_url(root))
    if path is None:
        prefix = root.rstrip("/") + "/"
        for listed in list_prefix(rewrite_url(prefix)):
            name = listed.url[len(rewrite_url(prefix)) :]
            if HIDDEN in name.split("/")[:-1]:
                continue
            yield name, PendingField("", listed.url, listed.size_bytes or 0, listed.version)
        return
    if not os.path.isdir(path):
        yield os.path.basename(path), _local_part(path)
        return

    def failed(error: OSError) -> None:
        raise storage_error("cannot list the folder", str(error.filename), error) from error

    def loops(link: str) -> None:
        name = os.path.relpath(link, path).replace(os.sep, "/")
        rejected.append((name, "it is a link to a folder above it"))

    for folder, folders, files in walk_links(path, onerror=failed, onloop=loops):
        own = written.get(os.path.realpath(folder)) if written else None
        folders[:] = sorted(
            name for name in folders if name != HIDDEN and not (own and _INDEX(name))
        )
        below = os.path.relpath(folder, path).replace(os.sep, "/") + "/"
        for name in sorted(files):
            full = os.path.join(folder, name)
            relative = name if below == "./" else below + name
            if own and (name in own or _INDEX(name)):
                rejected.append((relative, "it is an output of this command"))
                continue
            try:
                status = os.stat(full)
            except OSError as error:
                rejected.append((relative, error.strerror or "cannot be read"))
                continue
            if not stat.S_ISREG(status.st_mode):
                rejected.append((relative, "it is no regular file"))
                continue
            yield relative, LocalField("", full, status.st_size, str(status.st_mtime_ns))


def _local_part(path: str) -> PendingField:
    stamp = stamp_file(path)
    return PendingField("", path, stamp.size_bytes or 0, stamp.version or "")


def from_folders(
    roots: Sequence[str], key: str = "path", written: Mapping[str, OutputSet] = {}
) -> FileInput:
    """Return the samples of files below folders, ordered by key."""
    source, make_key, known = FileInput(), key_maker(key), dict[str, int]()
    for root in roots:
        for name, part in list_folder(root, source.rejected, written):
            stem, extension = make_key(name)
            if stem is None or extension is None:
                reason = "the name has no extension" if key in ("path", "base") else "no key"
                source.rejected.append((name, f"{reason} (--key {key})"))
            elif source.check_name(name, stem, field := extension.lower()):
                source.add(stem, type(part)(field, *part[1:]), known)
    return source


def image_key_maker(key: str) -> Callable[[str], tuple[str | None, str]]:
    """Return the function that makes key and field of an image's relative path."""
    if key == "path":
        return split_image_name
    if key == "base":
        return lambda path: split_image_name(path.rpartition("/")[2])
    by_pattern = key_maker(key)
    return lambda path: (by_pattern(path)[0], split_image_name(path)[1])


def from_images(
    roots: Sequence[str],
    key: str = "path",
    written: Mapping[str, OutputSet] = {},
    field: str | None = None,
) -> tuple[FileInput, list[str]]:
    """Return the samples of one class per folder, and the names of the classes in order.

    With ``field``, images of all formats are that field.
    """
    source, make_key, known = FileInput(), image_key_maker(key), dict[str, int]()
    if field == "":
        raise PipelineError("--as is the name of a field, such as image.jpg, and cannot be empty")
    one_field = None if field is None else unified_field(field.lower())
    found: list[tuple[str, str, PendingField]] = []
    names: dict[str, str] = {}
    for root in roots:
        for name, part in list_folder(root, source.rejected, written):
            folder, slash, _ = name.partition("/")
            stem, extension = make_key(name)
            if is_hidden(name):
                source.rejected.append((name, "it is hidden: a name in its path begins with a dot"))
            elif not slash:
                source.rejected.append((name, "it is in no folder of a class"))
            elif not is_image(name):
                known_ones = " ".join(IMG_EXTENSIONS)
                source.rejected.append((name, f"its extension is not one of {known_ones}"))
            elif stem is None:
                source.rejected.append((name, f"no key (--key {key})"))
            elif source.check_name(name, stem, one_field or extension):
                if names.setdefault(stem, part.source) is not part.source:
                    raise SampleError(
                        f"two images would be the sample {stem!r}: {redact(names[stem])} and "
                        f"{redact(part.source)}; rename one, or choose other keys (--key)"
                    )
                found.append((folder, stem, type(part)(one_field or extension, *part[1:])))
    classes = sorted({folder for folder, _, _ in found})
    if classes:
        _refuse_empty_classes(roots, set(classes), written, source.rejected)
    numbers = {name: number for number, name in enumerate(classes)}
    for folder, stem, part in found:
        source.add(stem, part, known)
        label = str(numbers[folder])
        source.add(stem, PendingField("cls", f"text:{label}", len(label)), known)
    return source, classes


def _refuse_empty_classes(
    roots: Sequence[str],
    classes: set[str],
    written: Mapping[str, OutputSet],
    rejected: Sequence[tuple[str, str]],
) -> None:
    """Raise SampleError if a class folder has no image: ImageFolder gives it a label."""
    empty = []
    for root in roots:
        path = local_path(rewrite_url(root))
        if path is None or not os.path.isdir(path):
            continue  # a store has no empty folders
        own = os.path.realpath(path) in written
        for entry in os.scandir(path):
            inner = os.path.join(os.path.realpath(entry.path), "")
            has_outputs = any(os.path.join(folder, "").startswith(inner) for folder in written)
            left_out = is_hidden(entry.name) or has_outputs or (own and _INDEX(entry.name))
            if entry.is_dir() and not left_out and entry.name not in classes:
                empty.append(entry.path)
    names = {os.path.basename(folder) for folder in empty}
    for name, reason in rejected:
        if name.partition("/")[0] in names and is_image(name) and not is_hidden(name):
            raise SampleError(
                f"no image was taken from the class folder {name.partition('/')[0]!r}, which "
                f"ImageFolder gives a label: {name!r} was rejected: {reason}"
            )
    if empty:
        more = f" and {len(empty) - 3:,} more" if len(empty) > 3 else ""
        raise SampleError(
            f"no image was found for the class folders {', '.join(sorted(empty)[:3])}{more}, "
            "which ImageFolder gives labels: add images, remove the folders, or hide them with "
            "names that begin with a dot"
        )


def from_plan(plans: Sequence[str], *, allow_pipe: bool = False) -> FileInput:
    """Return the samples of plan files: a line has a member's name and where its data is.

    Commands (``pipe:``) are refused with an UnsafeError unless ``allow_pipe`` is set.
    """
    source = FileInput()
    for plan in plans:
        known: dict[str, int] = {}
        for number, line in enumerate(_read_text(plan).split("\n"), 1):
            if not line.strip():
                continue
            words = line.split(None, 1)
            if len(words) != 2:
                raise SampleError(
                    "a line of a plan is a member's name and its source (a path, text:…, pipe:… or "
                    f"file:…), but line {number} is {line!r}",
                    origin=Origin(plan),
                )
            name, place = words[0], words[1].rstrip()
            if scheme_of(place) == "pipe" and not allow_pipe:
                raise UnsafeError(
                    f"a plan may not run commands, but line {number} has {redact(place)!r}: if you "
                    "trust the plan, set allow_pipe=True (--allow-pipe)",
                    origin=Origin(plan),
                )
            stem, extension = base_plus_ext(name)
            if stem is None or extension is None:
                source.rejected.append((name, "the name has no extension"))
            elif source.check_name(name, stem, field := extension.lower()):
                source.add(stem, _planned_part(field, place), known)
    return source


def _planned_part(field: str, place: str) -> PendingField:
    if place.startswith("text:"):
        return PendingField(field, place, len(place.encode("utf-8", "surrogateescape")) - 5)
    if scheme_of(place) == "pipe":
        return PendingField(field, place, 0)
    path = local_path(rewrite_url(place))
    if path is not None and os.path.exists(path) and not os.path.isfile(path):
        return PendingField(field, place, 0)  # a device
    stamp = stamp_file(place)
    return PendingField(field, place, stamp.size_bytes or 0, stamp.version)


def _read_text(url: str) -> str:
    with open_url(url, buffer_bytes=-1) as stream:
        text: str = stream.read().decode("utf-8-sig", "surrogateescape")
    return text


class TableInput(FileInput):
    """Samples that are rows of tables: columns are fields, ``@jpg`` names a file to embed."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: list[_ParquetRows] = []
        self._places: list[tuple[int, int]] = []  # of samples in Parquet files: file, row
        self._sizes = array("q")

    def add_row(
        self, row: dict[str, Any], number: int, table: str, place: tuple[int, int] | None = None
    ) -> None:
        """Add a row; ``place`` says where to read its values again instead of keeping them."""
        key = row.get("__key__")
        key = f"{number:09d}" if key is None else str(key)
        if problem := key_problem(key):
            raise SampleError(
                f"row {number} of the table has the key {key!r}: {problem}", origin=Origin(table)
            )
        parts = [
            PendingField(field, "", len(value)) if isinstance(value, bytes) else value
            for field, value in _fields_of_row(row, number, table)
        ]
        self.keys.append(key)
        self._sizes.append(sum(part.size for part in parts))
        if place is None:
            self.parts.append(parts)
        else:
            self.parts.append([part._replace(source="") for part in parts])
            self._places.append(place)

    @property
    def size(self) -> Sequence[int]:
        return self._sizes

    @property
    def identity(self) -> Any:
        return [self.keys, self.parts, [table.identity for table in self._tables]]

    def entries(self) -> Iterator[Entry]:
        yield from super().entries()
        for table in self._tables:
            yield redact(table.path), table.identity

    def read(self, numbers: Sequence[int]) -> Iterator[Sample]:
        if not self._tables:
            yield from super().read(numbers)
            return
        for number in numbers:
            file, row = self._places[number]
            table = self._tables[file]
            values = table.row(row)
            sample: Sample = {"__key__": self.keys[number]}
            for field, value in _fields_of_row(values, number, table.path):
                sample[field] = value if isinstance(value, bytes) else value.read()
            yield sample

    def add_parquet(self, path: str) -> None:
        table = _ParquetRows(path)
        self._tables.append(table)
        for row, values in enumerate(table.rows()):
            self.add_row(values, len(self.keys), path, (len(self._tables) - 1, row))


def _field_problem(field: str) -> str | None:
    if field.startswith("_"):
        return "fields that begin with '_' are for metadata, which is not stored: rename it"
    return field_problem(field)


def _fields_of_row(
    row: dict[str, Any], number: int, table: str
) -> Iterator[tuple[str, PendingField | bytes]]:
    """Yield the fields of a row: bytes as they are, everything else as a part."""
    folder = os.path.dirname(table) if local_path(table) is not None else ""
    seen: set[str] = set()
    for column, value in row.items():
        if column == "__key__" or value is None or column is None:
            continue
        if value == "" and column.startswith("@"):
            continue
        field = column.removeprefix("@").lower()
        problem = _field_problem(field) or ("another column is that field" if field in seen else "")
        if problem:
            raise SampleError(
                f"the column {column!r} (row {number}) cannot be a field: {problem}",
                origin=Origin(table),
            )
        seen.add(field)
        if column.startswith("@"):
            place = str(value)
            if not scheme_of(place) and table != "-":
                place = os.path.join(folder, place)
            if scheme_of(place) == "pipe":
                raise SampleError(f"a table may not run commands, but {column!r} has {place!r}")
            yield field, _planned_part(field, place)
        elif isinstance(value, bytes):
            yield field, value
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            try:
                size = len(text.encode("utf-8", "surrogateescape"))
            except UnicodeEncodeError as error:
                raise SampleError(
                    f"the value of {column!r} (row {number}) is no text: {error}",
                    origin=Origin(table, str(row.get("__key__"))),
                ) from None
            yield field, PendingField(field, f"text:{text}", size)


class _ParquetRows:
    """The rows of a Parquet file, by number."""

    def __init__(self, path: str) -> None:
        place = local_path(rewrite_url(path))
        if place is None:
            raise PipelineError(f"a Parquet table must be a local file, not {redact(path)!r}")
        self.path, self.identity = place, [path, *stamp_file(place)]
        self._file: Any = None
        self._groups: dict[int, list[dict[str, Any]]] = {}

    def _open(self) -> Any:
        if self._file is None:
            arrow()
            import pyarrow.parquet

            self._file = pyarrow.parquet.ParquetFile(self.path)
        return self._file

    def rows(self) -> Iterator[dict[str, Any]]:
        for batch in self._open().iter_batches(batch_size=1024):
            yield from batch.to_pylist()

    def row(self, number: int) -> dict[str, Any]:
        file, group = self._open(), 0
        while number >= (count := file.metadata.row_group(group).num_rows):
            number -= count
            group += 1
        if group not in self._groups:
            while len(self._groups) >= ROW_GROUPS_KEPT:
                self._groups.pop(next(iter(self._groups)))
            self._groups[group] = file.read_row_group(group).to_pylist()
        return self._groups[group][number]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_groups": {}}


def from_tables(tables: Sequence[str]) -> TableInput:
    """Return the rows of TSV, CSV, JSONL or Parquet tables as samples."""
    source = TableInput()
    kinds = {table: _kind_of(table) for table in tables}
    if "parquet" in kinds.values() and set(kinds.values()) != {"parquet"}:
        raise PipelineError("Parquet tables cannot be combined with tables of another kind")
    for table, kind in kinds.items():
        if kind == "parquet":
            source.add_parquet(table)
            continue
        text = _read_text(table)
        for number, row in enumerate(_text_rows(text, kind, table), len(source.keys)):
            source.add_row(row, number, table)
    return source


def _kind_of(table: str) -> str:
    name = table.partition("?")[0].lower()
    for ending, kind in TABLES.items():
        if name.endswith(ending):
            return kind
    if table == "-":
        return "tsv"
    raise PipelineError(
        f"a table ends in {', '.join(TABLES)}, but {redact(table)!r} does not (standard input, -, "
        "is TSV)"
    )


def _text_rows(text: str, kind: str, table: str) -> Iterator[dict[str, Any]]:
    if kind == "jsonl":
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SampleError(f"line {number}: {error}", origin=Origin(table)) from None
            if not isinstance(row, dict):
                raise SampleError(f"line {number} is no JSON object", origin=Origin(table))
            yield row
        return
    options: dict[str, Any] = (
        {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind == "tsv" else {}
    )
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, **options)
    csv.field_size_limit(1 << 30)
    try:
        names = list(reader.fieldnames or ())
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SampleError(f"the table has two columns {twice!r}", origin=Origin(table))
        for row in reader:
            if None in row or None in row.values():
                raise SampleError(
                    f"line {reader.line_num} has not as many columns as the header",
                    origin=Origin(table),
                )
            yield row
    except csv.Error as error:
        message = f"line {reader.line_num}: {error}"
        raise SampleError(message, origin=Origin(table)) from None
