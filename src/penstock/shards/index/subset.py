"""Subsets of an index, decided before anything is read: ``where= keys= fraction= fold= exclude=``.

``fraction`` and ``fold`` decide by a keyed hash of the sample's key, or of a column. So a sample
stays in its part when shards are added, and all samples of a speaker can be kept together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import Origin, PipelineError, StorageError
from penstock.rng import stable_hash
from penstock.shards.index.index import Index
from penstock.shards.index.packed_strings import Texts
from penstock.shards.index.parquet_schema import arrow
from penstock.shards.index.where import Where
from penstock.storage import open_url

Rows = np.ndarray[Any, np.dtype[np.int64]]
Array = np.ndarray[Any, np.dtype[Any]]

SUBSET = ("where", "keys", "fraction", "fold", "exclude")
"""The arguments that choose samples."""


@dataclasses.dataclass(frozen=True)
class Fold:
    """Some of ``of`` equal parts of a data set, chosen by a hash of each sample's key.

    ``use`` is the number of a part, or several, counted from 0. With ``by``, the name of a column
    of the index, all samples with the same value are in the same part; a sample without a value is
    placed by its key. Another ``salt`` divides the samples in another way. A sample stays in its
    part when shards are added.

    >>> train, val = Fold(10, use=range(9)), Fold(10, use=9)
    >>> train.use, val.use
    ((0, 1, 2, 3, 4, 5, 6, 7, 8), (9,))
    """

    of: int
    use: Any
    by: str = "key"
    salt: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.of, bool) or not isinstance(self.of, int) or self.of < 1:
            raise PipelineError(f"Fold: of is the number of parts, at least 1, not {self.of!r}")
        use = (self.use,) if isinstance(self.use, int) else tuple(self.use)
        if not use or any(
            isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < self.of
            for part in use
        ):
            raise PipelineError(
                f"Fold: use is one or several of the parts 0 to {self.of - 1}, not {self.use!r}"
            )
        if not isinstance(self.by, str) or not isinstance(self.salt, str):
            raise PipelineError("Fold: by is the name of a column and salt a text")
        object.__setattr__(self, "use", tuple(sorted(set(use))))

    def rows(self, index: Index) -> Array:
        """Return whether each row of the index is in the chosen parts."""
        hashes = hash_rows(index, self.by, stable_hash("fold", self.salt))
        return np.isin(hashes % np.uint64(self.of), np.array(self.use, np.uint64))


@dataclasses.dataclass(frozen=True)
class Subset:
    """Which samples of an index take part; :meth:`rows` says it for one index.

    The arguments are those of :class:`~penstock.WebDataset`. What cannot work is refused at once.

    >>> Subset(fraction=0.1)
    Subset(fraction=0.1)
    """

    where: str | None = None
    keys: Iterable[str] | str | os.PathLike[str] | None = None
    fraction: float | None = None
    fold: Fold | None = None
    exclude: Iterable[str] | Callable[[str], bool] | None = None
    positions: Mapping[str, str] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    """Where in a spec the arguments are, for messages: file, line and column."""

    def __post_init__(self) -> None:
        if self.where is not None:
            Where(self.where)
        if self.fraction is not None and (
            isinstance(self.fraction, bool)
            or not isinstance(self.fraction, (int, float))
            or not 0 < self.fraction <= 1
        ):
            raise PipelineError(
                f"fraction is a share of the samples, above 0 and at most 1, not {self.fraction!r}"
            )
        if self.fold is not None and not isinstance(self.fold, Fold):
            raise PipelineError(f"fold is a Fold(of, use), not {self.fold!r}")
        if isinstance(self.exclude, (str, bytes)):
            raise PipelineError(
                f"exclude is a collection of keys or a function of the key, not {self.exclude!r}: "
                f"say exclude=[{self.exclude!r}]"
            )
        if self.exclude is not None and not callable(self.exclude):
            object.__setattr__(self, "exclude", frozenset(self.exclude))
        if self.keys is not None and not isinstance(self.keys, (str, os.PathLike)):
            keys = frozenset(self.keys)
            if not all(isinstance(key, str) for key in keys):
                raise PipelineError(
                    "keys is a list of texts, a pattern such as 'train/*', or a file"
                )
            object.__setattr__(self, "keys", keys)

    @functools.cached_property
    def everything(self) -> bool:
        """True if all samples take part."""
        return all(getattr(self, name) is None for name in SUBSET)

    def rows(self, index: Index) -> Rows | None:
        """Return the rows that take part, in order; None means all of them."""
        if self.everything:
            return None
        kept = np.ones(len(index), bool)
        if self.where is not None:
            kept = np.zeros(len(index), bool)
            with self.located("where"):
                kept[Where(self.where).rows(index)] = True
        if self.keys is not None:
            with self.located("keys"):
                kept &= self._wanted(index)
        if self.fraction is not None and self.fraction < 1:
            limit = np.uint64(int(self.fraction * 2**64))
            kept &= hash_rows(index, "key", stable_hash("fraction")) < limit
        if self.fold is not None:
            with self.located("fold"):
                kept &= self.fold.rows(index)
        if self.exclude is not None:
            kept &= ~self._excluded(index)
        return np.flatnonzero(kept)

    @contextlib.contextmanager
    def located(self, argument: str) -> Iterator[None]:
        """Add the position of an argument in its spec to errors."""
        try:
            yield
        except (PipelineError, StorageError) as error:
            if argument not in self.positions:
                raise
            raise PipelineError(f"{self.positions[argument]}: {error}") from error

    def _wanted(self, index: Index) -> Array:
        if isinstance(self.keys, str) and re.search(r"[*?]", self.keys):
            import pyarrow.compute as pc

            parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in self.keys)
            pattern = f"(?s)^{''.join(parts)}$"
            found = _flags(pc.match_substring_regex(index.arrow_column("key"), pattern))
            if not found.any():
                _warn_of_unmatched(self.keys)
            return found
        if isinstance(self.keys, (str, os.PathLike)):
            keys: Collection[str] = read_keys(self.keys)
        else:
            keys = frozenset(self.keys or ())
        return self._listed(index, keys, "keys")

    def _excluded(self, index: Index) -> Array:
        if callable(self.exclude):
            out = self.exclude
            return np.fromiter((bool(out(key)) for key in index.keys), bool, len(index))
        return self._listed(index, frozenset(self.exclude or ()), "exclude")

    def _listed(self, index: Index, keys: Collection[str], argument: str) -> Array:
        """Return whether each row's key is one of these; warn of keys that no row has."""
        found = np.fromiter((key in keys for key in index.keys), bool, len(index))
        known = {index.keys[row] for row in np.flatnonzero(found).tolist()}
        _warn_of_unknown(frozenset(keys) - known, argument)
        return found

    def __repr__(self) -> str:
        given = ((name, getattr(self, name)) for name in SUBSET)
        return f"Subset({', '.join(f'{name}={v!r}' for name, v in given if v is not None)})"


def read_keys(path: str | os.PathLike[str]) -> frozenset[str]:
    """Return the keys in a file, local or remote, one on each line; empty lines are left out."""
    with open_url(path, buffer_bytes=-1) as stream:
        data = stream.read()
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise PipelineError(
            "a file of keys is UTF-8 text with one key on each line", origin=Origin(str(path))
        ) from None
    return frozenset(line for line in lines if line)


def _warn_of_unknown(keys: frozenset[str], argument: str) -> None:
    if not keys:
        return
    first = ", ".join(sorted(map(repr, keys))[:5]) + (", ..." if len(keys) > 5 else "")
    warnings.warn(
        f"the index does not have {len(keys)} of the keys in {argument}: {first}; a key is the "
        "member's name without its field, such as 'train/0001'",
        stacklevel=2,
    )


def _warn_of_unmatched(pattern: str) -> None:
    plain = "; [ is a plain character here: only * and ? are wildcards" if "[" in pattern else ""
    warnings.warn(
        f"the index has no key that matches keys={pattern!r}{plain}; a key is the member's name "
        "without its field, such as 'train/0001'",
        stacklevel=2,
    )


# ── hashes ──────────────────────────────────────────────────────────────────────────────


def hash_rows(index: Index, by: str, seed: int) -> Array:
    """Return 64 bits for each row that depend only on its key, or on its value of a column."""
    if by == "key":
        return hash_texts(index.keys, seed)
    if by not in index.columns:
        raise PipelineError(
            f"the index has no column {by!r} (it has: {', '.join(index.columns) or 'none'}): add "
            f"it with 'penstock index --column {by}=FIELD:MEASURE'"
        )
    pa = arrow()
    values = index.arrow_column(by).combine_chunks()
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    texts = values.dictionary.cast(pa.string()).to_pylist()
    hashes = hash_texts(Texts.packed(texts), stable_hash(seed, "value"))
    missing = np.asarray(values.is_null())
    codes = values.indices.fill_null(0).to_numpy(zero_copy_only=False)
    found: Array = hashes[codes] if len(hashes) else np.zeros(len(index), np.uint64)
    if missing.any():
        found = np.where(missing, hash_texts(index.keys, seed), found)
    return found


def hash_texts(texts: Texts, seed: int) -> Array:
    """Return 64 bits for each text, the same on every machine; another seed returns others.

    >>> a, b = hash_texts(Texts.packed(["x", "y"]), 1), hash_texts(Texts.packed(["y"]), 1)
    >>> bool(a[1] == b[0]), bool(a[0] == b[0])
    (True, False)
    """
    starts, data = texts.flat()
    begin = starts[:-1].astype(np.int64)
    lengths = np.diff(starts.astype(np.int64))
    padded = np.frombuffer(bytes(data) + bytes(8), np.uint8)
    # Eight bytes from any byte on: unaligned, which numpy's indexing copes with.
    words = np.lib.stride_tricks.as_strided(
        padded[:8].view("<u8"), shape=(len(padded) - 7,), strides=(1,), writeable=False
    )
    hashes = _mix(lengths.astype(np.uint64) + np.uint64(seed & (2**64 - 1)))
    for offset in range(0, int(lengths.max(initial=0)), 8):
        rows = np.flatnonzero(lengths > offset)
        rest = lengths[rows] - offset
        word = words[begin[rows] + offset]
        short = np.minimum(rest, 8).astype(np.uint64) * np.uint64(8)
        mask = np.where(rest >= 8, ~np.uint64(0), (np.uint64(1) << (short % 64)) - np.uint64(1))
        hashes[rows] = _mix(hashes[rows] ^ (word & mask))
    return hashes


def _mix(z: Array) -> Array:
    """Apply the finaliser of SplitMix64."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = z ^ (z >> np.uint64(31))
    return mixed


def _flags(column: Any) -> Array:
    chunks: Sequence[Any] = column.chunks
    parts = [np.asarray(chunk.fill_null(False)) for chunk in chunks]
    return np.concatenate([np.zeros(0, bool), *parts]).astype(bool)
