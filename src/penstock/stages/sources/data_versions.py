"""Which version of its data a state was saved with, for data of which every part is known before.

The fingerprint of a source says which data it is: names, sizes, keys. It is the same for a copy. A
version changes with the content: a state holds that of every source, as digests of up to 64 groups
of files or items, so that the error can name what has changed.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.errors import StateError
from penstock.redact import redact
from penstock.shards.index import Index

GROUPS = 64
MOST_ITEMS, MOST_FILES = 10_000, 100_000
"""Items of a list, and files of a folder, that are compared; of more, evenly spaced ones."""
ITEM_PARTS, TEXT_LENGTH = 16, 256
"""Of an item, so many parts and so much of a text or array are compared."""


@dataclasses.dataclass
class DataVersion:
    """The version of a source's data: names, contents and modification times of its parts.

    In another place there is a copy, whose modification times differ: only contents are compared.

    >>> saved = DataVersion(["a", "b"], ["5 bytes", "9 bytes"]).plain()
    >>> DataVersion(["a", "b"], ["5 bytes", "8 bytes"]).check(saved)
    Traceback (most recent call last):
    penstock.errors.StateError: b has changed since the state was saved: begin a new run, or ...
    """

    names: Sequence[str]
    contents: dataclasses.InitVar[Sequence[str]]
    times: dataclasses.InitVar[Sequence[str]] = ()
    place: dataclasses.InitVar[str] = ""

    def __post_init__(self, contents: Sequence[str], times: Sequence[str], place: str) -> None:
        self._plain: dict[str, Any] = {"count": len(self.names), "content": _digests(contents)}
        if any(times):
            name = place.encode("utf-8", "surrogateescape")
            self._plain["times"] = _digests(times)
            self._plain["place"] = hashlib.blake2b(name, digest_size=3).hexdigest()

    def plain(self) -> dict[str, Any]:
        """Return it as plain values for a state."""
        return dict(self._plain)

    def check(self, saved: Any) -> None:
        """Raise StateError, naming what has changed, unless this is the version of a state."""
        now = self._plain
        kinds = ["content"]
        if saved.get("place") == now.get("place"):
            kinds.append("times")
        for kind in kinds:
            was, is_now = saved.get(kind), now.get(kind)
            if was == is_now or was is None or is_now is None:
                continue
            sizes = [(one["count"], len(text)) for one, text in ((saved, was), (now, is_now))]
            if sizes[0] != sizes[1]:
                raise StateError("the state is of other data, which has another number of parts")
            groups = range(0, len(was), 4)
            changed = next(n // 4 for n in groups if was[n : n + 4] != is_now[n : n + 4])
            begin, end = _bounds(len(self.names), changed)
            what = redact(self.names[begin])
            if end - begin > 1:
                what = f"one of {what} … {redact(self.names[end - 1])}"
            raise StateError(
                f"{what} has changed since the state was saved: begin a new run, or accept the "
                "changed data: load_state_dict(state, changed='accept')"
            )


def _bounds(count: int, group: int) -> tuple[int, int]:
    groups = min(count, GROUPS)
    return group * count // groups, (group + 1) * count // groups


def _digests(texts: Sequence[str]) -> str:
    """Return four characters for each group of texts."""
    found = b""
    for group in range(min(len(texts), GROUPS)):
        begin, end = _bounds(len(texts), group)
        data = "\0".join(texts[begin:end]).encode("utf-8", "surrogatepass")
        found += hashlib.blake2b(data, digest_size=3).digest()
    return base64.b64encode(found).decode()


def versions_of(dataset: Any) -> dict[str, DataVersion]:
    """Return the versions of a dataset that knows them, or of a list, range, array or tensor; empty
    for all others."""
    if type(dataset) in (list, tuple, range, np.ndarray) or _is_tensor(dataset):
        return {"0": version_of_items(dataset)}
    versions: dict[str, DataVersion] = getattr(dataset, "data_versions", {})
    return versions


def version_of_index(index: Index) -> DataVersion:
    """Return the version of indexed shards, as it was when they were indexed.

    The checksum of both ends of a shard, or its ETag, is that of its content; without one there is
    only its modification time.
    """
    names, contents, times = [], [], []
    for shard in index.shards:
        content = shard.ends or shard.etag or shard.checksum
        names.append(shard.url)
        contents.append(f"{shard.size_bytes} {content}")
        times.append("" if content or shard.mtime_ns is None else str(shard.mtime_ns))
    place = os.path.dirname(index.shards[0].url) if index.shards else ""
    return DataVersion(names, contents, times, place)


def version_of_files(paths: Sequence[str], place: str) -> DataVersion:
    """Return the version of files: their sizes and modification times."""
    names = _spaced(paths, MOST_FILES)
    contents, times = [], []
    for path in names:
        try:
            status = os.stat(path)
        except OSError:  # reading it raises the error
            contents.append("")
            times.append("")
        else:
            contents.append(str(status.st_size))
            times.append(str(status.st_mtime_ns))
    return DataVersion(names, contents, times, os.path.abspath(place))


def version_of_items(items: Sequence[Any]) -> DataVersion:
    """Return the version of the items of a list, of which plain values are compared."""
    numbers = _spaced(range(len(items)), MOST_ITEMS)
    contents = [_text_of(items[number]) for number in numbers]
    return DataVersion([f"item {number}" for number in numbers], contents)


def _spaced(values: Sequence[Any], most: int) -> Sequence[Any]:
    return values if len(values) <= most else values[:: -(-len(values) // most)]


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _text_of(value: Any, depth: int = 0) -> str:
    """Return a text that differs for different plain values, arrays and tensors; of others, the
    name of the type."""
    kind = type(value).__name__
    if type(value) is int:
        return f"{value:x}"
    if value is None or type(value) in (bool, float):
        return repr(value)
    if isinstance(value, (str, bytes)):
        return f"{kind} {len(value)} {value[:TEXT_LENGTH]!r} {value[-TEXT_LENGTH:]!r}"
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    parts: Iterable[Any] = ()
    if depth < 4 and type(value) in (list, tuple):
        parts = value[:ITEM_PARTS]
    elif depth < 4 and type(value) is np.ndarray and value.dtype.hasobject and value.ndim:
        parts = value.flat[:ITEM_PARTS]
    elif depth < 4 and type(value) is dict:
        parts = [part for pair in list(value.items())[:ITEM_PARTS] for part in pair]
    elif isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        flat = np.asarray(value).flat
        ends = flat[:TEXT_LENGTH].tobytes() + flat[-TEXT_LENGTH:].tobytes()
        return f"{value.dtype} {value.shape} {hashlib.blake2b(ends, digest_size=8).hexdigest()}"
    elif _is_tensor(value) and value.layout is sys.modules["torch"].strided:
        return f"{value.dtype} {tuple(value.shape)} {value.flatten()[:TEXT_LENGTH].tolist()}"
    else:
        return kind
    return f"{kind} {len(value)} ({', '.join(_text_of(part, depth + 1) for part in parts)})"
