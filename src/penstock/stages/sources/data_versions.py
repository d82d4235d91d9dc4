"""Which version of its data a state was saved with, for data of which every part is known before.

The fingerprint of a source says which data it is: names, sizes, keys. It is the same for a copy. A
version changes with the content: a state holds that of every source, as digests of up to 64 groups
of files or items, so that the error can name what has changed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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


_SEQUENCES = (list, tuple, range, deque, str)
UNKNOWN = "----"
"""The digest of a group of which a part has no version."""


class DataVersion:
    """The version of a source's data: names, contents and modification times of its parts.

    ``contents`` are texts of each part, by their kind: an index has one checksum of a local shard,
    and another of a remote one. Those kinds are compared that both versions have. In another place
    there is a copy, whose modification times differ: ``times`` are compared only in the same one.

    >>> saved = DataVersion(["a", "b"], {"size": ["5", "9"]}).plain()
    >>> DataVersion(["a", "b"], {"size": ["5", "8"]}).check(saved)
    Traceback (most recent call last):
    penstock.errors.StateError: b has changed since the state was saved: begin a new run, or ...
    """

    def __init__(
        self,
        names: Sequence[str],
        contents: Mapping[str, Sequence[str]],
        times: Sequence[str] = (),
        place: str = "",
    ) -> None:
        self.names = names
        self._plain: dict[str, Any] = {"count": len(names)}
        self._plain |= {kind: _digests(texts) for kind, texts in contents.items() if any(texts)}
        if any(times):
            name = place.encode("utf-8", "surrogateescape")
            self._plain["times"] = _digests(times)
            self._plain["place"] = hashlib.blake2b(name, digest_size=3).hexdigest()

    def plain(self) -> dict[str, Any]:
        """Return it as plain values for a state."""
        return dict(self._plain)

    def check(self, saved: Any) -> None:
        """Raise StateError, naming what has changed, unless this is the version of a state."""
        if (begin := self.find_change(saved)) is None:
            return
        begin, end = _bounds(len(self.names), begin)
        what = redact(self.names[begin])
        if end - begin > 1:
            what = f"one of {what} … {redact(self.names[end - 1])}"
        raise StateError(
            f"{what} has changed since the state was saved: begin a new run, or accept the "
            "changed data: load_state_dict(state, changed='accept')"
        )

    def find_change(self, saved: Any) -> int | None:
        """Return the first group of parts that differs from the version of a state, or None."""
        now = self._plain
        if saved["count"] != now["count"]:
            raise StateError("the state is of other data, which has another number of parts")
        skipped = {"count", "place"}
        if saved.get("place") != now.get("place"):
            skipped.add("times")
        for kind in saved.keys() & now.keys() - skipped:
            for at in range(0, len(now[kind]), len(UNKNOWN)):
                was, is_now = (one[kind][at : at + len(UNKNOWN)] for one in (saved, now))
                if was != is_now and UNKNOWN not in (was, is_now):
                    return at // len(UNKNOWN)
        return None


def _bounds(count: int, group: int) -> tuple[int, int]:
    groups = min(count, GROUPS)
    return group * count // groups, (group + 1) * count // groups


def _digests(texts: Sequence[str]) -> str:
    """Return four characters for each group of texts."""
    found = ""
    for group in range(min(len(texts), GROUPS)):
        begin, end = _bounds(len(texts), group)
        data = "\0".join(texts[begin:end]).encode("utf-8", "surrogatepass")
        digest = base64.b64encode(hashlib.blake2b(data, digest_size=3).digest()).decode()
        found += digest if all(texts[begin:end]) else UNKNOWN
    return found


def versions_of(dataset: Any) -> dict[str, DataVersion]:
    """Return the versions of a dataset that knows them, or of a list, range, array or tensor, also
    of those in torch's containers of data sets; empty for all others."""
    if isinstance(dataset, (*_SEQUENCES, np.ndarray)) or _is_tensor(dataset):
        return {"0": version_of_items(dataset)}
    own: dict[str, DataVersion] = getattr(dataset, "data_versions", {})
    found = dict(own)
    for number, part in enumerate(_parts_of_container(dataset)):
        found |= {f"{number}.{name}": version for name, version in versions_of(part).items()}
    return found


def _parts_of_container(dataset: Any) -> Iterable[Any]:
    data: Any = sys.modules.get("torch.utils.data")
    if data is None:
        return []
    if isinstance(dataset, data.ConcatDataset):
        return list(dataset.datasets)
    if isinstance(dataset, data.Subset):
        return [dataset.dataset, dataset.indices]
    return list(dataset.tensors) if isinstance(dataset, data.TensorDataset) else []


def combined(sources: Mapping[str, Mapping[str, DataVersion]]) -> DataVersion:
    """Return the version of several sources, each of which is one part of it."""
    plain = {
        name: {number: one.plain() for number, one in versions.items()}
        for name, versions in sources.items()
    }
    kinds = {(number, kind) for one in plain.values() for number in one for kind in one[number]}

    def text(name: str, number: str, kind: str) -> str:
        digests: str = plain[name].get(number, {}).get(kind, "")
        return "" if UNKNOWN in digests else digests

    contents = {
        f"{number}.{kind}": [text(name, number, kind) for name in plain]
        for number, kind in sorted(kinds)
        if kind not in ("count", "times", "place")
    }
    times, places = (
        [" ".join(version.get(kind, "") for version in one.values()) for one in plain.values()]
        for kind in ("times", "place")
    )
    return DataVersion(list(plain), contents, list(map(str.strip, times)), " ".join(places))


def version_of_index(index: Index) -> DataVersion:
    """Return the version of indexed shards, as it was when they were indexed.

    A shard has the checksum of its content, or of both ends; without one, there are only its
    modification time and its ETag. The fingerprint of the index contains the sizes.
    """
    shards = index.shards
    contents = {
        "ends": [shard.ends or "" for shard in shards],
        "checksum": [shard.checksum or "" for shard in shards],
    }
    times = [
        "" if shard.ends or shard.checksum else str(shard.etag or shard.mtime_ns or "")
        for shard in shards
    ]
    place = os.path.dirname(shards[0].url) if shards else ""
    return DataVersion([shard.url for shard in shards], contents, times, place)


def version_of_files(paths: Sequence[str], place: str) -> DataVersion:
    """Return the version of files: their sizes and modification times."""
    names = _spaced(paths, MOST_FILES)
    sizes, times = [], []
    for path in names:
        try:
            status = os.stat(path)
        except OSError:  # reading it raises the error
            sizes.append("")
            times.append("")
        else:
            sizes.append(str(status.st_size))
            times.append(str(status.st_mtime_ns))
    return DataVersion(names, {"size": sizes}, times, os.path.abspath(place))


def version_of_rows(count: int, read: Callable[[int], tuple[Any, Any]]) -> DataVersion:
    """Return the version of the rows of a table, of which plain values are compared.

    ``read`` returns the id and the values of a row.
    """
    rows = [read(number) for number in _spaced(range(count), MOST_ITEMS)]
    return DataVersion([f"row {uid}" for uid, _ in rows], {"row": [_text_of(r) for _, r in rows]})


def version_of_items(items: Sequence[Any]) -> DataVersion:
    """Return the version of the items of a list, of which plain values are compared."""
    numbers = _spaced(range(len(items)), MOST_ITEMS)
    # Subclasses may load items in their own method.
    kind: Any = next((one for one in _SEQUENCES if isinstance(items, one)), type(items))
    texts = [_text_of(kind.__getitem__(items, number)) for number in numbers]
    return DataVersion([f"item {number}" for number in numbers], {"item": texts})


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
    if depth < 4 and isinstance(value, (list, tuple)):
        parts = tuple(value)[:ITEM_PARTS]
    elif depth < 4 and type(value) is np.ndarray and value.dtype.hasobject and value.ndim:
        parts = value.flat[:ITEM_PARTS]
    elif depth < 4 and isinstance(value, dict):
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
