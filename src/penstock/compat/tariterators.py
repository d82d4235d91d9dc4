"""``webdataset.tariterators``: reads samples from shards, in one step or in three.

``url_opener`` yields open streams, ``tar_file_expander`` the files in them, ``group_by_keys``
samples. Programs use the steps to insert their own in between. If that is not needed,
``tarfile_to_samples`` does all three, faster, and finds duplicate keys.

A program may also assign its own function to the name of a step, as with WebDataset. Then
``tarfile_to_samples`` calls the three steps (:func:`find_replaced`), also if ``valid_sample``,
``meta_prefix`` or ``meta_suffix`` is assigned, which they use.
"""

from __future__ import annotations

import importlib
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.errors import DuplicateError, Origin, PipelineError
from penstock.handlers import Handler, ask, reraise_exception
from penstock.redact import canonical_url
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import Sample, base_plus_ext, text_of
from penstock.shards.tar_reader import TarReader
from penstock.stages.reading import tar_samples
from penstock.stages.reading.tar_samples import parse_shard_item, tarfile_to_samples
from penstock.stages.sources.shard_list import Shard, Urls
from penstock.stages.stage import Bound
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.urls import expand_urls

gopen: Any = importlib.import_module("penstock.gopen")  # the module, as in WebDataset
trace = False

File = dict[str, Any]
"""``fname`` and ``data`` of one file, and ``__url__`` of its shard."""

Select = Callable[[str], bool]
Rename = Callable[[str], str]

META = r"__[^/]*__($|/)"
meta_prefix = meta_suffix = "__"


class EndOfShard(dict[str, Any]):
    """The mark between the files of two shards: an empty dict.

    Its ``fname`` is an empty string, which belongs to no sample, so grouping functions that do not
    know the mark skip it.

    >>> EndOfShard() == {}, EndOfShard()["fname"]
    (True, '')
    """

    def __missing__(self, name: str) -> str:
        return ""


END_OF_SHARD = EndOfShard()


class CutShard(EndOfShard):
    """The mark after a damaged shard, which may have ended in the middle of a sample.

    ``following`` is the name of the file whose header could be read and whose data could not: if
    it belongs to another sample, the sample before it is complete.
    """

    def __init__(self, following: str | None = None) -> None:
        super().__init__()
        self.following = following


def valid_sample(sample: Any) -> bool:
    """Return whether a sample is a dict that is not empty and not marked ``__bad__``.

    >>> valid_sample({"__key__": "a"}), valid_sample({}), valid_sample({"__bad__": True})
    (True, False, False)
    """
    return isinstance(sample, dict) and bool(sample) and not sample.get("__bad__")


def url_opener(
    data: Iterable[Any], handler: Handler = reraise_exception, **kw: Any
) -> Iterator[File]:
    """Open the shards of a shard list: add an open ``stream`` to each dict with ``url``.

    Further arguments are passed to :func:`~penstock.gopen`, errors to ``handler``.
    """
    for shard in data:
        try:
            url, _ = parse_shard_item(shard)
            opened = {**(shard if isinstance(shard, dict) else {"url": url})}
            opened["stream"] = gopen.gopen(url, **kw)
        except Exception as error:  # noqa: BLE001 - the handler decides
            if ask(handler, error):
                continue
            return
        yield opened


def tar_file_iterator(
    fileobj: Any,
    skip_meta: str | None = META,
    handler: Handler = reraise_exception,
    select_files: Select | None = None,
    rename_files: Rename | None = None,
) -> Iterator[File]:
    """Yield the files of one open tar: dicts with ``fname`` and ``data``.

    Names that match ``skip_meta`` are skipped, ``rename_files`` renames the others, and
    ``select_files`` selects among the new names. Damage is passed to ``handler`` and ends the tar.
    """
    try:
        with open_shard(str(getattr(fileobj, "name", "a stream")), stream=fileobj) as tape:
            yield from _WantedFiles(tape, skip_meta, handler, select_files, rename_files)
    except Exception as error:  # noqa: BLE001 - the handler decides
        ask(handler, error)


def tar_file_expander(
    data: Iterable[File],
    handler: Handler = reraise_exception,
    select_files: Select | None = None,
    rename_files: Rename | None = None,
    eof_value: Any = END_OF_SHARD,
) -> Iterator[Any]:
    """Yield the files of open tars (dicts with ``url`` and ``stream``), one tar after another.

    Each is followed by ``eof_value``, unless that is None. A damaged tar yields the files before
    the damage, then ``handler`` is called; if it returns true, the next tar follows.
    """
    for source in data:
        files = None
        try:
            url, stream = parse_shard_item(source)
            common = {"__url__": canonical_url(url)}
            if source.get("local_path") is not None:
                common["__local_path__"] = source["local_path"]
            if tar_file_iterator is not _STEPS["tar_file_iterator"]:
                for file in tar_file_iterator(
                    stream, handler=handler, select_files=select_files, rename_files=rename_files
                ):
                    yield {**file, **common}
            else:
                with open_shard(url, stream=stream) as tape:
                    files = _WantedFiles(tape, META, handler, select_files, rename_files)
                    for file in files:
                        yield {**file, **common}
        except Exception as error:  # noqa: BLE001 - the handler decides
            if eof_value is END_OF_SHARD:  # before the handler, which may raise
                yield CutShard(files.begun if files is not None else None)
            if not ask(handler, error):
                return
            continue
        if eof_value is not None:
            yield eof_value


class _WantedFiles:
    """The selected files of a tar, under their new names."""

    def __init__(
        self,
        tape: TarReader,
        skip_meta: str | None,
        handler: Handler,
        select: Select | None,
        rename: Rename | None,
    ) -> None:
        self.tape, self.handler, self.select, self.rename = tape, handler, select, rename
        self.skip_meta = re.compile(skip_meta) if skip_meta is not None else None
        self.name = ""
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[File]:
        self.tape.want = self.want
        for member in self.tape:
            if self.error is not None:
                error, self.error = self.error, None
                if not ask(self.handler, error):
                    return
            elif member.data is not None:
                yield {"fname": self.name, "data": member.data}

    @property
    def begun(self) -> str | None:
        """The name of the file whose header was read and whose data could not be read."""
        return self.name if self.tape.begun is not None else None

    def want(self, raw: bytes) -> bool:
        """Return whether to read the next member's data; an error is handled after the member."""
        name = text_of(raw)
        if "/" not in name and name.startswith(meta_prefix) and name.endswith(meta_suffix):
            return False
        if self.skip_meta is not None and self.skip_meta.match(name):
            return False
        try:
            self.name = self.rename(name) if self.rename is not None else name
            return self.select is None or bool(self.select(self.name))
        except Exception as error:  # noqa: BLE001 - the handler decides
            self.error = error
            return False


def group_by_keys(
    data: Iterable[File],
    keys: Callable[[str], tuple[str | None, str | None]] = base_plus_ext,
    lcase: bool = True,
    suffixes: Iterable[str] | None = None,
    handler: Handler = reraise_exception,
) -> Iterator[Sample]:
    """Group adjacent files that share a key into samples.

    ``keys(fname)`` splits a name into key and field; with ``lcase`` fields become lower case.
    ``suffixes`` are the fields to keep. A duplicate field of a sample is passed to ``handler``; if
    it returns true, the later one is dropped.

    >>> files = [{"fname": "a.JPG", "data": b"1", "__url__": "x.tar"}]
    >>> list(group_by_keys(files))
    [{'__key__': 'a', '__url__': 'x.tar', 'jpg': b'1'}]
    """
    wanted = None if suffixes is None else set(suffixes)
    sample: Sample = {}
    for file in data:
        if file == {}:  # the end of a shard
            if valid_sample(sample) and _is_complete(sample, file, keys):
                yield sample
            sample = {}
            continue
        try:
            key, field = keys(file["fname"])
        except Exception as error:  # noqa: BLE001 - the handler decides
            if ask(handler, error):
                continue
            break
        if key is None or field is None:
            continue
        field = field.lower() if lcase else field
        if key != sample.get("__key__"):
            if valid_sample(sample):
                yield sample
            sample = {"__key__": key, "__url__": file.get("__url__")}
        if field in sample:
            if ask(handler, _make_duplicate_error(file, field, sample)):
                continue
            break
        if wanted is None or field in wanted:
            sample[field] = file["data"]
        if file.get("__local_path__") is not None:
            sample["__local_path__"] = file["__local_path__"]
    if valid_sample(sample):
        yield sample


def _is_complete(sample: Sample, mark: File, keys: Callable[[str], Any]) -> bool:
    """Return whether a sample has all its fields; ``mark`` says how its shard ended."""
    if not isinstance(mark, CutShard):
        return True
    return mark.following is not None and keys(mark.following)[0] not in (None, sample["__key__"])


def _make_duplicate_error(file: File, field: str, sample: Sample) -> DuplicateError:
    return DuplicateError(
        f"duplicate file name in tar file: {file['fname']!r} is a second {field!r}",
        origin=Origin(str(file.get("__url__")), sample["__key__"]),
    )


def tarfile_samples(
    src: Iterable[Any],
    handler: Handler = reraise_exception,
    select_files: Select | None = None,
    rename_files: Rename | None = None,
) -> Iterator[Sample]:
    """Yield the samples of all shards of a shard list, by the three steps."""
    chosen: dict[str, Any] = {"select_files": select_files, "rename_files": rename_files}
    # Assigned functions may be older than these arguments.
    chosen = {name: function for name, function in chosen.items() if function is not None}
    files = tar_file_expander(url_opener(src, handler=handler), handler=handler, **chosen)
    return group_by_keys(files, handler=handler)


_STEPS: dict[str, Any] = {
    "gopen": gopen,
    "url_opener": url_opener,
    "tar_file_expander": tar_file_expander,
    "tar_file_iterator": tar_file_iterator,
    "group_by_keys": group_by_keys,
    "valid_sample": valid_sample,
    "meta_prefix": meta_prefix,
    "meta_suffix": meta_suffix,
}
"""What a program may assign, with the values that are not replaced."""
_USED_BY_WEBDATASET = ("tar_file_iterator", "valid_sample", "meta_prefix", "meta_suffix")


def list_assigned_steps(stage: tarfile_to_samples | None = None) -> dict[str, Any]:
    """Return the functions that a program has assigned to steps that a stage uses, by name.

    Without a stage, all of them.
    """
    used = _USED_BY_WEBDATASET if stage is not None and stage.local_paths else _STEPS
    return {name: globals()[name] for name in used if globals()[name] != _STEPS[name]}


def find_replaced(stage: tarfile_to_samples) -> Bound | None:
    """Return what reads instead of a stage if a program has assigned other functions to the steps.

    As in WebDataset 1.0.2, the stage of ``WebDataset(...)`` uses only those of
    ``_USED_BY_WEBDATASET``, and warns of others.
    """
    replaced = list(list_assigned_steps())
    if not replaced:
        return None
    options = {"concatenated": stage.concatenated, "cache": stage.cache, "patience": stage.patience}
    options["group"] = stage.group != "key"
    if given := [name for name, value in options.items() if value]:
        raise PipelineError(
            f"tarfile_to_samples: {', '.join(given)} cannot be combined with what is assigned "
            f"to webdataset.tariterators.{replaced[0]}: shards are then read by the three steps"
        )
    if not stage.local_paths:
        return Bound(tarfile_samples, stage.handler, stage.select_files, stage.rename_files)
    if unused := [name for name in replaced if name not in _USED_BY_WEBDATASET]:
        warnings.warn(
            f"WebDataset does not use the function assigned to webdataset.tariterators.{unused[0]}:"
            " as in WebDataset 1.0.2, only DataPipeline(..., tarfile_to_samples()) does",
            stacklevel=2,
        )
    return Bound(_read_for_webdataset, stage) if unused != replaced else None


def _read_for_webdataset(src: Iterable[Shard], stage: tarfile_to_samples) -> Iterator[Sample]:
    """Yield the samples of a shard list by the steps of ``WebDataset(...)``."""
    streams = importlib.import_module("penstock.cache").StreamingOpen(handler=stage.handler)(src)
    expand, group = _STEPS["tar_file_expander"], _STEPS["group_by_keys"]
    files = expand(streams, stage.handler, stage.select_files, stage.rename_files)
    samples: Iterator[Sample] = group(files, handler=stage.handler)
    check_empty = importlib.import_module("penstock.fluid").check_empty
    return iter(check_empty(samples) if stage.empty_check else samples)


if __name__ == "penstock.tariterators":  # not for a second copy, imported from penstock.compat
    tar_samples.find_replaced = find_replaced
    tar_samples.list_assigned_steps = list_assigned_steps


def shardlist(urls: Urls, *, shuffle: bool = False) -> Iterator[Shard]:
    """Yield the shards of ``urls``, in random order if ``shuffle`` is true.

    >>> list(shardlist("a-{0..1}.tar"))
    [{'url': 'a-0.tar'}, {'url': 'a-1.tar'}]
    """
    found = expand_urls(urls)
    if shuffle:
        random.shuffle(found)
    for url in found:
        yield {"url": url}


def cached_tarfile_to_samples(
    handler: Handler = reraise_exception,
    verbose: bool = False,
    cache_size: float = -1,
    cache_dir: str | None = None,
    select_files: Select | None = None,
    rename_files: Rename | None = None,
) -> tarfile_to_samples:
    """Return ``tarfile_to_samples`` with a cache of remote shards in ``cache_dir``."""
    cache = ShardCache.of(cache_dir, cache_size)
    return tarfile_to_samples(handler, select_files, rename_files, cache=cache)


maybe_cached_tarfile_to_samples = cached_tarfile_to_samples


def cached_tarfile_samples(src: Any, *args: Any, **kw: Any) -> Iterator[Sample]:
    """Run :func:`cached_tarfile_to_samples` on a shard list."""
    return cached_tarfile_to_samples(*args, **kw)(src)


__all__ = [
    "base_plus_ext",
    "cached_tarfile_samples",
    "cached_tarfile_to_samples",
    "gopen",
    "group_by_keys",
    "maybe_cached_tarfile_to_samples",
    "meta_prefix",
    "meta_suffix",
    "shardlist",
    "tar_file_expander",
    "tar_file_iterator",
    "tarfile_samples",
    "tarfile_to_samples",
    "trace",
    "url_opener",
    "valid_sample",
]
