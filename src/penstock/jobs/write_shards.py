"""Write any dataset into shards, in parallel and restartable."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.codecs.encoder import make_encoder
from penstock.errors import PipelineError, SampleError
from penstock.jobs.function_identity import identify
from penstock.jobs.output_files import TaskWriter
from penstock.jobs.plan import Plan, Task, inside
from penstock.jobs.runner import run_tasks
from penstock.nearest_name import checks_arguments
from penstock.shards.writing import ShardWriter
from penstock.shards.writing.shard_writer import format_shard_name
from penstock.storage.urls import local_path, rewrite_url

FIELDS = ("jpg", "cls")
REMEDY = "; fields are named by fields= or encode=, keys by key="
encode_sample = make_encoder(True)
Encode = Callable[[Any], Mapping[str, Any]]


@checks_arguments
def write_shards(
    dataset: Any,
    pattern: str | os.PathLike[str],
    *,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    encode: Encode | None = None,
    key: str | None = "%09d",
    maxcount: int = 10_000,
    maxsize: float | None = None,
    jobs: int | None = None,
    index: bool = True,
    force: bool = False,
) -> list[str]:
    """Write the items of a dataset into shards ``pattern % 0``, … and return their URLs.

    ``dataset`` is map-style (``len()`` and indexing: torchvision's, Hugging Face's, any sequence),
    or any iterable. What an item becomes:

    * ``encode(item)`` returns the fields of its sample, a dict. Every item becomes a sample: None
      is an error. ``__key__`` may be among the fields only with ``key=None``.
    * ``fields`` names the values of items that are tuples: ``("jpg", "cls")``. Of items that are
      dicts, it names the values to take, or is a mapping from field to name:
      ``{"jpg": "image", "cls": "label"}``.
    * With neither, a dataset with a method ``sample(i)``, such as :class:`penstock.ImageFolder`,
      is read by it, so that images are not encoded again; else it is ``("jpg", "cls")``.

    Values are encoded by their field, as :class:`penstock.TarWriter` does. Keys are ``key % i``;
    None takes the ``__key__`` of the samples.

    Each shard holds ``maxcount`` samples. Of a map-style dataset, ``jobs`` processes (one per core)
    write them in parallel; the same call continues after a kill with the shards that are missing.
    An iterable, and ``maxsize`` (bytes in a shard), is written by this process, and continues only
    for local shards. A call that has finished does nothing when it is made again, if the shards are
    still there. Either way the shards have the same bytes as without the kill, if the dataset
    and ``encode`` return the same values. Local shards that exist already and are not of this call
    are an error, unless ``force`` replaces them. ``index`` also writes the index of the shards
    beside them.

    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> rows = [("hello", 1), ("world", 2), ("!", 3)]
    >>> shards = write_shards(
    ...     rows, os.path.join(folder, "x-%02d.tar"), fields=("txt", "cls"), maxcount=2, jobs=1
    ... )
    >>> sorted(name for name in os.listdir(folder) if not name.startswith("."))
    ['x-00.tar', 'x-01.tar', 'x.index.parquet']
    """
    url = os.path.expanduser(os.fspath(pattern))
    format_shard_name(url, 0)  # refuses a pattern without a number
    if fields is not None and encode is not None:
        raise PipelineError("write_shards takes fields= or encode=, not both")
    if maxcount < 1:
        raise PipelineError(f"write_shards: a shard holds at least one sample: {maxcount=}")
    _check_key(key)
    make = MakeSample(dataset, fields, encode, key)
    if maxsize is not None or not is_map_style(dataset):
        return _write_in_order(make, url, maxcount, maxsize, index, force)
    return _write_in_parallel(make, url, maxcount, jobs, index, force)


def _check_key(key: str | None) -> None:
    if key is None:
        return
    try:
        differ = key % 0 != key % 1
    except (TypeError, ValueError):
        differ = False
    if not differ:
        raise PipelineError(f"key needs a place for the number, such as '%09d', not {key!r}")


def is_map_style(dataset: Any) -> bool:
    """Return whether items can be read by number.

    >>> is_map_style([1]), is_map_style(iter([1])), is_map_style({1: 2})
    (True, False, False)
    """
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        return False
    able = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    return able and not isinstance(dataset, (Mapping, set, frozenset))


class MakeSample:
    """Makes the sample of an item."""

    def __init__(
        self,
        dataset: Any,
        fields: Sequence[str] | Mapping[str, str] | None,
        encode: Encode | None,
        key: str | None,
    ) -> None:
        self.dataset, self.encode, self.key = dataset, encode, key
        self.raw = fields is None and encode is None and callable(getattr(dataset, "sample", None))
        self.fields = FIELDS if fields is None else fields

    def __call__(self, number: int, item: Any) -> dict[str, Any]:
        try:
            if self.encode is not None:
                sample = self._encoded(self.encode(item))
            else:
                sample = dict(item) if self.raw else self._named(item)
        except Exception as error:
            error.add_note(f"in {type(self.dataset).__name__}: item {number}")
            raise
        if self.key is not None:
            sample["__key__"] = self.key % number
        elif "__key__" not in sample:
            raise SampleError(f"item {number} has no '__key__': pass key=, such as '%09d'")
        return sample

    def _encoded(self, fields: Any) -> dict[str, Any]:
        """Return what ``encode`` returned as a dict of fields."""
        if not isinstance(fields, Mapping):
            found = "None" if fields is None else f"a {type(fields).__name__}"
            raise SampleError(
                f"encode= returns the fields of a sample as a dict, not {found}: to leave items "
                "out, pass a dataset without them"
            )
        if self.key is not None and "__key__" in fields:
            raise SampleError(
                f"encode= returned a '__key__', but keys are made by key={self.key!r}: pass "
                "key=None to use it, or leave it out"
            )
        return dict(fields)

    def read(self, number: int) -> dict[str, Any]:
        """Read the sample of a number of a map-style dataset."""
        item = self.dataset.sample(number) if self.raw else self.dataset[number]
        return self(number, item)

    def _named(self, item: Any) -> dict[str, Any]:
        fields = self.fields
        if isinstance(item, Mapping):
            names = fields if isinstance(fields, Mapping) else {name: name for name in fields}
            if lacks := [name for name in names.values() if name not in item]:
                raise SampleError(
                    f"the item has {sorted(map(str, item))}, not {lacks}: say which value each "
                    'field takes, such as fields={"jpg": "image", "cls": "label"}'
                )
            return {field: item[name] for field, name in names.items()}
        if not isinstance(item, (tuple, list)) or len(item) != len(fields):
            size = f" of {len(item)}" if isinstance(item, (tuple, list)) else ""
            raise SampleError(
                f"items are tuples of {len(fields)} values ({', '.join(fields)}) or dicts, but "
                f"this one is a {type(item).__name__}{size}: pass fields= or encode="
            )
        return dict(zip(fields, item))

    def identify_dataset(self, count: int) -> str:
        """Return a text that differs for another dataset: its fingerprint, or of two samples."""
        for name in ("fingerprint", "_fingerprint"):  # the second is Hugging Face's
            if isinstance(own := getattr(self.dataset, name, None), str):
                return own
        digest = hashlib.sha256()
        for number in sorted({0, count - 1}):
            for field, data in encode_sample(self.read(number)).items():
                digest.update(f"{field} {data!r}\n".encode())
        return f"sha256 of the first and the last sample: {digest.hexdigest()[:16]}"

    @property
    def identity(self) -> str:
        """A text that differs when the samples may."""
        if self.encode is not None:
            return identify(self.encode)
        pairs = self.fields.items() if isinstance(self.fields, Mapping) else self.fields
        return "raw" if self.raw else repr(list(pairs))


class WriteRange:
    """Writes the samples of a range of numbers: the work of one task."""

    remedy = REMEDY

    def __init__(self, make: MakeSample) -> None:
        self.make = make

    def __call__(self, task: Task, write: TaskWriter) -> None:
        for number in range(*task.argument):
            write(self.make.read(number))
            write.count(kept=True)


def _write_in_parallel(
    make: MakeSample, url: str, maxcount: int, jobs: int | None, index: bool, force: bool
) -> list[str]:
    folder, slash, name = url.rpartition("/")
    count = len(make.dataset)
    tasks = []
    for shard, start in enumerate(range(0, count, maxcount)):
        stop = min(start + maxcount, count)
        output = format_shard_name(url, shard)[len(folder) + len(slash) :]
        tasks.append(Task(f"{shard:06d}", outputs=(output,), argument=[start, stop]))
    if not tasks:
        return []
    options = {"key": make.key, "items": count, "dataset": make.identify_dataset(count)}
    plan = Plan(tasks, function=make.identity, options=options, index=index)
    job = f"write-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"
    run_tasks(
        plan,
        WriteRange(make),
        folder=folder or ("/" if slash else "."),
        name=job,
        jobs=jobs,
        force=force,
        keep_control_folder=False,
    )
    return [inside(folder + slash if slash else "", task.outputs[0]) for task in tasks]


def _write_in_order(
    make: MakeSample, url: str, maxcount: int, maxsize: float | None, index: bool, force: bool
) -> list[str]:
    written: list[str] = []
    local = local_path(rewrite_url(url)) is not None
    limit = float("inf") if maxsize is None else maxsize
    options: dict[str, Any] = {"skip_existing": local and not force, "index": index, "verbose": 0}
    with ShardWriter(url, maxcount, limit, post=written.append, **options) as sink:
        sink.remedy = REMEDY
        for sample in _samples(make):
            sink.write(sample)
    return written


def _samples(make: MakeSample) -> Iterator[dict[str, Any]]:
    if is_map_style(make.dataset):
        yield from map(make.read, range(len(make.dataset)))
        return
    if not isinstance(make.dataset, Iterable):
        raise PipelineError(
            f"write_shards takes a dataset with len() and indexing, or an iterable, not "
            f"{type(make.dataset).__name__}"
        )
    for number, item in enumerate(make.dataset):
        yield make(number, item)
