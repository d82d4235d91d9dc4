"""How other readers handle a shard: the rules of ``verify --for``.

Each rule sees the members and faults of a shard in order and says where its reader would skip
something or fail. The rules follow the readers' sources: webdataset 1.0.2 (``tariterators.py``),
open_clip 2 and 3 (``data.py``), and the module ``webdataset`` of Hugging Face datasets.
"""

from __future__ import annotations

import gzip
import json
import os.path
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import PipelineError
from penstock.nearest_name import suggest
from penstock.shards.decompress import MAGIC
from penstock.shards.sample_reader import text_of
from penstock.tools.findings import Finding
from penstock.tools.tar_walk import Fault, TarEntry

_SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$").match  # as both readers write it
_META = re.compile(r"__[^/]*__($|/)").match
_STOPS = {"PS101", "PS102", "PS103", "PS104", "PS105"}
_OPENED_BY_TARFILE = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00")
_NO_COLUMN = (TypeError, ValueError, OverflowError, RecursionError)
"""What pyarrow raises for values that no column can hold."""
_ZSTD = b"\x28\xb5\x2f\xfd"


class ReaderRule:
    """What one reader does with the members of shards; the base of all rules."""

    code = ""

    def begin(self, shard: str, start: bytes) -> Iterator[Finding]:
        """Start with a shard; ``start`` are its first bytes."""
        self.shard = shard
        return iter(())

    def wants(self, name: bytes) -> bool:
        """Whether the rule needs the data of a member."""
        return False

    def member(self, item: TarEntry | Fault) -> Iterator[Finding]:
        """Check a member, or take note of a fault of the tar."""
        return iter(())

    def sample(self, key: str, fields: dict[str, TarEntry], offset: int) -> Iterator[Finding]:
        """Check a sample as penstock groups it."""
        return iter(())

    def end(self) -> Iterator[Finding]:
        """Check what shows at the end of a shard."""
        return iter(())

    def finish(self) -> Iterator[Finding]:
        """Check what shows after the last shard."""
        return iter(())

    def found(
        self,
        message: str,
        key: str | None = None,
        offset: int | None = None,
        field: str | None = None,
    ) -> Finding:
        return Finding(self.code, self.shard, message, key, offset, field)


def _refused_by_tarfile(start: bytes) -> bool:
    """Whether Python's tarfile cannot unpack a shard with these first bytes."""
    known = _OPENED_BY_TARFILE + ((_ZSTD,) if sys.version_info >= (3, 14) else ())
    return start.startswith(tuple(MAGIC)) and not start.startswith(known)


class WebdatasetRule(ReaderRule):
    """webdataset 1.0.2 with its defaults: tarfile in stream mode, then ``group_by_keys``."""

    code = "PS501"

    def __init__(self) -> None:
        self.samples = 0
        self.shard = ""

    def begin(self, shard: str, start: bytes) -> Iterator[Finding]:
        self.shard = shard
        self._key: str | None = None
        self._fields: set[str] = set()
        self._earlier: set[str] | None = None  # fields of an earlier part of this sample
        self._seen: dict[str, set[str]] = {}
        self._stopped, self._ended = _refused_by_tarfile(start), False
        if self._stopped:
            yield self.found("fails: tarfile cannot unpack this compression")

    def wants(self, name: bytes) -> bool:
        return name.endswith(b".__bad__")

    def member(self, item: TarEntry | Fault) -> Iterator[Finding]:
        if self._stopped:
            return
        if isinstance(item, Fault):
            if item.code == "PS104":
                self._ended = True
            elif item.code in _STOPS:
                self._stopped = True
                yield self.found(f"fails here or ends silently: {item.message}", None, item.offset)
            elif item.code == "PS107":
                self.samples += 1  # webdataset has no such limit, and there may be samples
            return
        if self._ended:
            self._stopped = True
            yield self.found("skips all members after the end marker", None, item.offset)
            return
        name = text_of(item.name)
        if item.special is not None and item.special != "a sparse file":
            yield self.found(f"skips {item.special}: {name!r}", None, item.offset)
            return
        if _META(name):
            return
        split = _SPLIT(name)
        if split is None:
            yield self.found(f"skips the name {name!r}", None, item.offset)
            return
        yield from self._add(split[1], split[2].lower(), item)

    def _add(self, key: str, field: str, item: TarEntry) -> Iterator[Finding]:
        if key != self._key:
            self._key, self._fields = key, set()
            self.samples += 1
            self._earlier = set(self._seen[key]) if key in self._seen else None
            self._seen.setdefault(key, set())
        if self._earlier is not None and field not in self._earlier:
            self._earlier = None  # reported once
            message = "returns the sample in parts: its members are not adjacent"
            yield self.found(message, key, item.offset)
        if field in self._fields or field in ("__key__", "__url__"):
            self._stopped = True
            yield self.found("fails: duplicate file name in tar file", key, item.offset, field)
            return
        if field == "__bad__" and item.data:
            yield self.found("skips the sample, which has a field __bad__", key, item.offset, field)
        self._fields.add(field)
        self._seen[key].add(field)

    def finish(self) -> Iterator[Finding]:
        if not self.samples and self.shard:
            yield self.found("fails: no samples found in dataset")


class OpenClipRule(ReaderRule):
    """open_clip: a sample needs one of four image fields, and txt."""

    code = "PS502"

    def sample(self, key: str, fields: dict[str, TarEntry], offset: int) -> Iterator[Finding]:
        image = any(field in fields for field in ("jpg", "png", "jpeg", "webp"))
        missing = [] if image else ["no image (jpg, png, jpeg, webp)"]
        missing += [] if "txt" in fields else ["no text (txt)"]
        if missing:
            there = ", ".join(sorted(fields))
            yield self.found(f"skipped: {' and '.join(missing)} among {there}", key, offset)


class HubRule(ReaderRule):
    """Hugging Face datasets: the first five samples of the first shard decide the columns."""

    code = "PS503"
    examples_looked_at = 5

    def __init__(self) -> None:
        self.shard = ""
        self._examples: list[dict[str, Any]] = []
        self._places: list[tuple[str, int]] = []
        self._done = False
        self._first: str | None = None

    def begin(self, shard: str, start: bytes) -> Iterator[Finding]:
        if self._first is not None:
            self._done = True
            return
        self._first = self.shard = shard
        if _refused_by_tarfile(start):
            self._done = True
            yield self.found("fails: tarfile cannot unpack this compression")

    def wants(self, name: bytes) -> bool:
        return not self._done

    def member(self, item: TarEntry | Fault) -> Iterator[Finding]:
        if self._done:
            return
        if isinstance(item, Fault):
            if item.code in ("PS103", "PS105") or (item.code == "PS101" and item.name is not None):
                self._done = True
                yield self.found(f"fails here: {item.message}", None, item.offset)
            elif item.code == "PS107":
                self._done = True  # the Hub has no such limit, and what follows is not known
            elif item.code in _STOPS:
                yield from self.end()  # tarfile takes it for the end of the shard
            return
        name = text_of(item.name)
        hidden = os.path.basename(name).startswith((".", "__"))
        split = _SPLIT(name)
        if item.special is not None or hidden or split is None:
            return
        key, field = split[1], split[2]
        if not self._places or self._places[-1][0] != key:
            if len(self._examples) == self.examples_looked_at:
                yield from self.end()
                return
            self._examples.append({})
            self._places.append((key, item.offset))
        example = self._examples[-1]
        if field in example or field in ("__key__", "__url__"):
            self._done = True
            yield self.found("fails: duplicate field", key, item.offset, field)
            return
        try:
            example[field] = _as_the_hub_decodes(field, item.data)
        except Exception as error:  # noqa: BLE001 - any exception means that their decoder fails too
            self._done = True
            what = f"{type(error).__name__}: {error}"
            yield self.found(f"fails to decode: {what}", key, item.offset, field)

    def end(self) -> Iterator[Finding]:
        if self._done:
            return
        self._done = True
        if not self._examples:
            yield self.found("fails: the first shard has no samples")
            return
        first = self._examples[0]
        for example, (key, offset) in zip(self._examples, self._places):
            if example.keys() != first.keys():
                yield self.found(
                    f"one of the first five samples has the fields {', '.join(sorted(example))}, "
                    f"the first has {', '.join(sorted(first))}",
                    *(key, offset),
                )
                return
        yield from self._types()

    def _types(self) -> Iterator[Finding]:
        """Compare the columns' types as datasets does: by concatenating tables."""
        import pyarrow as pa

        tables = []
        for example, (key, offset) in zip(self._examples, self._places):
            try:
                tables.append(pa.Table.from_pylist([example]))
                pa.concat_tables(tables, promote_options="default")
            except (pa.ArrowException, *_NO_COLUMN) as error:
                reason = str(error).splitlines()[0]
                yield self.found(
                    f"one of the first five samples has other types: {reason}", key, offset
                )
                return


def _as_the_hub_decodes(field: str, data: bytes) -> Any:
    extension = field.rpartition(".")[2].lower()
    if extension in ("gz", "gzip"):
        data = gzip.decompress(data)
        extension = field.split(".")[-2].lower() if "." in field else ""
    return _HUB_DECODERS.get(extension, bytes)(data)


def _array(data: bytes) -> Any:
    import io

    import numpy as np

    return np.load(io.BytesIO(data), allow_pickle=False).tolist()


_HUB_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), lambda data: data.decode("utf-8")),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _array,
}

RULES: dict[str, type[ReaderRule]] = {
    "webdataset": WebdatasetRule,
    "open_clip": OpenClipRule,
    "hub": HubRule,
}
"""Name in ``--for`` → its rule."""


def rule_for(reader: str) -> ReaderRule:
    """Return a new rule for a reader of :data:`RULES`; another name is a PipelineError."""
    if reader not in RULES:
        known = ", ".join(RULES)
        raise PipelineError(
            f"there are rules for {known}, not for {reader!r}{suggest(reader, RULES)}"
        )
    return RULES[reader]()
