"""Shards as a map-style data set: any sample by its number or key."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np

from penstock.codecs import Decoder
from penstock.errors import Origin, SampleError
from penstock.shards.index import Index, SampleReader, open_index
from penstock.redact import shown_value
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import Patience

Transform = Callable[[Any], Any]


class IndexedDataset:
    """The samples of shards in any order: ``dataset[i]``, ``len(dataset)``, slices, lookup by key.

    ``index`` is what :func:`penstock.shards.index.open_index` takes; with True the index beside the shards
    is used, and made on first use where there is none. ``transformations`` are functions of
    the sample, or image specs ("pil", "rgb8") that decode it; one or a list. Without any, samples
    are raw bytes, just as reading the shards in order gives them.

    Remote shards are kept in ``cache_dir`` (or ``WDS_CACHE``), which takes ``cache_size`` bytes at
    most; torch's loader gets a whole batch of them at a time. ``patience`` (a
    :class:`~penstock.storage.client.retry_policy.Patience`) says for how long to put up with a server that
    fails.

    It goes to torch's ``DataLoader`` and its workers as it is. A slice is a data set over
    the same shards. A number out of range is an IndexError, as for a list; an unknown key is
    a :class:`~penstock.errors.SampleError`, and so on for shards (see
    :class:`penstock.shards.index.SampleReader`).

    >>> import os, tempfile, penstock
    >>> folder = tempfile.mkdtemp()
    >>> with penstock.ShardWriter(os.path.join(folder, "x-%03d.tar"), maxcount=2) as sink:
    ...     for i in range(5):
    ...         size = sink.write({"__key__": f"s{i}", "cls": i})
    >>> dataset = IndexedDataset(folder + "/").decode()
    >>> len(dataset), dataset[-1]["cls"], dataset.by_key("s3")["cls"]
    (5, 4, 3)
    >>> [sample["cls"] for sample in dataset[::2]]
    [0, 2, 4]
    """

    def __init__(
        self,
        urls: Any,
        index: Any = True,
        *,
        transformations: Any = None,
        local_paths: bool = False,
        cache_dir: Any = None,
        cache_size: float = -1,
        patience: Patience | None = None,
    ) -> None:
        self.urls, self.local_paths = urls, local_paths
        self.cache, self.patience = ShardCache.of(cache_dir, cache_size), patience
        self._given = index
        self._readers: list[SampleReader] = []  # one, once something is asked for
        self._rows: Any = None  # None: all; else a range or an array of row numbers
        self.transformations: tuple[Transform, ...] = _transforms(transformations)

    @property
    def reader(self) -> SampleReader:
        """Reads the raw samples; all views of the data set share it."""
        if not self._readers:
            index = open_index(self.urls, self._given)
            options: dict[str, Any] = {"cache": self.cache, "patience": self.patience}
            reader = SampleReader(index, local_paths=self.local_paths, **options)
            reader.prepare()  # loader workers are forked later, and share it
            self._readers.append(reader)
        return self._readers[0]

    @property
    def index(self) -> Index:
        """The index of the shards."""
        return self.reader.index

    def __len__(self) -> int:
        return len(self.index) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, number: int) -> Any: ...

    @overload
    def __getitem__(self, number: slice) -> IndexedDataset: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            rows = range(len(self.index)) if self._rows is None else self._rows
            return self._with(_rows=rows[number])
        return self._sample(self._row(number))

    def _row(self, number: int) -> int:
        count = len(self)
        place = number + count if number < 0 else number
        if not 0 <= place < count:
            raise IndexError(f"there is no sample {number}: the data set has {count}")
        return place if self._rows is None else int(self._rows[place])

    def _sample(self, row: int) -> Any:
        return self._made(row, self.reader.read(row))

    def _made(self, row: int, value: Any) -> Any:
        try:
            for transform in self.transformations:
                value = transform(value)
        except Exception as error:
            index = self.index
            shard = index.shards[index.shard.item(row)]
            error.add_note(f"({Origin(shard.url, index.keys[row], index.offset.item(row))})")
            raise
        return value

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Several samples: of remote shards they are asked for at once. torch's loader calls it."""
        rows = [self._row(int(number)) for number in numbers]
        if not self.reader.remote:
            return [self._sample(row) for row in rows]
        return [self._made(row, raw) for row, raw in zip(rows, self.reader.read_many(rows))]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    @property
    def keys(self) -> Sequence[str]:
        """The keys of all samples."""
        keys = self.index.keys
        return keys if self._rows is None else [keys[int(row)] for row in self._rows]

    def column(self, name: str) -> Any:
        """The values of a column of the index, one per sample: lengths or classes, for samplers."""
        values = self.index.column(name)
        return values if self._rows is None else values[np.asarray(self._rows, np.int64)]

    def by_key(self, key: str) -> Any:
        """The first sample of the shards with that key."""
        row = self.index.keys.find(key)
        if row is None or (self._rows is not None and row not in self._rows):
            raise SampleError(f"there is no sample with the key {key!r} in these shards")
        return self._sample(row)

    def subset(self, numbers: Any) -> Self:
        """The data set of the samples with these numbers, in that order."""
        numbers = np.asarray(numbers, np.int64)
        if len(numbers) and not (-len(self) <= numbers.min() and numbers.max() < len(self)):
            raise IndexError(f"a subset of {len(self)} samples cannot have others")
        rows = np.arange(len(self.index)) if self._rows is None else np.asarray(self._rows)
        return self._with(_rows=rows[numbers])

    def runs(self) -> list[tuple[int, int]]:
        """Which samples stand together in one shard: first number and the one behind the last."""
        if self._rows is None:
            bounds = self.index.starts.tolist()
        else:
            shards = self.index.shard[np.asarray(self._rows, np.int64)]
            inner = (np.flatnonzero(np.diff(shards)) + 1).tolist()
            bounds = [0, *inner, len(self)]
        return [(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]

    def map(self, f: Transform) -> Self:
        """The same data set with ``f`` applied to every sample, after what is applied already."""
        return self._with(transformations=(*self.transformations, f))

    def decode(self, *specs: Any, **options: Any) -> Self:
        """The same data set, decoded as :class:`penstock.Decoder` does with these arguments."""
        return self.map(Decoder(*specs, **options))

    def add_transform(self, f: Transform) -> Self:
        """Apply ``f`` to every sample from now on, in this very data set."""
        self.transformations = (*self.transformations, f)
        return self

    def close(self) -> None:
        """Close the open shards; the next sample opens its shard again."""
        for reader in self._readers:
            reader.close()

    def _with(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.update(changes)
        return other

    def __repr__(self) -> str:
        known = f"{len(self)} samples" if self._readers else "index not read yet"
        patience = "" if self.patience is None else f", patience={self.patience!r}"
        return f"IndexedDataset({shown_value(self.urls)!r}{patience}: {known})"


def _transforms(given: Any) -> tuple[Transform, ...]:
    if given is None:
        return ()
    items = given if isinstance(given, (list, tuple)) else [given]
    return tuple(item if callable(item) else Decoder(item) for item in items)
