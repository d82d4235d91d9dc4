"""Every stage as a method. Made by tools/make_fluent.py from the stages; do not edit.

``dataset.shuffle(1000)`` is ``dataset.compose(shuffle(1000))``: same arguments, same meaning.
"""

# ruff: noqa: E501

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

from penstock.batches.bucketing.bucketed import (
    dynamic_bucketed_batch as dynamic_bucketed_batch_stage,
)
from penstock.batches.collate import Collation, default_collation_fn
from penstock.batches.batched import batched as batched_stage
from penstock.batches.batched import listed as listed_stage
from penstock.batches.batched import unbatched as unbatched_stage
from penstock.batches.batched import unlisted as unlisted_stage
from penstock.batches.packing.packed import packed as packed_stage
from penstock.batches.padding.padded_batch import PaddedBatch
from penstock.batches.bucketing.pivot_window import indices_around_random_pivot
from penstock.batches.planning.planned_samples import planned as planned_stage
from penstock.handlers import Handler, reraise_exception
from penstock.stages.associate import associate as associate_stage
from penstock.stages.sample_cache import Cached as cached_stage
from penstock.stages.sample_cache import DBCache as dbcache_stage
from penstock.stages.sample_cache import LMDBCached as lmdbcached_stage
from penstock.stages.decode import decode as decode_stage
from penstock.stages.decode import default_decoders
from penstock.stages.decode import xdecode as xdecode_stage
from penstock.stages.to_tuple import extract_keys as extract_keys_stage
from penstock.stages.to_tuple import to_tuple as to_tuple_stage
from penstock.stages.inspect import info as info_stage
from penstock.stages.inspect import log_keys as log_keys_stage
from penstock.stages.map import map as map_stage
from penstock.stages.map import map_dict as map_dict_stage
from penstock.stages.map import map_tuple as map_tuple_stage
from penstock.stages.rename import rename as rename_stage
from penstock.stages.rename import rename_keys as rename_keys_stage
from penstock.stages.select import rsample as rsample_stage
from penstock.stages.select import select as select_stage
from penstock.stages.select import slice as slice_stage
from penstock.stages.shuffle import detshuffle as detshuffle_stage
from penstock.stages.shuffle import shuffle as shuffle_stage

if TYPE_CHECKING:
    from penstock.pipeline.data_pipeline import DataPipeline

T = TypeVar("T")
Out = TypeVar("Out")
Sample = dict[str, Any]


class Fluent(Generic[T]):
    """The methods of a pipeline that append a stage and give a new pipeline."""

    def compose(self, *stages: Any) -> DataPipeline[Any]:
        raise NotImplementedError

    def map(
        self,
        f: Callable[..., Out | None],
        handler: Handler = reraise_exception,
        *,
        rng: bool | str = False,
    ) -> DataPipeline[Out]:
        """Applies ``f`` to each sample. A result of None drops the sample.

        Where sample and result are dicts, the result keeps the sample's ``__key__``.
        With ``rng=True``, ``f(sample, rng)`` gets a ``numpy.random.Generator`` that depends only on the
        seed, the epoch and the sample's place in the order: the same sample is changed the same
        way on any hardware, and again after a resume. With ``rng="global"`` the generators of
        ``random``, numpy and torch are seeded so while ``f`` runs, and put back after it: for
        transforms that use those.

        A function that says ``takes_rng = True``, as the random ones of :mod:`penstock.transforms` do,
        is given such numbers without being asked for: ``f(sample, draws)``, where ``draws.random()``
        is a number from 0 to 1 and ``draws.below(n)`` one below n. They cost less than numpy's.

        >>> list(map(lambda x: x * 2)([1, 2]))
        [2, 4]
        >>> noisy = map(lambda x, rng: x + rng.integers(100), rng=True)
        >>> list(noisy([1, 2])) == list(noisy([1, 2]))
        True
        """
        return self.compose(map_stage(f, handler, rng=rng))

    def map_dict(
        self, handler: Handler = reraise_exception, **functions: Callable[..., Any]
    ) -> DataPipeline[dict[str, Any]]:
        """Applies a function to each named field: ``map_dict(jpg=augment, cls=int)``.

        Functions that say ``takes_rng = True`` are given random numbers, as :class:`map` says.

        >>> list(map_dict(cls=str)([{"__key__": "a", "cls": 3}]))
        [{'__key__': 'a', 'cls': '3'}]
        """
        return self.compose(map_dict_stage(handler, **functions))

    def map_tuple(
        self, *functions: Callable[..., Any] | None, handler: Handler = reraise_exception
    ) -> DataPipeline[tuple[Any, ...]]:
        """Applies a function to each place of a tuple; None leaves the place as it is.

        Functions that say ``takes_rng = True`` are given random numbers, as :class:`map` says.

        >>> list(map_tuple(str, None)([(1, 2)]))
        [('1', 2)]
        """
        return self.compose(map_tuple_stage(*functions, handler=handler))

    def select(
        self, predicate: Callable[[T], Any], handler: Handler = reraise_exception
    ) -> DataPipeline[T]:
        """Keeps the samples for which ``predicate`` is true.

        >>> list(select(lambda x: x > 1)([1, 2, 3]))
        [2, 3]
        """
        return self.compose(select_stage(predicate, handler))

    def rsample(self, p: float = 0.5) -> DataPipeline[T]:
        """Keeps each sample with probability ``p``, by a generator of the epoch's own.

        >>> list(rsample(1.0)([1, 2])), list(rsample(0.0)([1, 2]))
        ([1, 2], [])
        """
        return self.compose(rsample_stage(p))

    def slice(self, *args: int | None) -> DataPipeline[T]:
        """Items ``start`` to ``stop`` by ``step``, as ``itertools.islice`` takes them.

        >>> list(slice(1, 4, 2)(iter("abcdef")))
        ['b', 'd']
        """
        return self.compose(slice_stage(*args))

    def rename(
        self, handler: Handler = reraise_exception, keep: bool = True, **names: str | Iterable[str]
    ) -> DataPipeline[dict[str, Any]]:
        """Renames fields: ``rename(image="jpg;png")`` takes the first of the old names that is there.

        The other fields stay, unless ``keep=False``, which drops all that is not renamed.

        >>> list(rename(image="jpg;png")([{"__key__": "a", "png": 1, "cls": 2}]))
        [{'__key__': 'a', 'cls': 2, 'image': 1}]
        """
        return self.compose(rename_stage(handler, keep, **names))

    def rename_keys(
        self,
        *pairs: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        **names: str,
    ) -> DataPipeline[dict[str, Any]]:
        """Renames fields by pattern: ``rename_keys(image="*.jpg")``, or pairs ``("image", "*.jpg")``.

        Patterns are matched on the lower-cased last part of the old name; of several that match,
        the last one counts. Fields that match none are dropped, unless ``keep_unselected``.

        >>> list(rename_keys(image="*jpg", keep_unselected=True)([{"__key__": "a", "big.jpg": 1}]))
        [{'__key__': 'a', 'image': 1}]
        """
        return self.compose(
            rename_keys_stage(
                *pairs,
                keep_unselected=keep_unselected,
                must_match=must_match,
                duplicate_is_error=duplicate_is_error,
                **names,
            )
        )

    def associate(
        self, associator: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]
    ) -> DataPipeline[dict[str, Any]]:
        """Adds the fields that ``associator`` has for the sample's key: a mapping or a function.

        >>> list(associate({"a": {"cls": 1}})([{"__key__": "a", "txt": "x"}]))
        [{'__key__': 'a', 'txt': 'x', 'cls': 1}]
        """
        return self.compose(associate_stage(associator))

    def to_tuple(
        self,
        *fields: str | Iterable[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> DataPipeline[tuple[Any, ...]]:
        """Makes tuples of the named fields: ``to_tuple("jpg;png", "cls")`` or ``to_tuple("jpg cls")``.

        A missing field is an error, unless ``missing_is_error=False`` puts None in its place.
        A field that is None is an error too, unless ``none_is_error=False``.

        >>> list(to_tuple("jpg;png", "cls")([{"__key__": "a", "png": 1, "cls": 2}]))
        [(1, 2)]
        """
        return self.compose(
            to_tuple_stage(
                *fields,
                handler=handler,
                missing_is_error=missing_is_error,
                none_is_error=none_is_error,
            )
        )

    def extract_keys(
        self, *patterns: str, duplicate_is_error: bool = True, ignore_missing: bool = False
    ) -> DataPipeline[tuple[Any, ...]]:
        """Makes tuples of the fields that match patterns: ``extract_keys("*.jpg;*.png", "*.cls")``.

        Each pattern must match one field. ``duplicate_is_error=False`` takes the first of
        several, ``ignore_missing=True`` leaves out what is not there.

        >>> list(extract_keys("*.jpg", "cls")([{"__key__": "a", "big.jpg": 1, "cls": 2}]))
        [(1, 2)]
        """
        return self.compose(
            extract_keys_stage(
                *patterns, duplicate_is_error=duplicate_is_error, ignore_missing=ignore_missing
            )
        )

    def decode(
        self,
        *args: str | Callable[[str, bytes], Any],
        handler: Handler = reraise_exception,
        pre: Sequence[Callable[[str, bytes], Any]] | None = None,
        post: Sequence[Callable[[str, bytes], Any]] | None = None,
        only: str | Sequence[str] | None = None,
        partial: bool = False,
        allow_pickle: bool = False,
    ) -> DataPipeline[dict[str, Any]]:
        """Decodes the fields of each sample by their extension.

        ``args`` are image specs such as ``"pil"``, ``"rgb8"``, ``"torchrgb"``, and functions
        ``f(key, data)`` that give a value or None. Text, numbers, JSON, arrays and more are decoded
        without being named. ``only`` restricts it to some fields, ``partial=True`` passes
        values that are decoded already, ``allow_pickle=True`` trusts pickles of any kind.

        >>> list(decode()([{"__key__": "a", "cls": b"3", "json": b'{"x": 1}'}]))
        [{'__key__': 'a', 'cls': 3, 'json': {'x': 1}}]
        """
        return self.compose(
            decode_stage(
                *args,
                handler=handler,
                pre=pre,
                post=post,
                only=only,
                partial=partial,
                allow_pickle=allow_pickle,
            )
        )

    def xdecode(
        self,
        *args: tuple[str, Any],
        must_decode: bool = True,
        defaults: Sequence[tuple[str, Any]] = default_decoders,
        handler: Handler = reraise_exception,
        **named: Any,
    ) -> DataPipeline[dict[str, Any]]:
        """Decodes fields by patterns of one's own: ``xdecode(("*.jpg", read_image), json=json.load)``.

        A decoder gets the field as an open binary stream. Patterns are matched on ``.field``;
        the last one that matches counts, False leaves the field as it is. A field that
        matches none is an error, unless ``must_decode=False``.

        >>> list(xdecode(("*.n", lambda stream: int(stream.read())))([{"__key__": "a", "n": b"7"}]))
        [{'__key__': 'a', 'n': 7}]
        """
        return self.compose(
            xdecode_stage(
                *args, must_decode=must_decode, defaults=defaults, handler=handler, **named
            )
        )

    def shuffle(
        self,
        bufsize: int = 1000,
        initial: int = 100,
        rng: random.Random | None = None,
        seed: int | None = None,
        handler: Handler | None = None,
        *,
        size: int | None = None,
    ) -> DataPipeline[T]:
        """Gives the items in random order, through a buffer of ``bufsize`` items.

        The first item comes when ``initial`` items are there; the buffer then grows by taking two for
        each one given. The order is another one every epoch and depends only on the
        seed, the epoch and the place in the pipeline. With ``seed`` the first epoch is that of
        WebDataset. ``rng`` is a ``random.Random`` of one's own instead, used as it comes.

        >>> list(shuffle(bufsize=2, seed=0)(iter(range(6))))
        [1, 2, 0, 4, 5, 3]
        """
        return self.compose(shuffle_stage(bufsize, initial, rng, seed, handler, size=size))

    def detshuffle(
        self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1
    ) -> DataPipeline[T]:
        """A shuffle whose order is that of ``seed`` plus the number of the epoch.

        A pipeline counts the epochs; called on an iterator, the stage counts by itself, from
        ``epoch + 1`` on.

        >>> twice = detshuffle(5)
        >>> list(twice(iter(range(10)))), list(twice(iter(range(10))))
        ([3, 4, 0, 2, 8, 5, 9, 1, 7, 6], [1, 5, 0, 2, 6, 3, 9, 4, 7, 8])
        """
        return self.compose(detshuffle_stage(bufsize, initial, seed, epoch))

    def info(
        self,
        fmt: str | None = None,
        n: int = 3,
        every: int = -1,
        width: int = 50,
        stream: TextIO | None = None,
        name: str = "",
    ) -> DataPipeline[T]:
        """Writes the first ``n`` samples (and every ``every``-th) to ``stream``, a line per field.

        ``fmt`` is a format string for a whole sample instead: ``"{__key__} {cls}"``.

        >>> list(info(n=1, stream=sys.stdout, name="look")([{"__key__": "a", "cls": 2}]))
        --- look
        __key__ 'a'
        cls 2
        [{'__key__': 'a', 'cls': 2}]
        """
        return self.compose(info_stage(fmt, n, every, width, stream, name))

    def log_keys(self, logfile: str | None = None) -> DataPipeline[T]:
        """Appends a line ``number TAB worker TAB rank TAB key`` for every sample to ``logfile``.

        Several processes may write to one file: each line is one write.

        >>> list(log_keys(None)([{"__key__": "a"}]))
        [{'__key__': 'a'}]
        """
        return self.compose(log_keys_stage(logfile))

    def batched(
        self,
        batchsize: int = 20,
        collation_fn: Collation | None = default_collation_fn,
        partial: bool = True,
    ) -> DataPipeline[Any]:
        """Collects ``batchsize`` samples into one batch.

        ``collation_fn`` makes the batch of a list of samples (None: the list itself). The last
        batch may be smaller, unless ``partial=False`` drops it.

        >>> list(batched(2)([(1,), (2,), (3,)]))
        [(array([1, 2]),), (array([3]),)]
        """
        return self.compose(batched_stage(batchsize, collation_fn, partial))

    def unbatched(self) -> DataPipeline[Any]:
        """Takes batches apart into samples again.

        >>> list(unbatched()([([1, 2], ["a", "b"])]))
        [(1, 'a'), (2, 'b')]
        """
        return self.compose(unbatched_stage())

    def listed(self, batchsize: int = 20, partial: bool = True) -> DataPipeline[Any]:
        """Collects ``batchsize`` samples into a list, as they are.

        >>> list(listed(2)([1, 2, 3]))
        [[1, 2], [3]]
        """
        return self.compose(listed_stage(batchsize, partial))

    def planned(self, collation_fn: Collation | None = default_collation_fn) -> DataPipeline[Any]:
        """Collects the samples of each planned batch, behind ``WebDataset(…, plan=Plan(…))``.

        ``collation_fn`` makes the batch of a list of samples (None: the list itself). Stages between
        the source and this one change single samples. Where they leave one out, the batch is
        smaller, and never mixed with the next; a batch that none is left of does not come.

        >>> planned(None)
        planned(None)
        """
        return self.compose(planned_stage(collation_fn))

    def unlisted(self) -> DataPipeline[T]:
        """Takes lists apart into their items.

        >>> list(unlisted()([[1, 2], [3]]))
        [1, 2, 3]
        """
        return self.compose(unlisted_stage())

    def dynamic_bucketed_batch(
        self,
        len_key: str | None = None,
        len_fn: Callable[[Any], Any] | None = len,
        min_sample_len: float | None = None,
        max_sample_len: float | None = None,
        buffersize: int = 1024,
        collate_fn: Collation | None = PaddedBatch,
        sampler_fn: Callable[..., Iterable[int]] = indices_around_random_pivot,
        sampler_kwargs: dict[str, Any] | None = None,
        drop_end: bool = False,
        *,
        max_wait: int | None = None,
        over: str = "alone",
        prepare: Callable[[Any], Any] | None = None,
        prepared_len: Callable[[Any], float] | None = None,
        handler: Handler = reraise_exception,
    ) -> DataPipeline[Any]:
        """Collects samples of like length into batches of like size, on a stream.

        A buffer of ``buffersize`` samples is kept sorted by length. Whenever it is full, a batch is
        cut out of it around a random sample: as many neighbours as ``sampler_kwargs`` allow
        (``target_batch_numel``, ``max_batch_numel``, ``max_batch_size``, ``max_padding_ratio``: see
        :func:`penstock.indices_around_random_pivot`). A batch has its longest sample first. At the end
        of the data the rest of the buffer comes in smaller batches, or not at all with ``drop_end``.

        The length is ``len_fn(sample[len_key])``; without ``len_key`` that of the sample, without
        ``len_fn`` the field itself. Samples below ``min_sample_len`` or above ``max_sample_len`` are
        left out and counted. A length that is missing, not a number, NaN, 0 or less is a
        ``SampleError`` for the ``handler``. A sample above ``max_batch_numel`` comes in a batch of its
        own (``over="alone"``), is left out and counted (``"skip"``), or is a ``SampleError``
        (``"error"``).

        No sample waits for more than ``max_wait`` later ones; without a word, for four buffers.
        ``prepare`` is applied to the samples of a batch when it is made, so that the buffer holds, say,
        undecoded sound; where ``prepared_len(sample)`` then finds a batch above ``max_batch_numel``, it
        comes in parts. Called with data in front of the other arguments, it runs at once.

        >>> stage = dynamic_bucketed_batch(
        ...     buffersize=4, collate_fn=None, sampler_kwargs={"target_batch_numel": 6})
        >>> list(stage(["aa", "bbbbbb", "ccc", "dd", "eee"]))
        [['bbbbbb'], ['eee', 'ccc'], ['dd', 'aa']]
        """
        return self.compose(
            dynamic_bucketed_batch_stage(
                len_key,
                len_fn,
                min_sample_len,
                max_sample_len,
                buffersize,
                collate_fn,
                sampler_fn,
                sampler_kwargs,
                drop_end,
                max_wait=max_wait,
                over=over,
                prepare=prepare,
                prepared_len=prepared_len,
                handler=handler,
            )
        )

    def packed(
        self,
        row_length: int,
        key: str | Sequence[str] | None = None,
        fit: str = "best",
        buffer: int = 2000,
        *,
        pad_value: Any = 0,
        over: str = "error",
        drop_end: bool = False,
        handler: Handler = reraise_exception,
    ) -> DataPipeline[dict[str, Any]]:
        """Packs sequences into rows of ``row_length``, several to a row, and says which is where.

        ``key`` is the field to pack, or several that have the same length in each sample (tokens and
        their labels); None packs samples that are sequences themselves, as ``tokens``. A row is a
        dict: each packed field (filled up with ``pad_value``), ``segment_ids`` (1, 1, 2, 2, 2, 0 where
        filled up), ``positions`` (from 0 in each sequence), ``lengths`` and ``cu_seqlens`` (where
        each sequence begins, and the end), and of every other field a list, a value for each sequence.
        Tensors give tensors, all else arrays.

        Out of a buffer of ``buffer`` samples a row takes those that have waited longest, and then the
        two that fill it up best (``fit="best"``); or again and again the first come that fits
        (``"first"``). Nothing is lost, and nothing is cut: a sample longer than a
        row is an error, unless ``over`` says ``"skip"`` (left out and counted), ``"alone"`` (in a
        longer row of its own), ``"cut"`` (its beginning) or ``"split"`` (in pieces). ``drop_end``
        leaves out the rows that are begun when the data ends.

        >>> row, *more = packed(6, buffer=3)([[1, 2, 3], [4, 5], [6, 7, 8], [9]])
        >>> row["tokens"].tolist(), row["segment_ids"].tolist(), row["positions"].tolist()
        ([1, 2, 3, 6, 7, 8], [1, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 2])
        >>> more[0]["tokens"].tolist(), more[0]["lengths"].tolist(), more[0]["cu_seqlens"].tolist()
        ([4, 5, 9, 0, 0, 0], [2, 1], [0, 2, 3])
        """
        return self.compose(
            packed_stage(
                row_length,
                key,
                fit,
                buffer,
                pad_value=pad_value,
                over=over,
                drop_end=drop_end,
                handler=handler,
            )
        )

    def mcached(self) -> DataPipeline[T]:
        """Keeps all items in memory after one complete pass; later passes come from there.

        Dicts and lists are copied when kept and when given again, so that later stages may add, change
        and remove fields. The values in them are not copied: change an array in place, and it stays
        changed. The memory belongs to one process: workers that end with the epoch start anew.

        >>> squares, numbers = Cached(), iter([1, 4, 9])
        >>> list(squares(numbers)), list(squares(numbers))
        ([1, 4, 9], [1, 4, 9])
        """
        return self.compose(cached_stage())

    def lmdb_cached(
        self,
        fname: str | os.PathLike[str],
        map_size: float = 1000000000000.0,
        pickler: Any = None,
        chunksize: int = 500,
    ) -> DataPipeline[T]:
        """Keeps all samples in LMDB files after one complete pass; later passes come from there.

        ``fname`` is a folder; each rank and worker has a file of its own in it, since each sees its own
        part of the data. With another number of workers the cache is made anew. A file may grow to
        ``map_size`` bytes and is written ``chunksize`` samples at a time. Plain values, arrays and
        tensors can be kept; for anything else give a ``pickler`` with ``dumps`` and ``loads``, such as
        the module ``pickle``: then whoever wrote the file can run any code here. Needs the package
        ``lmdb``.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = list(LMDBCached(folder)([{"__key__": "b"}, {"__key__": "a"}]))
        ...     list(LMDBCached(folder)([]))
        [{'__key__': 'b'}, {'__key__': 'a'}]
        """
        return self.compose(lmdbcached_stage(fname, map_size, pickler, chunksize))

    def dbcache(
        self,
        dbname: str | os.PathLike[str] | None,
        size: int,
        source: Iterable[T] | None = None,
        shuffle: bool = False,
        verbose: bool = True,
    ) -> DataPipeline[T]:
        """Keeps the first ``size`` samples in an SQLite file; later passes come from there.

        A pass ends after ``size`` samples, or with a shorter source: either completes the cache.
        With ``shuffle=True`` the kept samples come in another random order every epoch. The file is
        ``dbname``; of several ranks and workers each has one of its own, named after it. With
        ``dbname=None`` everything passes and nothing is kept. ``verbose`` logs when the cache is
        complete. Plain values, arrays and tensors can be kept. It stands in a pipeline, is called
        with a data set, or is given one as ``source``:

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cached = DBCache(f"{folder}/samples.db", 2)([{"cls": 1}, {"cls": 2}, {"cls": 3}])
        ...     list(cached), list(cached)
        ([{'cls': 1}, {'cls': 2}], [{'cls': 1}, {'cls': 2}])
        """
        return self.compose(dbcache_stage(dbname, size, source, shuffle, verbose))

    batch = batched
