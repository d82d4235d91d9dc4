"""Shards as a map-style data set: any sample by its number or key."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, overload

import numpy as np

from penstock.codecs import Decoder
from penstock.datasets.map_samples import MapPipeline
from penstock.datasets.memory_reader import MemoryReader
from penstock.datasets.shared_bytes import check_memory
from penstock.errors import Origin, SampleError
from penstock.redact import redact_value
from penstock.shards.index import Fold, Index, Join, SampleReader, Subset, open_index
from penstock.shards.index.join import as_joins, join_reader
from penstock.stages.sources.data_versions import DataVersion, version_of_index
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import RetryPolicy

Transform = Callable[[Any], Any]


class IndexedDataset(MapPipeline):
    """The samples of shards in any order: ``dataset[i]``, ``len(dataset)``, slices, lookup by key.

    ``index`` is what :func:`penstock.shards.index.open_index` takes; with True the index beside the
    shards is used, and made on first use if there is none. ``transformations`` are functions of the
    sample, or image specs ("pil", "rgb8") that decode it; one or a list. Without any, samples are
    raw bytes, the same as when shards are read in order.

    ``where``, ``keys``, ``fraction``, ``fold`` and ``exclude`` choose samples by the index alone,
    and ``join`` adds fields of other shards, as in :class:`~penstock.IndexedSamples`.

    Remote shards are kept in ``cache_dir`` (or ``WDS_CACHE``), which takes ``cache_size`` bytes at
    most; torch's loader gets a whole batch of them at a time. ``patience`` (a
    :class:`~penstock.storage.client.retry_policy.RetryPolicy`) sets retries and time-outs for
    failing servers.

    ``memory="ram"`` reads the shards once into memory that all processes of the machine share; what
    does not fit is a :class:`~penstock.errors.StorageError`. :meth:`pipeline` makes a pipeline of
    the samples.

    It can be passed to torch's ``DataLoader`` and its workers as it is. A slice is a data set over
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
        where: str | None = None,
        keys: Iterable[str] | str | os.PathLike[str] | None = None,
        fraction: float | None = None,
        fold: Fold | None = None,
        exclude: Iterable[str] | Callable[[str], bool] | None = None,
        join: Join | Sequence[Join] = (),
        local_paths: bool = False,
        cache_dir: Any = None,
        cache_size: float = -1,
        patience: RetryPolicy | None = None,
        memory: str | None = None,
    ) -> None:
        self.urls, self.local_paths, self.memory = urls, local_paths, check_memory(memory)
        self.cache, self.patience = ShardCache.of(cache_dir, cache_size), patience
        self._given = index
        self._shared: list[tuple[Any, Any]] = []  # what is opened on first use; views share it
        self._subset = Subset(where, keys, fraction, fold, exclude)
        self._join = as_joins(join)
        self._chosen: Any = None  # of a view: a range or an array of row numbers
        self.transformations: tuple[Transform, ...] = _transforms(transformations)

    @property
    def reader(self) -> Any:
        """Reads the raw samples; all views of the data set share it."""
        return self._opened()[0]

    def _opened(self) -> tuple[Any, Any]:
        """Return the reader, and the rows that the arguments choose (None: all)."""
        if not self._shared:
            index = open_index(self.urls, self._given)
            options: dict[str, Any] = {"cache": self.cache, "patience": self.patience}
            options["local_paths"] = self.local_paths
            kind: Any = SampleReader if self.memory is None else MemoryReader
            reader: Any = kind(index, **options)
            kept = self._subset.rows(index)
            if self._join:
                reader, kept = join_reader(reader, self._join, kept, options)
            reader.prepare()  # loader workers are forked later, and share it
            self._shared.append((reader, kept))
        return self._shared[0]

    @property
    def index(self) -> Index:
        """The index of the shards."""
        index: Index = self.reader.index
        return index

    @property
    def _rows(self) -> Any:
        """The rows of the index that are samples of this data set; None means all."""
        return self._opened()[1] if self._chosen is None else self._chosen

    def __len__(self) -> int:
        return len(self.index) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, number: int) -> Any: ...

    @overload
    def __getitem__(self, number: slice) -> IndexedDataset: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            rows = range(len(self.index)) if self._rows is None else self._rows
            return self._with(_chosen=rows[number])
        return self._sample(self._row(number))

    def _row(self, number: int) -> int:
        rows = self._rows
        count = len(self.index) if rows is None else len(rows)
        index = number + count if number < 0 else number
        if not 0 <= index < count:
            raise IndexError(f"there is no sample {number}: the data set has {count}")
        return index if rows is None else int(rows[index])

    def _sample(self, row: int) -> Any:
        raw = self.reader.read(row)
        return self._made(row, raw) if self.transformations else raw

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
        """Return several samples, those of remote shards in one request. torch's loader calls
        it."""
        rows = [self._row(int(number)) for number in numbers]
        if not self.reader.remote:
            return [self._sample(row) for row in rows]
        return [self._made(row, raw) for row, raw in zip(rows, self.reader.read_many(rows))]

    def sample(self, number: int) -> Any:
        """Read the raw sample of that number, without transformations."""
        return self.reader.read(self._row(number))

    def origin(self, number: int) -> Origin:
        """Return where the sample of that number is stored, for messages."""
        index, row = self.index, self._row(number)
        shard = index.shards[index.shard.item(row)]
        return Origin(shard.url, index.keys[row], index.offset.item(row))

    @property
    def fingerprint(self) -> str:
        """A text that differs when the samples or their order do."""
        if self._rows is None:
            return self.index.fingerprint
        rows = np.asarray(self._rows, np.int64).tobytes()
        chosen = hashlib.blake2b(rows, digest_size=8).hexdigest()
        return f"{self.index.fingerprint}-{chosen}"

    @property
    def data_versions(self) -> dict[str, DataVersion]:
        """The versions of the shards, and of the other sets of a join, as they were indexed."""
        sides = getattr(self.reader, "sides", ())
        indexes = [self.index, *(side.reader.index for side in sides)]
        return {str(number): version_of_index(index) for number, index in enumerate(indexes)}

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    @property
    def keys(self) -> Sequence[str]:
        """The keys of all samples."""
        keys = self.index.keys
        return keys if self._rows is None else [keys[int(row)] for row in self._rows]

    def column(self, name: str) -> Any:
        """Return the values of a column of the index, one per sample: lengths or classes, for
        samplers."""
        values = self.index.column(name)
        return values if self._rows is None else values[np.asarray(self._rows, np.int64)]

    def by_key(self, key: str) -> Any:
        """Return the first sample of the shards with that key."""
        row = self.index.keys.find(key)
        if row is None or (self._rows is not None and row not in self._rows):
            raise SampleError(f"there is no sample with the key {key!r} in these shards")
        return self._sample(row)

    def subset(self, numbers: Any) -> Self:
        """Return the data set of the samples with these numbers, in that order."""
        numbers = np.asarray(numbers, np.int64)
        if len(numbers) and not (-len(self) <= numbers.min() and numbers.max() < len(self)):
            raise IndexError(f"a subset of {len(self)} samples cannot have others")
        rows = np.arange(len(self.index)) if self._rows is None else np.asarray(self._rows)
        return self._with(_chosen=rows[numbers])

    def runs(self) -> list[tuple[int, int]]:
        """Return the runs of samples in the same shard: first number, and the one after the
        last."""
        if self._rows is None:
            bounds = self.index.starts.tolist()
        else:
            shards = self.index.shard[np.asarray(self._rows, np.int64)]
            inner = (np.flatnonzero(np.diff(shards)) + 1).tolist()
            bounds = [0, *inner, len(self)]
        return [(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]

    def map(self, f: Transform) -> Self:
        """Return the data set with ``f`` applied to every sample, after the existing transforms."""
        return self._with(transformations=(*self.transformations, f))

    def decode(self, *specs: Any, **options: Any) -> Self:
        """Return the data set, decoded as :class:`penstock.Decoder` does with these arguments."""
        return self.map(Decoder(*specs, **options))

    def add_transform(self, f: Transform) -> Self:
        """Apply ``f`` to every sample from now on. Changes this data set."""
        self.transformations = (*self.transformations, f)
        return self

    def close(self) -> None:
        """Close the open shards; the next sample opens its shard again."""
        for reader, _ in self._shared:
            reader.close()

    def _with(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.update(changes)
        return other

    def __repr__(self) -> str:
        known = f"{len(self)} samples" if self._shared else "index not read yet"
        patience = "" if self.patience is None else f", patience={self.patience!r}"
        return f"IndexedDataset({redact_value(self.urls)!r}{patience}: {known})"


def _transforms(given: Any) -> tuple[Transform, ...]:
    if given is None:
        return ()
    items = given if isinstance(given, (list, tuple)) else [given]
    return tuple(item if callable(item) else Decoder(item) for item in items)
