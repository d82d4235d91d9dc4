# Made by tools/make_fluent.py from the stages; do not edit.

# ruff: noqa: E501

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TextIO, TypeVar

from penstock.batches.bucketing.pivot_window import indices_around_random_pivot
from penstock.batches.collate import Collation, default_collation_fn
from penstock.batches.padding.padded_batch import PaddedBatch
from penstock.documents.pieces import Document
from penstock.handlers import Handler, reraise_exception
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.stages.decode import default_decoders

T = TypeVar("T")
Out = TypeVar("Out")
Sample = dict[str, Any]

METHODS: dict[str, Any]

class Fluent(Generic[T]):
    """The methods of a pipeline that append a stage and return a new pipeline."""

    def compose(self, *stages: Any) -> DataPipeline[Any]: ...
    def map(
        self,
        f: Callable[..., Out | None],
        handler: Handler = reraise_exception,
        *,
        rng: bool | str = False,
    ) -> DataPipeline[Out]:
        """Applies ``f`` to each sample. A result of None drops the sample.

        If sample and result are dicts, the result keeps the sample's ``__key__``.
        With ``rng=True``, ``f(sample, rng)`` gets a ``numpy.random.Generator`` that depends only on the
        seed, the epoch and the sample's position in the order: the same sample is changed the same
        way on any hardware, and again after a resume. With ``rng="global"`` the generators of
        ``random``, numpy and torch are seeded this way while ``f`` runs, and restored after it: for
        transforms that use those.

        A function with the attribute ``takes_rng = True``, such as the random ones of
        :mod:`penstock.transforms`, is always called as ``f(sample, draws)``: ``draws.random()`` is a
        number from 0 to 1 and ``draws.below(n)`` one below n. They cost less than numpy's.

        >>> list(map(lambda x: x * 2)([1, 2]))
        [2, 4]
        >>> noisy = map(lambda x, rng: x + rng.integers(100), rng=True)
        >>> list(noisy([1, 2])) == list(noisy([1, 2]))
        True
        """

    def map_dict(
        self,
        handler: Handler = reraise_exception,
        *,
        rng: bool | str = False,
        **functions: Callable[..., Any],
    ) -> DataPipeline[dict[str, Any]]:
        """Applies a function to each named field: ``map_dict(jpg=augment, cls=int)``.

        With ``rng=True`` each function is called as ``f(value, rng)``; with ``rng="global"`` the global
        generators are seeded while they run, for transforms such as torchvision's: see :class:`map`.
        Functions with ``takes_rng = True`` get random numbers in any case.

        >>> list(map_dict(cls=str)([{"__key__": "a", "cls": 3}]))
        [{'__key__': 'a', 'cls': '3'}]
        """

    def map_tuple(
        self,
        *functions: Callable[..., Any] | None,
        handler: Handler = reraise_exception,
        rng: bool | str = False,
    ) -> DataPipeline[tuple[Any, ...]]:
        """Applies a function to each element of a tuple; None leaves the element unchanged.

        With ``rng=True`` each function is called as ``f(value, rng)``; with ``rng="global"`` the global
        generators are seeded while they run, for transforms such as torchvision's: see :class:`map`.
        Functions with ``takes_rng = True`` get random numbers in any case.

        >>> list(map_tuple(str, None)([(1, 2)]))
        [('1', 2)]
        """

    def select(
        self, predicate: Callable[[T], Any], handler: Handler = reraise_exception
    ) -> DataPipeline[T]:
        """Keeps the samples for which ``predicate(sample)`` is true.

        >>> list(select(lambda x: x > 1)([1, 2, 3]))
        [2, 3]
        """

    def rsample(self, p: float = 0.5) -> DataPipeline[T]:
        """Keeps each sample with probability ``p``; every epoch draws other random numbers.

        >>> list(rsample(1.0)([1, 2])), list(rsample(0.0)([1, 2]))
        ([1, 2], [])
        """

    def slice(self, *args: int | None) -> DataPipeline[T]:
        """Keeps the items ``start`` to ``stop`` by ``step``, as ``itertools.islice`` does.

        >>> list(slice(1, 4, 2)(iter("abcdef")))
        ['b', 'd']
        """

    def rename(
        self, handler: Handler = reraise_exception, keep: bool = True, **names: str | Iterable[str]
    ) -> DataPipeline[dict[str, Any]]:
        """Renames fields: ``rename(image="jpg;png")`` takes the first old name that the sample has.

        Other fields stay, unless ``keep=False``, which drops everything that is not renamed.

        >>> list(rename(image="jpg;png")([{"__key__": "a", "png": 1, "cls": 2}]))
        [{'__key__': 'a', 'cls': 2, 'image': 1}]
        """

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

    def associate(
        self, associator: Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]
    ) -> DataPipeline[dict[str, Any]]:
        """Adds the fields that ``associator``, a mapping or a function, has for the sample's key.

        >>> list(associate({"a": {"cls": 1}})([{"__key__": "a", "txt": "x"}]))
        [{'__key__': 'a', 'txt': 'x', 'cls': 1}]
        """

    def to_tuple(
        self,
        *fields: str | Iterable[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> DataPipeline[tuple[Any, ...]]:
        """Makes tuples of the named fields: ``to_tuple("jpg;png", "cls")`` or ``to_tuple("jpg cls")``.

        A missing field is an error, unless ``missing_is_error=False`` replaces it by None.
        A field that is None is an error too, unless ``none_is_error=False``.

        >>> list(to_tuple("jpg;png", "cls")([{"__key__": "a", "png": 1, "cls": 2}]))
        [(1, 2)]
        """

    def extract_keys(
        self, *patterns: str, duplicate_is_error: bool = True, ignore_missing: bool = False
    ) -> DataPipeline[tuple[Any, ...]]:
        """Makes tuples of the fields that match patterns: ``extract_keys("*.jpg;*.png", "*.cls")``.

        Each pattern must match one field. ``duplicate_is_error=False`` takes the first of
        several, ``ignore_missing=True`` leaves out missing fields.

        >>> list(extract_keys("*.jpg", "cls")([{"__key__": "a", "big.jpg": 1, "cls": 2}]))
        [(1, 2)]
        """

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
        ``f(key, data)`` that return a value or None. Text, numbers, JSON, arrays and more are decoded
        by default. ``only`` restricts it to some fields, ``partial=True`` accepts values that are
        decoded already, ``allow_pickle=True`` trusts pickles of any kind.

        >>> list(decode()([{"__key__": "a", "cls": b"3", "json": b'{"x": 1}'}]))
        [{'__key__': 'a', 'cls': 3, 'json': {'x': 1}}]
        """

    def xdecode(
        self,
        *args: tuple[str, Any],
        must_decode: bool = True,
        defaults: Sequence[tuple[str, Any]] = default_decoders,
        handler: Handler = reraise_exception,
        **named: Any,
    ) -> DataPipeline[dict[str, Any]]:
        """Decodes fields by the user's patterns: ``xdecode(("*.jpg", read_image), json=json.load)``.

        A decoder gets the field as an open binary stream. Patterns are matched on ``.field``;
        the last one that matches counts, False leaves the field unchanged. A field that
        matches none is an error, unless ``must_decode=False``.

        >>> list(xdecode(("*.n", lambda stream: int(stream.read())))([{"__key__": "a", "n": b"7"}]))
        [{'__key__': 'a', 'n': 7}]
        """

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
        """Yields the items in random order, through a buffer of ``bufsize`` items.

        The first item comes when the buffer has ``initial`` items; it then grows by taking two items
        for each one yielded. The order differs in every epoch and depends only on the seed, the epoch
        and the position in the pipeline. With ``seed`` the first epoch is in WebDataset's order.
        ``rng`` is a ``random.Random`` to use instead.

        >>> list(shuffle(bufsize=2, seed=0)(iter(range(6))))
        [1, 2, 0, 4, 5, 3]
        """

    def detshuffle(
        self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1
    ) -> DataPipeline[T]:
        """A shuffle whose order follows from ``seed`` plus the number of the epoch.

        A pipeline counts the epochs; called on an iterator, the stage counts its calls, from
        ``epoch + 1``. The attribute ``epoch`` is the number of the last pass begun. It follows the
        pipeline: to choose the epoch, call the pipeline's ``set_epoch``.

        >>> twice = detshuffle(5)
        >>> list(twice(iter(range(10)))), list(twice(iter(range(10))))
        ([3, 4, 0, 2, 8, 5, 9, 1, 7, 6], [1, 5, 0, 2, 6, 3, 9, 4, 7, 8])
        """

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

    def log_keys(self, logfile: str | None = None) -> DataPipeline[T]:
        """Appends a line ``number TAB worker TAB rank TAB key`` for every sample to ``logfile``.

        Several processes may write to one file: each line is one write.

        >>> list(log_keys(None)([{"__key__": "a"}]))
        [{'__key__': 'a'}]
        """

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

    def unbatched(self) -> DataPipeline[Any]:
        """Takes batches apart into samples again.

        >>> list(unbatched()([([1, 2], ["a", "b"])]))
        [(1, 'a'), (2, 'b')]
        """

    def listed(self, batchsize: int = 20, partial: bool = True) -> DataPipeline[Any]:
        """Collects ``batchsize`` samples into a list, as they are.

        >>> list(listed(2)([1, 2, 3]))
        [[1, 2], [3]]
        """

    def planned(self, collation_fn: Collation | None = default_collation_fn) -> DataPipeline[Any]:
        """Collects the samples of each planned batch, after ``WebDataset(…, plan=Plan(…))``.

        ``collation_fn`` makes the batch from a list of samples (None: the list itself). Stages between
        the source and this one change single samples. If they drop one, the batch is smaller, and
        never mixed with the next; a batch that loses all its samples is left out.

        >>> planned(None)
        planned(None)
        """

    def unlisted(self) -> DataPipeline[T]:
        """Takes lists apart into their items.

        >>> list(unlisted()([[1, 2], [3]]))
        [1, 2, 3]
        """

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
        """Collects samples of similar length into batches of similar size, on a stream.

        A buffer of ``buffersize`` samples is kept sorted by length. Whenever it is full, a batch is
        taken from it around a random sample: as many neighbours as ``sampler_kwargs`` allow
        (``target_batch_numel``, ``max_batch_numel``, ``max_batch_size``, ``max_padding_ratio``: see
        :func:`penstock.indices_around_random_pivot`). A batch has its longest sample first. At the end
        of the data, the rest of the buffer comes in smaller batches, or is dropped with ``drop_end``.

        The length is ``len_fn(sample[len_key])``; without ``len_key`` it is ``len_fn(sample)``, without
        ``len_fn`` the field itself. ``len`` takes the length of the sound from a pair (sound, rate),
        and refuses undecoded bytes and dicts. Samples below ``min_sample_len`` or above
        ``max_sample_len`` are left out and counted. A length that is missing, not a number, NaN, 0 or
        negative is a ``SampleError``, passed to ``handler``. A sample above ``max_batch_numel`` gets a
        separate batch (``over="alone"``), is left out and counted (``"skip"``), or is a
        ``SampleError`` (``"error"``).

        A sample leaves the buffer before ``max_wait`` later ones have come (default: four buffers).
        ``prepare`` is applied to the samples of a batch when it is made, so that the buffer can hold
        undecoded sound, for example. If ``prepared_len(sample)`` then shows that a batch is above
        ``max_batch_numel``, it is split. Called with data before the other arguments, the stage runs
        at once.

        >>> stage = dynamic_bucketed_batch(
        ...     buffersize=4, collate_fn=None, sampler_kwargs={"target_batch_numel": 6})
        >>> list(stage(["aa", "bbbbbb", "ccc", "dd", "eee"]))
        [['bbbbbb'], ['eee', 'ccc'], ['dd', 'aa']]
        """

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
        """Packs sequences into rows of ``row_length``, several to a row, with their boundaries.

        ``key`` is the field to pack, or several that have the same length in each sample (tokens and
        their labels); None packs samples that are sequences themselves, as ``tokens``. A row is a
        dict: each packed field (padded with ``pad_value``), ``segment_ids`` (1, 1, 2, 2, 2, and 0 for
        padding), ``positions`` (from 0 in each sequence), ``lengths``, ``cu_seqlens`` (where each
        sequence begins, and the end), and for every other field a list with one value per sequence.
        Tensors are packed into tensors, everything else into arrays.

        From a buffer of ``buffer`` samples, a row takes those that have waited longest, and then the
        two that fill it best (``fit="best"``); or repeatedly the oldest that fits (``"first"``).
        Nothing is lost or cut: a sample longer than a row is an error, unless ``over`` is ``"skip"``
        (left out and counted), ``"alone"`` (in a separate, longer row), ``"cut"`` (its beginning is
        kept) or ``"split"`` (packed in pieces). ``drop_end`` drops the rows that are not full when
        the data ends.

        >>> row, *more = packed(6, buffer=3)([[1, 2, 3], [4, 5], [6, 7, 8], [9]])
        >>> row["tokens"].tolist(), row["segment_ids"].tolist(), row["positions"].tolist()
        ([1, 2, 3, 6, 7, 8], [1, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 2])
        >>> more[0]["tokens"].tolist(), more[0]["lengths"].tolist(), more[0]["cu_seqlens"].tolist()
        ([4, 5, 9, 0, 0, 0], [2, 1], [0, 2, 3])
        """

    def documents(
        self,
        layout: str = "auto",
        *,
        assign: str = "index",
        threshold: float = 0.0,
        place: str = "before",
        min_images: int = 0,
        max_images: int | None = None,
        max_text: int | None = None,
        missing: str = "error",
        media: Any = None,
        handler: Handler = reraise_exception,
    ) -> DataPipeline[Document]:
        """Makes a :class:`~penstock.documents.Document` of each raw sample: text and images in order.

        ``layout`` is one of :data:`penstock.documents.LAYOUTS`, or "auto": detected from the first
        samples, after which a document of another layout is a :class:`~penstock.errors.PipelineError`.
        The images of ``obelics`` documents, which are URLs, and others that are not in the sample, are
        looked up in ``media``: a mapping from URL or name to bytes, or an indexed set
        (:class:`penstock.IndexedDataset`) with their names as keys. Nothing is fetched from a URL.

        If the data does not define an order (MMC4's sentences and images), ``assign``
        puts each image next to a sentence: ``"index"`` takes the data's ``matched_text_index``,
        ``"best"`` the most similar sentence of ``similarity_matrix``, ``"optimal"`` at most one image
        per sentence with the largest sum of similarities. ``place`` puts it before or after the
        sentence.

        Filters run before any image is decoded. Images less similar than ``threshold`` are dropped,
        with a threshold above 0 also those without a similarity, and those after the first
        ``max_images``; the document ends after ``max_text`` characters; then documents with fewer than
        ``min_images`` are dropped, and counted as skipped.

        ``missing`` decides about images that are absent or not readable as base64, and about what
        cannot be placed, such as a similarity matrix with NaN: ``"error"`` raises a
        :class:`~penstock.errors.SampleError`, which is passed to ``handler``; ``"drop_image"`` leaves
        the image out and counts it in ``document.missing``; ``"drop_document"`` drops the document,
        which is counted as skipped. What is dropped is logged to "penstock.documents" with its origin.

        >>> data = b'{"text_list": ["A cat."], "image_info": [{"image_name": "x.jpg", '
        >>> data += b'"matched_text_index": 0, "matched_sim": 0.3}]}'
        >>> (document,) = documents()([{"__key__": "a", "json": data, "x.jpg": b"..."}])
        >>> document.pieces[0]
        ImagePiece(name='x.jpg', data=b'...', url=None, similarity=0.3)
        >>> document.pieces[1]
        TextPiece(text='A cat.')
        """

    def interleaved_to_dict(
        self,
        *patterns: str,
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> DataPipeline[dict[str, Any]]:
        """Keeps the fields whose extension matches: ``interleaved_to_dict("json;jpg;png")``.

        Fields like ``__key__`` are dropped. Of the others, those that match no pattern become None; any
        None is an error, unless ``none_is_error=False`` (by default it is what ``missing_is_error``
        says).

        >>> sample = {"__key__": "a", "json": {}, "x1.jpg": 1, "y.txt": 2}
        >>> list(interleaved_to_dict("json;jpg", missing_is_error=False)([sample]))
        [{'json': {}, 'x1.jpg': 1, 'y.txt': None}]
        """

    def mcached(self) -> DataPipeline[T]:
        """Keeps all items in memory after one complete pass; later passes are read from there.

        Dicts and lists are copied when stored and when replayed, so that later stages may add, change
        and remove fields. The values in them are not copied: an array that is changed in place stays
        changed. The memory belongs to one process: workers that end with the epoch lose it.

        >>> squares, numbers = Cached(), iter([1, 4, 9])
        >>> list(squares(numbers)), list(squares(numbers))
        ([1, 4, 9], [1, 4, 9])
        """

    def lmdb_cached(
        self,
        fname: str | os.PathLike[str],
        map_size: float = 1000000000000.0,
        pickler: Any = None,
        chunksize: int = 500,
    ) -> DataPipeline[T]:
        """Keeps all samples in LMDB files after one complete pass; later passes are read from there.

        ``fname`` is a folder with a separate file for each rank and worker, because each sees another
        part of the data. With another number of workers the cache is filled again. A file may grow to
        ``map_size`` bytes and is written ``chunksize`` samples at a time. Plain values, arrays and
        tensors can be kept; for anything else pass a ``pickler`` with ``dumps`` and ``loads``, such as
        the module ``pickle``: then whoever wrote the file can run any code here. Needs the package
        ``lmdb``.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = list(LMDBCached(folder)([{"__key__": "b"}, {"__key__": "a"}]))
        ...     list(LMDBCached(folder)([]))
        [{'__key__': 'b'}, {'__key__': 'a'}]
        """

    def dbcache(
        self,
        dbname: str | os.PathLike[str] | None,
        size: int,
        source: Iterable[T] | None = None,
        shuffle: bool = False,
        verbose: bool = True,
    ) -> DataPipeline[T]:
        """Keeps the first ``size`` samples in an SQLite file; later passes are read from there.

        A pass ends after ``size`` samples, or at the end of a shorter source: either completes the
        cache. With ``shuffle=True`` the samples come in another random order every epoch. The file is
        ``dbname``; several ranks and workers have separate files, whose names begin with it. With
        ``dbname=None`` everything passes and nothing is kept. ``verbose`` logs when the cache is
        complete. Plain values, arrays and tensors can be kept. Put it into a pipeline, call it with a
        data set, or pass one as ``source``:

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cached = DBCache(f"{folder}/samples.db", 2)([{"cls": 1}, {"cls": 2}, {"cls": 3}])
        ...     list(cached), list(cached)
        ([{'cls': 1}, {'cls': 2}], [{'cls': 1}, {'cls': 2}])
        """

    batch = batched
